# SPDX-License-Identifier: Apache-2.0
"""The cores, the memory and the directory for state that are available to this process."""

from __future__ import annotations

import os
from pathlib import Path


def available_cores() -> int:
    """Cores that this process may use. Containers and taskset may allow fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory_bytes() -> int:
    """Memory that this process may use: the machine's memory, or the cgroup limit if that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(limit, encoding="ascii") as file:  # noqa: PTH123  # every query asks, and a Path costs more
                text = file.read().strip()
        except OSError:
            continue
        if text.isdecimal():
            total = min(total, int(text))
    return total


def query_memory_bytes(chosen_bytes: int) -> int:
    """Memory of the queries that run in this process: `chosen_bytes`, or half of what is available if that is 0."""
    return chosen_bytes or available_memory_bytes() // 2


def state_directory() -> Path:
    """The directory for state that outlives the programs of this user, as XDG defines it."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "volley"
