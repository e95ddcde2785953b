# SPDX-License-Identifier: Apache-2.0
"""Flight middleware for the bearer token: clients send it with every call, servers check it."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from typing import Any

import pyarrow.flight as flight

from volley.process.log_format import Repeated

_HEADER = "authorization"

# The documented name of the logger for authentication.
_log = logging.getLogger("volley.security")
_log.addFilter(Repeated())


class ServerTokenMiddleware(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls without this token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, list[Any]]) -> None:
        shown = [value for key, values in headers.items() if key.lower() == _HEADER for value in values]
        if len(shown) == 1:
            value = shown[0].encode("utf-8", "replace") if isinstance(shown[0], str) else bytes(shown[0])
            # Constant time, so that timing reveals nothing about the token.
            if hmac.compare_digest(value, self._expected):
                return
        # Who called is unknown here, and what was shown must not be in a log: it may be another token.
        _log.warning("refused %s: %s", _method(info), "wrong token" if shown else "no token")
        raise flight.FlightUnauthenticatedError("refused")


def _method(info: flight.CallInfo) -> str:
    return str(info.method).rpartition(".")[2].lower()


class ClientTokenMiddleware(flight.ClientMiddlewareFactory):  # type: ignore[misc]
    """Sends this token with every call."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._middleware = _TokenHeader(token)

    def start_call(self, info: flight.CallInfo) -> _TokenHeader:
        return self._middleware


class _TokenHeader(flight.ClientMiddleware):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__()
        self._headers = {_HEADER: f"Bearer {token}"}

    def sending_headers(self) -> dict[str, str]:
        return self._headers
