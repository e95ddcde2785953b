# SPDX-License-Identifier: Apache-2.0
"""Where a daemon listens, and what others call that place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from volley.errors import ConfigError
from volley.security import Security

Server = TypeVar("Server")


def listen(
    make: Callable[..., Server],
    host: str,
    port: int,
    security: Security,
    *,
    require_client_certificate: bool = False,
    insecure: bool = False,
) -> Server:
    """The server that `make` makes of a URI and what security asks for. ConfigError when it may or can not listen."""
    security.check_listening(host, insecure)
    address = address_of(host, port)
    arguments: dict[str, Any] = security.server_arguments(require_client_certificate)
    try:
        return make(security.uri(address), **arguments)
    except (pa.ArrowException, flight.FlightError, OSError) as error:
        raise ConfigError(
            f"{address} cannot be listened on: {error}.", hint="Is the port taken, is the certificate good?"
        ) from error


def address_of(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable_name(host: str, advertise: str) -> str:
    """What others call a daemon that listens on `host`."""
    if advertise:
        return advertise
    if host in ("0.0.0.0", "::", ""):
        raise ConfigError(
            f"{host or 'an empty host'} is no name that others can call.", hint="Give --advertise."
        )
    return host
