# SPDX-License-Identifier: Apache-2.0
"""The servers that hold a block. It can be read from any of them."""

from __future__ import annotations

import socket
from dataclasses import dataclass

_SCHEME = "service:"


@dataclass(frozen=True)
class ServiceLocation:
    """The addresses of the replicas, in order of preference."""

    addresses: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> ServiceLocation:
        """Parse the output of `str`. Raises ValueError for anything else."""
        if not text.startswith(_SCHEME):
            raise ValueError(f"{text!r} is not the location of a block in a shuffle service")
        return cls(tuple(text.removeprefix(_SCHEME).split(",")))

    def __str__(self) -> str:
        return _SCHEME + ",".join(self.addresses)


@dataclass(frozen=True)
class Replica:
    """One replica as the holder of a `Fetch`. This process cannot tell whether the server has ended."""

    address: str
    gone = False

    @property
    def on_this_host(self) -> bool:
        """Whether its address leads to this host, as far as the address alone tells."""
        host = self.address.rpartition(":")[0].strip("[]")
        return host in ("localhost", "::1", socket.gethostname()) or host.startswith("127.")
