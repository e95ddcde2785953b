# SPDX-License-Identifier: Apache-2.0
"""Which process holds a block, said so that neither a recycled pid nor another machine is ever taken for it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PROC = Path("/proc")
_TEXT = re.compile(
    r"(?P<address>.+)#(?P<boot>[0-9a-f-]+)/(?P<namespace>\d+)/(?P<pid>\d+)/(?P<started>\d+)", re.ASCII
)


@dataclass(frozen=True, order=True)
class Location:
    """`address` is where its Flight server listens; the rest names the process.

    The kernel draws `boot` anew at every start of a machine, so it names the machine too. Containers share it and have
    a process table (`namespace`) of their own, in which the same pid is another process. `started` is in clock
    ticks since the boot: a pid that is used again has another.
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
        """What `str` made; ValueError for anything else."""
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
        """Whether the process still runs; only to be asked on its own host."""
        return started_ticks(self.pid) == self.started

    @property
    def gone(self) -> bool:
        """Whether it is known from here that the process has ended."""
        return self.on_this_host and not self.alive


def started_ticks(pid: int) -> int | None:
    """When a process started; None when there is none, or only what its parent has not yet collected."""
    try:
        # The name stands in parentheses and may hold anything, also spaces and parentheses.
        fields = (_PROC / str(pid) / "stat").read_text(encoding="latin-1").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


@cache
def _machine() -> tuple[str, int]:
    boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return boot, (_PROC / "self/ns/pid").stat().st_ino
