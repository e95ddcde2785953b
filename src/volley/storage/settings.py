# SPDX-License-Identifier: Apache-2.0
"""What a process needs to open the objects of a store. Part of the message that starts a task.

Secrets are shown by no `repr`, so that they are in no log, event, report or error.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, replace

from volley.fields import Count, Key, Name, Seconds, Text

# Ids are not guessable: who knows one may read with its credentials, in any process that holds them.
_ID_KEY = secrets.token_bytes(32)


@dataclass(frozen=True, repr=False)
class Hidden:
    """A text that is not shown."""

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
    id: Key = "new"

    def with_id(self) -> S3Settings:
        """The same with the id that all equal settings have in this process."""
        hidden = (self.access_key, self.secret_key, self.session_token)
        values = (replace(self, id="new"), *(text and text.value for text in hidden))
        return replace(
            self, id=hashlib.blake2b(repr(values).encode(), key=_ID_KEY, digest_size=16).hexdigest()
        )
