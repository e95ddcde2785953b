# SPDX-License-Identifier: Apache-2.0
"""Maps the settings of connectors for Google Cloud Storage (`gs://`) to those of a store, or says which it cannot map.

    fs.gs.<name>   overrides   google.cloud.<name>
    used        the kind of authentication with its keys, the address of the service and of its token server
    no effect   settings of performance, retries, writes and listings: any value
    required    settings that change what is read, with the values under which they do not
    unknown     every other setting that somebody has set: a reason

Keys stay in the driver: it exchanges them for an access token, and only that is part of a store. A reason names
settings and no value of one: any of them may be a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from volley.storage.access_tokens import AccessToken, Grant, Sign, UserGrant, service_account_grant
from volley.storage.s3a import Unmapped
from volley.storage.settings import GcsSettings, Hidden

PREFIX = "fs.gs."
SHARED_PREFIX = "google.cloud."
FILE_SYSTEMS = frozenset(
    {
        "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        "org.apache.hadoop.fs.gs.GoogleHadoopFileSystem",
    }
)
Settings = Mapping[str, str]
"""Names without the prefix."""

_AUTH_TYPE = "auth.type"
_KEY_FILE = "auth.service.account.json.keyfile"
_CLIENT = ("auth.client.id", "auth.client.secret", "auth.refresh.token")
_TOKEN_SERVER = "token.server.url"  # the name of a setting
_ROOT = "storage.root.url"
_SERVICE_PATH = "storage.service.path"
_USED = frozenset({_AUTH_TYPE, _KEY_FILE, *_CLIENT, _TOKEN_SERVER, _ROOT})
_GOOGLE = "https://storage.googleapis.com"
_GOOGLE_TOKENS = "https://oauth2.googleapis.com/token"
_NO_EFFECT = (
    "application.name.suffix",
    "auth.service.account.enable",
    "auth.service.account.email",
    "batch.threads",
    "block.size",
    "bucket.delete.enable",
    "checksum.type",
    "client.",
    "copy.",
    "create.items.conflict.check.enable",
    "fadvise.",
    "glob.algorithm",
    "grpc.",
    "hierarchical.",
    "http.",
    "implicit.dir.repair.enable",
    "impl",
    "inputstream.fadvise",
    "inputstream.fast.fail.",
    "inputstream.inplace.",
    "inputstream.min.range.",
    "lazy.init.enable",
    "list.",
    "marker.file.pattern",
    "max.",
    "metrics.",
    "operation.",
    "outputstream.",
    "performance.",
    "project.id",
    "read.",
    "reported.permissions",
    "rewrite.",
    "status.parallel.enable",
    "tracelog.",
    "working.dir",
    "write.",
)
_EMPTY = frozenset({""})
_REQUIRED: dict[str, frozenset[str]] = {
    _SERVICE_PATH: frozenset({"", "storage/v1/"}),
    "inputstream.support.gzip.encoding.enable": frozenset({"", "false"}),
    "requester.pays.mode": frozenset({"", "disabled"}),
}


def map_settings(
    bucket: str,
    settings: Settings,
    shared: Settings,
    is_default: Callable[[str], bool],
    token_of: Callable[[Grant], AccessToken],
    sign: Sign,
) -> GcsSettings:
    """The store of a bucket. `settings` are those of `fs.gs.`, `shared` those of `google.cloud.`.

    `is_default` tells whether a setting, by its full name, has Hadoop's own value. `token_of` asks a token server.
    Raises Unmapped with the reason why these settings cannot be mapped.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", bucket):
        raise Unmapped("the name of the bucket is unusual")
    for prefix, group in ((SHARED_PREFIX, shared), (PREFIX, settings)):
        for name, value in group.items():
            _check(prefix, name, value.strip(), is_default)
    merged = {name: value.strip() for name, value in {**shared, **settings}.items()}
    endpoint, tls = _place(merged.get(_ROOT, ""))
    grant = _grant(merged, sign)
    if grant is None:
        return GcsSettings(endpoint, tls).with_id()
    token = token_of(grant)
    return GcsSettings(endpoint, tls, Hidden(token.text), token.expires_seconds).with_id()


def _check(prefix: str, name: str, value: str, is_default: Callable[[str], bool]) -> None:
    if prefix == SHARED_PREFIX and not name.startswith(("auth.", "token.", "proxy.")):
        return
    if name in _REQUIRED:
        if value.lower() not in _REQUIRED[name]:
            raise Unmapped(f"{prefix}{name} is set")
        return
    if name in _USED or name.startswith(_NO_EFFECT):
        return
    if value and not is_default(prefix + name):
        raise Unmapped(f"{prefix}{name} is not known")


def _place(root: str) -> tuple[str, bool]:
    """The endpoint, empty for Google's, and whether to use TLS."""
    if root.rstrip("/") in ("", _GOOGLE):
        return "", True
    parts = urlsplit(root)
    if parts.scheme not in ("http", "https") or parts.path.strip("/") or parts.query or "@" in parts.netloc:
        raise Unmapped(f"{PREFIX}{_ROOT} is more than a host")
    return parts.netloc, parts.scheme == "https"


def _grant(settings: Settings, sign: Sign) -> Grant | None:
    """What a token server gives an access token for; None for requests without one."""
    server = settings.get(_TOKEN_SERVER, "")
    match settings.get(_AUTH_TYPE, "").upper():
        case "UNAUTHENTICATED":
            return None
        case "SERVICE_ACCOUNT_JSON_KEYFILE":
            key = _read_key(_given(settings, _KEY_FILE))
            return service_account_grant(key, server or key.get("token_uri", _GOOGLE_TOKENS), sign)
        case "USER_CREDENTIALS":
            identity, secret, token = (_given(settings, name) for name in _CLIENT)
            return UserGrant(server or _GOOGLE_TOKENS, identity, Hidden(secret), Hidden(token))
        case "":
            # What it means then depends on the release of the connector.
            raise Unmapped(f"{PREFIX}{_AUTH_TYPE} is not set")
        case _:
            raise Unmapped(
                f"{PREFIX}{_AUTH_TYPE} is not UNAUTHENTICATED, SERVICE_ACCOUNT_JSON_KEYFILE or USER_CREDENTIALS"
            )


def _given(settings: Settings, name: str) -> str:
    value = settings.get(name, "")
    if not value:
        raise Unmapped(f"{PREFIX}{name} is not set")
    return value


def _read_key(path: str) -> dict[str, str]:
    try:
        found = json.loads(Path(path).read_text())
        return {name: str(found[name]) for name in ("client_email", "private_key", "private_key_id")} | {
            name: str(found[name]) for name in ("token_uri",) if name in found
        }
    except (OSError, ValueError, KeyError, TypeError):
        # Without the cause, which may quote the file.
        raise Unmapped(f"{PREFIX}{_KEY_FILE} is not the key file of a service account") from None
