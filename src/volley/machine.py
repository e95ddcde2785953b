"""What this process may use of the machine."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Cores that the scheduler lets this process use; containers and taskset make them fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
