# SPDX-License-Identifier: Apache-2.0
"""File helpers that all stores share."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: OSError) -> bool:
    """Whether a write failed for lack of space: disk full, quota exceeded or file too large."""
    return error.errno in _FULL


def write_at(descriptor: int, data: pa.Buffer | bytes, position: int) -> int:
    """Write all of `data` at `position`. Returns the position after it."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, position)
        rest = rest[written:]
        position += written
    return position


def free_bytes(directory: Path) -> int:
    """Free space in the file system of a directory; 0 if it cannot be determined."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize
