# SPDX-License-Identifier: Apache-2.0
"""The files in which an attempt's output lies. None has a name, so nothing is left when its process is killed.

memory    memfd: pages that live as long as a descriptor or a mapping of them
disk      O_TMPFILE in one of the spill directories
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from volley.errors import SpillDiskFull
from volley.ids import AttemptId
from volley.shuffle.disk import free_bytes, is_full, write_at

ALIGNMENT_BYTES = 64
# Unsealed, the owner could truncate it and readers would get SIGBUS.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@dataclass(frozen=True)
class SegmentName:
    """How a process finds an open file of another: its descriptor there, and what that must still be."""

    descriptor: int
    device: int
    inode: int
    in_memory: bool

    def open(self, pid: int | None = None) -> pa.NativeFile:
        """The file as process `pid` (this one when None) has it open: mapped when in memory, else to be read.

        OSError when the process does not have it open any more, or does not let us.
        """
        descriptor = os.open(f"/proc/{pid or 'self'}/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) != (self.device, self.inode):
                raise FileNotFoundError(errno.ENOENT, "the descriptor is of another file by now")
            path = f"/proc/self/fd/{descriptor}"
            if not self.in_memory:
                return pa.OSFile(path)
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise PermissionError(errno.EPERM, "the memory is not sealed")
            return pa.memory_map(path)
        finally:
            os.close(descriptor)


class Segment:
    """An open file that grows by `append` until it is sealed. Used by one thread at a time."""

    def __init__(self, descriptor: int, in_memory: bool) -> None:
        found = os.fstat(descriptor)
        self.name = SegmentName(descriptor, found.st_dev, found.st_ino, in_memory)
        self.size_bytes = 0
        self._open = True

    def append(self, data: pa.Buffer, align_at: int = 0) -> int:
        """Where `data` begins in the file; its byte `align_at` falls on a multiple of ALIGNMENT_BYTES."""
        start = self.size_bytes + -(self.size_bytes + align_at) % ALIGNMENT_BYTES
        self.size_bytes = write_at(self.name.descriptor, data, start)
        return start

    def seal(self) -> None:
        """Nothing is written afterwards; memory is made immutable for every process."""
        if self.name.in_memory:
            fcntl.fcntl(self.name.descriptor, fcntl.F_ADD_SEALS, _SEALS)

    def close(self) -> None:
        """The bytes are gone when the last reader has let go of them."""
        if self._open:
            self._open = False
            os.close(self.name.descriptor)


def memory_segment() -> Segment:
    return Segment(os.memfd_create("volley-shuffle", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), in_memory=True)


class SpillFiles:
    """The disk files of one attempt: one in a directory, and another elsewhere when that is full."""

    def __init__(self, attempt: AttemptId, directories: Sequence[Path]) -> None:
        self._attempt = attempt
        self._directories = list(directories)
        self._untried: list[Path] | None = None
        self._current: Segment | None = None

    def append(self, data: pa.Buffer, align_at: int) -> tuple[Segment, int]:
        """The file that took `data`, and where in it. SpillDiskFull when no directory has room."""
        if self._untried is None:
            # The emptiest comes first when this attempt needs one, which many never do.
            self._untried = sorted(self._directories, key=free_bytes)
        cause: OSError | None = None
        while self._current is not None or self._untried:
            segment = self._current or Segment(_unnamed(self._untried.pop()), in_memory=False)
            try:
                start = segment.append(data, align_at)
            except OSError as error:
                if not is_full(error):
                    raise
                cause = error
                # A file with something in it belongs to the attempt; an empty one to nobody.
                if segment is not self._current:
                    segment.close()
                self._current = None
            else:
                self._current = segment
                return segment, start
        raise SpillDiskFull(self._attempt, self._directories, data.size) from cause


def _unnamed(directory: Path) -> int:
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    # A file system without O_TMPFILE: the name lives for the moment between two calls.
    descriptor, path = tempfile.mkstemp(prefix=".volley-", dir=directory)
    Path(path).unlink()
    return descriptor
