# SPDX-License-Identifier: Apache-2.0
"""The resident memory of this process, and when its allocators return freed memory to the system.

pyarrow and DataFusion each bring an allocator (mimalloc) that keeps freed memory for a while, because fetching it again
page by page is slow. Both read their settings from the environment when they are loaded. pyarrow's can be told to
return what it keeps. DataFusion's cannot, so a process with little memory must be configured to keep less from the
start.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_DELAY = "MIMALLOC_PURGE_DELAY"
_ARENA_FACTOR = "MIMALLOC_ARENA_PURGE_MULT"
_DEFAULT_DELAY_MS = "10000"
# What the allocator keeps for ten seconds is at most a few hundred MB on two cores.
_LITTLE_BYTES = 4 * 2**30
# Long enough for the batches of a running query to get the pages of those before them. Without any delay, a worker
# spends as much time on fetching pages as on its queries.
_LIMITED_DELAY_MS = "100"
# With less memory than this, nothing is kept.
_LEAST_BYTES = 2**30
_NO_DELAY_MS = "0"


def keep_freed_memory() -> None:
    """Keep freed memory for as long as a query usually takes: returning it at once took a fifth of its CPU time."""
    os.environ.setdefault(_DELAY, _DEFAULT_DELAY_MS)


def keep_little_memory(limit_bytes: int) -> None:
    """Let the allocators keep freed memory for a shorter time if this process has a small memory limit.

    Call it before they are loaded.
    """
    os.environ.update(little_memory(limit_bytes))


def little_memory(limit_bytes: int) -> dict[str, str]:
    """Environment variables for a process with this memory limit. Values that the user has set stay."""
    if limit_bytes >= _LITTLE_BYTES or os.environ.get(_DELAY, _DEFAULT_DELAY_MS) != _DEFAULT_DELAY_MS:
        return {}
    delay = _LIMITED_DELAY_MS if limit_bytes >= _LEAST_BYTES else _NO_DELAY_MS
    return {_DELAY: delay, _ARENA_FACTOR: os.environ.get(_ARENA_FACTOR, "1")}


def resident_bytes(pid: int | None = None) -> int:
    """The resident memory of a process, by default this one. 0 if it has ended or the system does not report it."""
    try:
        text = Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def release_freed() -> None:
    """Return freed memory to the system now, as far as the allocators can be told to."""
    if (pyarrow := sys.modules.get("pyarrow")) is not None:
        pyarrow.default_memory_pool().release_unused()
    if (trim := getattr(_libc, "malloc_trim", None)) is not None:
        trim(0)


_libc = ctypes.CDLL(None)
