# SPDX-License-Identifier: Apache-2.0
"""The addresses of daemons. Needs neither Flight nor any other library."""

from __future__ import annotations

from volley.errors import ConfigError


def address_of(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable_name(host: str, advertise: str) -> str:
    """The host name by which others reach a daemon that listens on `host`."""
    if advertise:
        return advertise
    if host in ("0.0.0.0", "::", ""):
        raise ConfigError(f"others cannot connect to {host or 'an empty host'}.", hint="Set --advertise.")
    return host
