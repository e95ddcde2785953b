# SPDX-License-Identifier: Apache-2.0
"""Access tokens of OAuth 2, which the driver gets for the keys of a service account or of a user.

A token server is asked once, and its answer is used until shortly before it expires.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from volley.lru_cache import LruCache
from volley.process.runtime import Phase, Shared
from volley.storage.s3a import Unmapped
from volley.storage.settings import Hidden

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_LIFETIME_SECONDS = 3600
# A query that starts now should not outlive its token at once.
_MARGIN_SECONDS = 300
_TIMEOUT_SECONDS = 10.0
_MOST_ANSWER_BYTES = 2**16
_KEPT_TOKENS = 64

Sign = Callable[[str, bytes], bytes]
"""Signs a text with a private key in PEM form: RSA with SHA-256."""


@dataclass(frozen=True)
class AccessToken:
    text: str = field(repr=False)
    expires_seconds: int
    """Seconds since the epoch."""


@dataclass(frozen=True)
class UserGrant:
    """A user has let a client act for it."""

    server: str
    client_id: str
    client_secret: Hidden
    refresh_token: Hidden

    def form(self) -> Mapping[str, str]:
        return {
            "grant_type": "refresh_token",
            "client_id": self.client_id,
            "client_secret": self.client_secret.value,
            "refresh_token": self.refresh_token.value,
        }


@dataclass(frozen=True)
class ServiceAccountGrant:
    """A service account proves with its key who it is."""

    server: str
    email: str
    key_id: str
    private_key: Hidden
    sign: Sign = field(compare=False, repr=False)

    def form(self) -> Mapping[str, str]:
        now = int(time.time())
        header = {"alg": "RS256", "typ": "JWT", "kid": self.key_id}
        claims: dict[str, str | int] = {"iss": self.email, "scope": _SCOPE, "aud": self.server}
        claims |= {"iat": now, "exp": now + _LIFETIME_SECONDS}
        text = f"{_encode(_json(header))}.{_encode(_json(claims))}"
        signature = _encode(self.sign(self.private_key.value, text.encode()))
        return {"grant_type": _BEARER, "assertion": f"{text}.{signature}"}


Grant = UserGrant | ServiceAccountGrant
"""What a token server gives a token for. Equal grants get the same token."""


def service_account_grant(key: Mapping[str, str], server: str, sign: Sign) -> ServiceAccountGrant:
    """`key` is the content of a key file."""
    return ServiceAccountGrant(
        server, key["client_email"], key["private_key_id"], Hidden(key["private_key"]), sign
    )


class Tokens:
    """Tokens of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: LruCache[Grant, AccessToken] = LruCache(_KEPT_TOKENS)

    def get(self, grant: Grant) -> AccessToken:
        """A token that is valid for some minutes. Raises Unmapped if the server gives none. May block."""
        with self._lock:
            found = self._known.get(grant)
            if found is None or found.expires_seconds - time.time() < _MARGIN_SECONDS:
                self._known.put(grant, found := _ask(grant))
            return found

    def close(self) -> None:
        self._known.clear()


def _ask(grant: Grant) -> AccessToken:
    if urlsplit(grant.server).scheme not in ("http", "https"):
        raise Unmapped("the address of the token server is unusual")
    request = Request(grant.server, urlencode(grant.form()).encode())  # checked above
    try:
        with urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
            found: dict[str, Any] = json.loads(answer.read(_MOST_ANSWER_BYTES))
        return AccessToken(str(found["access_token"]), int(time.time()) + int(found["expires_in"]))
    except (URLError, OSError, ValueError, KeyError, TypeError) as error:
        # Its text may quote the request.
        raise Unmapped(f"the token server gave no access token ({type(error).__name__})") from None


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


_shared: Shared[None, Tokens] = Shared(Phase.CONNECTIONS, close=Tokens.close)


def shared_tokens() -> Tokens:
    return _shared.get(None, Tokens)
