# SPDX-License-Identifier: Apache-2.0
"""Which servers have a block: any of them will do."""

from __future__ import annotations

from dataclasses import dataclass

_SCHEME = "service:"


@dataclass(frozen=True)
class ServiceLocation:
    """The addresses of the replicas, the one to ask first in front."""

    addresses: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> ServiceLocation:
        """What `str` made; ValueError for anything else."""
        if not text.startswith(_SCHEME):
            raise ValueError(f"{text!r} is not the location of a block in a shuffle service")
        return cls(tuple(text.removeprefix(_SCHEME).split(",")))

    def __str__(self) -> str:
        return _SCHEME + ",".join(self.addresses)


@dataclass(frozen=True)
class Replica:
    """One of them, as a `Fetch` asks it. Whether its process has ended is not to be seen from here."""

    address: str
    gone = False
