# SPDX-License-Identifier: Apache-2.0
"""Files as all stores write them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: OSError) -> bool:
    """Whether a write failed for want of room: on the disk, in a quota, or in the largest file that may be."""
    return error.errno in _FULL


def write_at(descriptor: int, data: pa.Buffer | bytes, position: int) -> int:
    """Write all of `data` from `position` on; where it ends."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, position)
        rest = rest[written:]
        position += written
    return position


def free_bytes(directory: Path) -> int:
    """Room in the file system of a directory; 0 when that cannot be told."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize
