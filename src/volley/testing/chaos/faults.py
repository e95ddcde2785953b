# SPDX-License-Identifier: Apache-2.0
"""What can happen to processes, connections and files."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from volley.python_versions import StrEnum
from volley.testing.chaos.agent import Trouble
from volley.testing.chaos.resources import is_unnamed


class Kind(StrEnum):
    """Kinds of faults."""

    CUT = "cut connections"
    STALL = "stalled connections"
    SILENCE = "half-open connections"
    SLOW = "slow link"
    REORDER = "reordered messages"
    LOSE = "lost reply"
    REPEAT = "duplicate delivery"
    STOP = "SIGSTOP"
    KILL = "kill -9"
    RESTART = "kill -9, restart at the same address"
    KILL_DRIVER = "kill -9 of a driver"
    FLIP = "flipped byte"
    TRUNCATE = "truncated file"
    FULL = "disk full"
    EIO = "EIO"
    AHEAD = "clock jumps ahead"
    BEHIND = "clock jumps back"
    MEMORY = "memory pressure"
    S3_BUSY = "S3: 503"
    S3_RESET = "S3: reset"
    S3_LATE = "S3: slow"
    S3_TRUNCATED = "S3: truncated answer"

    @property
    def damages_files(self) -> bool:
        return self in (Kind.FLIP, Kind.TRUNCATE)


OF_NETWORK = (Kind.CUT, Kind.STALL, Kind.SILENCE, Kind.SLOW, Kind.REORDER, Kind.LOSE, Kind.REPEAT)
OF_FILES = (Kind.FLIP, Kind.TRUNCATE, Kind.FULL)
OF_PROCESSES = (Kind.STOP, Kind.KILL, Kind.RESTART)
OF_S3 = (Kind.S3_BUSY, Kind.S3_RESET, Kind.S3_LATE, Kind.S3_TRUNCATED)
TROUBLES = {
    Kind.EIO: Trouble.EIO,
    Kind.AHEAD: Trouble.AHEAD,
    Kind.BEHIND: Trouble.BEHIND,
    Kind.MEMORY: Trouble.MEMORY,
}
"""Faults inside a process."""


WEIGHTS = {
    **dict.fromkeys(Kind, 24),
    # Connections that are half open, and processes that stand still, are found out after seconds.
    Kind.STALL: 10,
    Kind.SILENCE: 3,
    Kind.STOP: 8,
    # A process is started again in seconds; a driver takes longer than all the queries of a round.
    Kind.KILL: 1,
    Kind.RESTART: 2,
    Kind.KILL_DRIVER: 1,
    Kind.MEMORY: 1,
    Kind.AHEAD: 8,
    Kind.BEHIND: 8,
}
"""How often each is drawn. What costs little time is frequent."""


@dataclass(frozen=True)
class Moment:
    """When a fault strikes: as the `count`-th message `point` of the round is on its way to a worker, server or store.
    Without a `point`, so many seconds after query number `count` of the round has begun."""

    point: str = ""
    count: int = 1
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"at {self.point} {self.count}" if self.point else f"at query {self.count} + {self.seconds:.1f} s"
        )


@dataclass(frozen=True)
class Fault:
    """`victim` counts the processes of the deployment, round and round. What lasts ends after `seconds`."""

    kind: Kind
    victim: int
    moment: Moment
    seconds: float = 1.0

    def __str__(self) -> str:
        return f"{self.kind} of {self.victim} for {self.seconds:.1f} s {self.moment}"


def flip_byte(descriptor: int, chance: random.Random) -> bool:
    """Change one byte of a file. False if it has none."""
    size = os.fstat(descriptor).st_size
    if not size:
        return False
    position = chance.randrange(size)
    (byte,) = os.pread(descriptor, 1, position)
    os.pwrite(descriptor, bytes([byte ^ 1]), position)
    return True


def truncate(descriptor: int, chance: random.Random) -> bool:
    """Cut off the end of a file. False if it has none."""
    size = os.fstat(descriptor).st_size
    if not size:
        return False
    os.ftruncate(descriptor, chance.randrange(size))
    return True


def damage_one(paths: Iterable[Path], kind: Kind, chance: random.Random) -> bool:
    """Flip a byte of one of these files, or truncate it. False if there is nothing to damage."""
    candidates = list(paths)
    chance.shuffle(candidates)
    for path in candidates:
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDWR)
            try:
                if (truncate if kind is Kind.TRUNCATE else flip_byte)(descriptor, chance):
                    return True
            finally:
                os.close(descriptor)
    return False


def spill_files(pid: int) -> Iterator[tuple[Path, str]]:
    """The unnamed files on disk that a process has open, and what they are called. Memory is sealed: nobody can change
    it."""
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                target = str(entry.readlink())
                if is_unnamed(target) and "memfd" not in target:
                    yield entry, target


def limit_files(pid: int, size_bytes: int) -> None:
    """Let every write of a process beyond this position fail, in memory files too, as on a full disk."""
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, most))


def unlimit_files(pid: int) -> None:
    with suppress(ProcessLookupError):
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
