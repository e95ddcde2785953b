# SPDX-License-Identifier: Apache-2.0
"""The identity of the process that holds a block. Neither a recycled pid nor another machine can match it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar

_PROC = Path("/proc")
_TEXT = re.compile(
    r"(?P<address>.+)#(?P<boot>[0-9a-f-]+)/(?P<namespace>\d+)/(?P<pid>\d+)/(?P<started>\d+)", re.ASCII
)


class Holder(Protocol):
    """A process that holds blocks."""

    @property
    def address(self) -> str: ...

    @property
    def gone(self) -> bool:
        """Whether it is known to have ended, so that retrying is pointless."""

    @property
    def on_this_host(self) -> bool: ...


Place = TypeVar("Place", bound=Holder)


@dataclass(frozen=True, order=True)
class Location:
    """`address` is where its Flight server listens; the rest identifies the process.

    `boot` is random and new at every boot, so it identifies the machine too. Containers share it, but have their own
    pid `namespace`, where the same pid is another process. `started` is in clock ticks since boot and differs when a
    pid is reused.
    """

    address: str
    boot: str
    namespace: int
    pid: int
    started: int

    @classmethod
    def here(cls, address: str) -> Location:
        """This process, serving at `address`."""
        boot, namespace = _machine()
        pid = os.getpid()
        started = started_ticks(pid)
        assert started is not None, "a process can read its own start"
        return cls(address, boot, namespace, pid, started)

    @classmethod
    def parse(cls, text: str) -> Location:
        """Parse the output of `str`. Raises ValueError for anything else."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not the location of a worker")
        return cls(
            found["address"],
            found["boot"],
            int(found["namespace"]),
            int(found["pid"]),
            int(found["started"]),
        )

    def __str__(self) -> str:
        return f"{self.address}#{self.boot}/{self.namespace}/{self.pid}/{self.started}"

    @property
    def on_this_host(self) -> bool:
        return (self.boot, self.namespace) == _machine()

    @property
    def alive(self) -> bool:
        """Whether the process still runs. Meaningful only on its own host."""
        return started_ticks(self.pid) == self.started

    @property
    def gone(self) -> bool:
        """Whether this process can tell that the other one has ended."""
        return self.on_this_host and not self.alive


def started_ticks(pid: int) -> int | None:
    """When a process started; None if it does not exist or is a zombie."""
    try:
        # The name is in parentheses and may itself contain spaces and parentheses.
        fields = (_PROC / str(pid) / "stat").read_text(encoding="latin-1").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


@cache
def _machine() -> tuple[str, int]:
    boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return boot, (_PROC / "self/ns/pid").stat().st_ino
