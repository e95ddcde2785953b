# SPDX-License-Identifier: Apache-2.0
"""Maps the settings of Hadoop's S3A connector to those of a store, or says which one has no exact counterpart.

    fs.s3a.bucket.<bucket>.<name>   overrides   fs.s3a.<name>
    used        endpoint, region, path style, TLS, keys, the chain of credential providers
    no effect   settings of performance, retries, writes and listings: any value
    required    settings that change what is read, with the values under which they do not
    unknown     every other setting that somebody has set: a reason

A reason names settings and credential providers. It has no other value of a setting: any of them may be a secret.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from volley.storage.settings import Hidden, S3Settings

PREFIX = "fs.s3a."
FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

Settings = Mapping[str, str]
"""Names without `fs.s3a.`."""

Environment = Callable[[str], str | None]
Ask = Callable[[], tuple[str | None, str | None, str | None] | None]
"""Asks the file system for its current keys and token; None if it does not reveal them."""

_PROVIDERS = "aws.credentials.provider"
_USED = frozenset(
    {
        "endpoint",
        "endpoint.region",
        "path.style.access",
        "connection.ssl.enabled",
        "access.key",
        "secret.key",
        "session.token",
        "connection.establish.timeout",
        "connection.timeout",
        "attempts.maximum",
        _PROVIDERS,
    }
)
_NO_EFFECT = (
    "accesspoint.required",
    "acl.",
    "assumed.role.",
    "audit.",
    "block.size",
    "buffer.dir",
    "bulk.delete",
    "change.detection.",
    "committer.",
    "connection.",
    "copy.",
    "create.",
    "cross.region.access.enabled",
    "directory.",
    "downgrade.",
    "etag.checksum.enabled",
    "executor.",
    "experimental.input.",
    "fast.",
    "impl",
    "input.fadvise",
    "input.stream.type",
    "list.version",
    "max.total.tasks",
    "multiobjectdelete.",
    "multipart.",
    "optimized.copy",
    "paging.",
    "performance.",
    "prefetch.",
    "readahead.",
    "rename.",
    "retry.",
    "select.",
    "socket.",
    "ssl.channel.mode",
    "storage.class",
    "threads.",
    "user.agent.prefix",
    "vectored.",
)
# Encryption by the server's own keys is invisible to readers.
_BY_SERVER = frozenset({"", "aes256", "sse-s3", "sse-kms", "dsse-kms"})
_OFF = frozenset({"", "false"})
_EMPTY = frozenset({""})
_REQUIRED: dict[str, frozenset[str]] = {
    "accesspoint.arn": _EMPTY,
    "custom.signers": _EMPTY,
    "delegation.token.binding": _EMPTY,
    "encryption.algorithm": _BY_SERVER,
    "server-side-encryption-algorithm": _BY_SERVER,
    "endpoint.fips": _OFF,
    "http.signer.enabled": _OFF,
    "input.stream.custom.factory": _EMPTY,
    "proxy.host": _EMPTY,
    "requester.pays.enabled": _OFF,
    "s3.client.factory.impl": frozenset({"", "org.apache.hadoop.fs.s3a.defaults3clientfactory"}),
    "security.credential.provider.path": _EMPTY,
    "signing-algorithm": _EMPTY,
}
# They mean something only with one of the above.
_DEPENDENT = ("proxy.", "encryption.", "server-side-encryption.key")

_S3A = "org.apache.hadoop.fs.s3a."
_AWS = "software.amazon.awssdk.auth.credentials."
_AWS_OLD = "com.amazonaws.auth."
_DEFAULT_PROVIDERS = (
    f"{_S3A}TemporaryAWSCredentialsProvider,{_S3A}SimpleAWSCredentialsProvider,"
    f"{_AWS}EnvironmentVariableCredentialsProvider,{_S3A}auth.IAMInstanceCredentialsProvider"
)
_CENTRAL = "s3.amazonaws.com"
_REGION_OF_AWS = re.compile(r"s3[.-](?:dualstack\.)?([a-z]{2}(?:-[a-z]+)+-\d+)\.amazonaws\.com(?:\.cn)?")
_PUBLIC_REGION = re.compile(r"(?:af|ap|ca|eu|il|me|mx|sa|us)-(?!iso)[a-z-]+-\d+")
# Most other servers take any region; S3A itself has used several.
_REGION_ELSEWHERE = "us-east-1"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 0.001}


class Unmapped(Exception):
    """A setting has no exact counterpart."""


def map_settings(
    bucket: str,
    settings: Settings,
    environment: Environment,
    is_default: Callable[[str], bool],
    ask: Ask = lambda: None,
) -> S3Settings:
    """The store of a bucket. `is_default` tells whether a setting, by its full name, has Hadoop's own value.

    `ask` is for credential providers that are code, such as those of roles. Raises Unmapped with the reason why these
    settings cannot be mapped.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,62}", bucket):
        # S3A takes other names for credentials in the address, or for access points.
        raise Unmapped("the name of the bucket is unusual")
    of_bucket = f"bucket.{bucket}."
    merged = {name: value for name, value in settings.items() if not name.startswith("bucket.")}
    for name, value in settings.items():
        if name.startswith(of_bucket):
            merged[name.removeprefix(of_bucket)] = value
    for name, value in merged.items():
        _check(
            name, value.strip(), lambda name: is_default(PREFIX + name) and of_bucket + name not in settings
        )
    access_key, secret_key, session_token = _credentials(merged, environment, ask)
    endpoint, region, tls = _place(merged)
    path_style = _boolean(merged, "path.style.access", default=False)
    if path_style and not endpoint:
        endpoint = _endpoint_in(region)
    if endpoint and ("." in bucket or _is_address(endpoint)):
        # The SDK has no host name for these.
        path_style = True
    return S3Settings(
        endpoint=endpoint,
        region=region,
        tls=tls,
        virtual_hosted=not path_style,
        access_key=access_key,
        secret_key=secret_key,
        session_token=session_token,
        connect_seconds=_seconds(merged, "connection.establish.timeout", default=5.0),
        silence_seconds=_seconds(merged, "connection.timeout", default=30.0),
        attempts=_attempts(merged),
    ).with_id()


