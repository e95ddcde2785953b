# SPDX-License-Identifier: Apache-2.0
"""Processor time and peak memory of a process and all its descendants, from Linux's /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_RESET_PEAK = "5"


class ProcessTree:
    """A process with its children and theirs: an engine may be Python and a JVM."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def pids(self) -> list[int]:
        found, at = [self._pid], 0
        while at < len(found):
            found += _children(found[at])
            at += 1
        return found

    def cpu_seconds(self) -> float:
        """Processor time so far, that of children which have ended included."""
        return sum(_cpu_ticks(pid) for pid in self.pids()) / _TICKS

    def reset_peak(self) -> None:
        """From here on `peak_bytes` begins again at what is in memory now."""
        for pid in self.pids():
            with suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)

    def peak_bytes(self) -> int:
        """The sum of the largest resident memory of each process since `reset_peak`."""
        return sum(_status_bytes(pid, "VmHWM") for pid in self.pids())


def _children(pid: int) -> list[int]:
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(child) for child in file.read_text().split()]
    return found


def _cpu_ticks(pid: int) -> int:
    try:
        # The name of the program, in parentheses, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    # utime, stime, cutime and cstime.
    return sum(int(ticks) for ticks in fields[11:15])


def _status_bytes(pid: int, name: str) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0
