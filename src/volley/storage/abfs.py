# SPDX-License-Identifier: Apache-2.0
"""Maps the settings of Hadoop's connector for Azure (`abfss://`) to those of a store, or says which one it cannot map.

    fs.azure.<name>.<account>   overrides   fs.azure.<name>
    used        shared keys, fixed shared access signatures, client credentials of OAuth, the endpoint, TLS
    no effect   settings of performance, retries, writes and listings: any value
    unknown     every other setting that somebody has set: a reason

A reason names settings and no other value of a setting: any of them may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from volley.storage.s3a import Unmapped
from volley.storage.settings import AzureSettings, Hidden

PREFIX = "fs.azure."
FILE_SYSTEMS = frozenset(
    {
        "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",
        "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem",
    }
)
Settings = Mapping[str, str]
"""Names without `fs.azure.`."""

_AUTH_TYPE = "account.auth.type"
_KEY = "account.key"
_SAS = "sas.fixed.token"
_PROVIDER = "account.oauth.provider.type"
_CLIENT = ("account.oauth2.client.endpoint", "account.oauth2.client.id", "account.oauth2.client.secret")
_ENDPOINT = "abfs.endpoint"
_HTTPS = "always.use.https"
_USED = frozenset({_AUTH_TYPE, _KEY, _SAS, _PROVIDER, *_CLIENT, _ENDPOINT, _HTTPS})
_SIMPLE_KEYS = "org.apache.hadoop.fs.azurebfs.services.SimpleKeyProvider"
_CLIENT_CREDENTIALS = "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
_NO_EFFECT = (
    "abfs.enable.",
    "abfs.latency.",
    "account.hns.enabled",
    "account.is.hns.enabled",
    "account.operation.idle.timeout",
    "account.throttling.enabled",
    "analysis.period",
    "apache.http.client.",
    "atomic.rename.",
    "block.",
    "buffer.dir",
    "cluster.",
    "create.",
    "delete.",
    "disable.outputstream.flush",
    "enable.",
    "http.",
    "impl",
    "infinite.lease.",
    "io.",
    "lease.",
    "list.",
    "metric.",
    "networking.library",
    "oauth.token.fetch.",
    "read.",
    "readahead",
    "readaheadqueue.",
    "rename.",
    "shellkeyprovider.",
    "ssl.channel.mode",
    "tracingcontext.",
    "tracingheader.",
    "user.agent.prefix",
    "write.",
)
# Ownership and other metadata that scans do not read.
_OF_PERMISSIONS = ("identity.transformer.", "skipUserGroupMetadata", "superuser.")
_TENANT = re.compile(r"https://login\.microsoftonline\.com/([0-9A-Za-z.-]+)/oauth2(?:/v2\.0)?/token/?")


def map_settings(
    scheme: str, authority: str, settings: Settings, is_default: Callable[[str], bool]
) -> AzureSettings:
    """The store of a container; `authority` is `container@account.dfs.core.windows.net`.

    `is_default` tells whether a setting, by its full name, has Hadoop's own value. Raises Unmapped with the reason why
    these settings cannot be mapped.
    """
    container, _, host = authority.partition("@")
    account, _, domain = host.partition(".")
    if not re.fullmatch(r"[a-z0-9$][a-z0-9-]{1,62}", container) or not re.fullmatch(
        r"[a-z0-9]{3,24}", account
    ):
        raise Unmapped("the name of the container or of the account is unusual")
    if domain != "dfs.core.windows.net":
        # National clouds have other domains, and other login endpoints.
        raise Unmapped("the account is not at dfs.core.windows.net")
    of_account = {
        name.removesuffix(f".{host}"): value for name, value in settings.items() if name.endswith(f".{host}")
    }
    others = {name: value for name, value in settings.items() if not _is_of_account(name)}
    for name, value in {**others, **of_account}.items():
        _check(name, value.strip(), lambda name: is_default(PREFIX + name) and name not in of_account)
    found = {name: value.strip() for name, value in {**others, **of_account}.items()}
    endpoint = found.get(_ENDPOINT, "")
    if endpoint and not re.fullmatch(r"[0-9.]+:\d+", endpoint):
        raise Unmapped(f"{PREFIX}{_ENDPOINT} is not an address with a port")
    tls = scheme == "abfss" or found.get(_HTTPS, "").lower() != "false"
    return _with_credentials(AzureSettings(account, endpoint, tls), found).with_id()


def _is_of_account(name: str) -> bool:
    return bool(re.search(r"\.[a-z0-9]+\.(?:dfs|blob)\.core\.", name))


def _check(name: str, value: str, is_default: Callable[[str], bool]) -> None:
    if name in _USED or name.startswith(_NO_EFFECT) or name.startswith(_OF_PERMISSIONS):
        return
    if name == "account.keyprovider" and value == _SIMPLE_KEYS:
        return
    if value and not is_default(name):
        raise Unmapped(f"{PREFIX}{name} is not known")


def _with_credentials(store: AzureSettings, settings: Settings) -> AzureSettings:
    match settings.get(_AUTH_TYPE, "").lower() or "sharedkey":
        case "sharedkey":
            return replace(store, account_key=_hide(settings, _KEY))
        case "sas":
            return replace(store, sas_token=Hidden(_hide(settings, _SAS).value.removeprefix("?")))
        case "oauth":
            if settings.get(_PROVIDER) != _CLIENT_CREDENTIALS:
                raise Unmapped(f"{PREFIX}{_PROVIDER} is not ClientCredsTokenProvider")
            tenant = _TENANT.fullmatch(settings.get(_CLIENT[0], ""))
            if tenant is None:
                raise Unmapped(f"{PREFIX}{_CLIENT[0]} is not that of a tenant")
            identity = _hide(settings, _CLIENT[1]).value
            secret = _hide(settings, _CLIENT[2])
            return replace(store, tenant_id=tenant[1], client_id=identity, client_secret=secret)
        case _:
            raise Unmapped(f"{PREFIX}{_AUTH_TYPE} is not SharedKey, SAS or OAuth")


def _hide(settings: Settings, name: str) -> Hidden:
    value = settings.get(name, "")
    if not value:
        raise Unmapped(f"{PREFIX}{name} is not set")
    return Hidden(value)