def _check(name: str, value: str, is_default: Callable[[str], bool]) -> None:
    if name in _REQUIRED:
        if value.lower() not in _REQUIRED[name]:
            raise Unmapped(f"{PREFIX}{name} is set")
        return
    if name in _USED or name.startswith(_NO_EFFECT) or name.startswith(_DEPENDENT):
        return
    if value and not is_default(name):
        raise Unmapped(f"{PREFIX}{name} is not known")


# --------------------------------------------------------------------------------------------- credentials

_Keys = tuple[Hidden | None, Hidden | None, Hidden | None]


def _credentials(settings: Settings, environment: Environment, ask: Ask) -> _Keys:
    """What the first provider of the chain that has credentials gives."""
    chain = settings.get(_PROVIDERS, "").strip() or _DEFAULT_PROVIDERS
    for name in re.split(r"[,\s]+", chain):
        match name.removeprefix(_S3A).removeprefix(_AWS).removeprefix(_AWS_OLD):
            case "":
                continue
            case (
                "AnonymousAWSCredentialsProvider" | "AnonymousCredentialsProvider" | "AnonymousAWSCredentials"
            ):
                return (None, None, None)
            case "TemporaryAWSCredentialsProvider":
                found = _hide(settings.get, "access.key", "secret.key", "session.token")
                if None not in found:
                    return found
            case "SimpleAWSCredentialsProvider":
                access_key, secret_key, _ = _hide(settings.get, "access.key", "secret.key", "")
                if access_key and secret_key:
                    return (access_key, secret_key, None)
            case "EnvironmentVariableCredentialsProvider":
                access_key, secret_key, token = _hide(environment, *_VARIABLES)
                if access_key and secret_key:
                    return (access_key, secret_key, token)
            case _:
                # The file system asks the same chain.
                if (given := ask()) is None:
                    raise Unmapped(f"credentials of {name}")
                access_key, secret_key, token = (Hidden(text) if text else None for text in given)
                return (access_key, secret_key, token)
    raise Unmapped("no credential provider has credentials")


def _hide(find: Callable[[str], str | None], *names: str) -> _Keys:
    texts = [(find(name) or "").strip() if name else "" for name in names]
    access_key, secret_key, token = (Hidden(text) if text else None for text in texts)
    return access_key, secret_key, token


# --------------------------------------------------------------------------------------------- where


def _place(settings: Settings) -> tuple[str, str, bool]:
    """The endpoint, the region, and whether to use TLS."""
    tls = _boolean(settings, "connection.ssl.enabled", default=True)
    endpoint = settings.get("endpoint", "").strip()
    region = settings.get("endpoint.region", "").strip()
    if "://" in endpoint:
        parts = urlsplit(endpoint)
        if (
            parts.scheme not in ("http", "https")
            or parts.path.strip("/")
            or parts.query
            or "@" in parts.netloc
        ):
            raise Unmapped(f"{PREFIX}endpoint is more than a host")
        tls, endpoint = parts.scheme == "https", parts.netloc
    if "/" in endpoint or "@" in endpoint:
        raise Unmapped(f"{PREFIX}endpoint is more than a host")
    if region.lower() == "sdk" or ("endpoint.region" in settings and not region):
        raise Unmapped(f"{PREFIX}endpoint.region leaves the region to the SDK")
    if endpoint in ("", _CENTRAL):
        if not region:
            # S3A asks the store where the bucket is.
            raise Unmapped(f"{PREFIX}endpoint.region is not set")
        return "", region, tls
    if not region:
        found = _REGION_OF_AWS.fullmatch(endpoint)
        if found is None and ".amazonaws." in endpoint:
            raise Unmapped(f"{PREFIX}endpoint.region is not set")
        region = found[1] if found else _REGION_ELSEWHERE
    return endpoint, region, tls


def _endpoint_in(region: str) -> str:
    """The host that serves the buckets of a region of AWS by path."""
    if region.startswith("cn-"):
        return f"s3.{region}.amazonaws.com.cn"
    if not _PUBLIC_REGION.fullmatch(region):
        # The partitions of governments and of sovereign clouds have domains of their own.
        raise Unmapped(f"{PREFIX}path.style.access in a region whose endpoint is not known")
    return f"s3.{region}.amazonaws.com"


def _is_address(endpoint: str) -> bool:
    """Whether a host is an address of the Internet Protocol."""
    host = endpoint.rpartition(":")[0] if re.search(r":\d+$", endpoint) else endpoint
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _boolean(settings: Settings, name: str, *, default: bool) -> bool:
    """As Hadoop reads it: anything but true and false is the default."""
    value = settings.get(name, "").strip().lower()
    return value == "true" if value in ("true", "false") else default


def _seconds(settings: Settings, name: str, *, default: float) -> float:
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|h|)", settings.get(name, "").strip().lower())
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0.0
    # Zero means no limit to Hadoop, but a query has to end.
    return min(seconds, 30.0) if seconds else default


def _attempts(settings: Settings) -> int:
    value = settings.get("attempts.maximum", "").strip()
    return min(max(int(value), 1), 20) if value.isdecimal() else 5
