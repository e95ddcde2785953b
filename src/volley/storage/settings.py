# SPDX-License-Identifier: Apache-2.0
"""What a process needs to open the objects of a store. Part of the message that starts a task.

Secrets are shown by no `repr`, so that they are in no log, event, report or error.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, replace

from volley.field_types import Count, Key, Name, Seconds, Text

DEFAULT_CACHE_BYTES = 2**30
"""How much of what is read from stores a process keeps on its disk (`ObjectCache`)."""

# Ids must not be guessable: whoever knows one can read with its credentials, in any process that has them.
_ID_KEY = secrets.token_bytes(32)


@dataclass(frozen=True, repr=False)
class Hidden:
    """A text that its `repr` hides."""

    value: str

    def __repr__(self) -> str:
        return "Hidden(***)"


@dataclass(frozen=True)
class S3Settings:
    """A bucket of S3, or of a server that speaks its protocol. Without an access key requests are not signed.

    `endpoint` is the host, with a port if it is not the usual one; empty for that of AWS in `region`. A request fails
    after `silence_seconds` without a byte. `attempts` counts the first one. `renewals` counts how often the credentials
    under this id were replaced by newer ones.
    """

    endpoint: Text
    region: Name
    tls: bool
    virtual_hosted: bool
    access_key: Hidden | None = None
    secret_key: Hidden | None = None
    session_token: Hidden | None = None
    connect_seconds: Seconds = 5.0
    silence_seconds: Seconds = 30.0
    attempts: Count = 5
    renewals: Count = 0
    cache_bytes: Count = DEFAULT_CACHE_BYTES
    id: Key = "new"

    @property
    def hidden(self) -> tuple[Hidden | None, ...]:
        return (self.access_key, self.secret_key, self.session_token)

    def with_id(self) -> S3Settings:
        """The same with the id that all equal settings have in this process."""
        return replace(self, id=_id_of(replace(self, id="new"), self.hidden))


@dataclass(frozen=True)
class AzureSettings:
    """A storage account of Azure, with one of three kinds of credentials: a key, a signature, or those of a client.

    `endpoint` is an address with a port; empty for that of Azure. `renewals` is as in `S3Settings`.
    """

    account: Name
    endpoint: Text
    tls: bool
    account_key: Hidden | None = None
    sas_token: Hidden | None = None
    tenant_id: Text = ""
    client_id: Text = ""
    client_secret: Hidden | None = None
    renewals: Count = 0
    cache_bytes: Count = DEFAULT_CACHE_BYTES
    id: Key = "new"

    @property
    def hidden(self) -> tuple[Hidden | None, ...]:
        return (self.account_key, self.sas_token, self.client_secret)

    def with_id(self) -> AzureSettings:
        """The same with the id that all equal settings have in this process."""
        return replace(self, id=_id_of(replace(self, id="new"), self.hidden))


@dataclass(frozen=True)
class GcsSettings:
    """Google Cloud Storage, with an access token or without. `endpoint` is a host; empty for Google's.

    `expires_seconds` is when the token expires, in seconds since the epoch. `renewals` is as in `S3Settings`.
    """

    endpoint: Text
    tls: bool
    access_token: Hidden | None = None
    expires_seconds: Count = 0
    renewals: Count = 0
    cache_bytes: Count = DEFAULT_CACHE_BYTES
    id: Key = "new"

    @property
    def hidden(self) -> tuple[Hidden | None, ...]:
        return (self.access_token,)

    def with_id(self) -> GcsSettings:
        """The same with the id that all equal settings have in this process."""
        return replace(self, id=_id_of(replace(self, id="new"), self.hidden))


StoreSettings = S3Settings | AzureSettings | GcsSettings


def _id_of(settings: StoreSettings, hidden: tuple[Hidden | None, ...]) -> str:
    values = (settings, *(text and text.value for text in hidden))
    return hashlib.blake2b(repr(values).encode(), key=_ID_KEY, digest_size=16).hexdigest()
