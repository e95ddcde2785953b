# SPDX-License-Identifier: Apache-2.0
"""The files that hold the output of an attempt. None has a name, so a killed process leaves nothing behind.

memory    memfd: its pages live as long as a descriptor or a mapping of them
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
    """Identifies an open file of a process: its descriptor there, and the file that it must refer to."""

    descriptor: int
    device: int
    inode: int
    in_memory: bool

    def open(self, pid: int | None = None) -> pa.NativeFile:
        """Open the file that process `pid` (None: this process) has open: mapped if in memory, otherwise for reading.

        Raises OSError if the process has closed it or we lack permission.
        """
        descriptor = os.open(f"/proc/{pid or 'self'}/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) != (self.device, self.inode):
                raise FileNotFoundError(errno.ENOENT, "the descriptor now refers to another file")
            path = f"/proc/self/fd/{descriptor}"
            if not self.in_memory:
                return pa.OSFile(path)
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise PermissionError(errno.EPERM, "the memory is not sealed")
            return pa.memory_map(path)
        finally:
            os.close(descriptor)


class Segment:
    """An open file that grows by `append` until it is sealed. One thread at a time uses it."""

    def __init__(self, descriptor: int, in_memory: bool) -> None:
        found = os.fstat(descriptor)
        self.name = SegmentName(descriptor, found.st_dev, found.st_ino, in_memory)
        self.size_bytes = 0
        self._open = True

    def append(self, data: pa.Buffer, align_at: int = 0) -> int:
        """Append `data` so that its byte `align_at` is at a multiple of ALIGNMENT_BYTES. Returns where it begins."""
        start = self.size_bytes + -(self.size_bytes + align_at) % ALIGNMENT_BYTES
        self.size_bytes = write_at(self.name.descriptor, data, start)
        return start

    def seal(self) -> None:
        """Forbid further writes. Memory becomes immutable for every process."""
        if self.name.in_memory:
            fcntl.fcntl(self.name.descriptor, fcntl.F_ADD_SEALS, _SEALS)

    def close(self) -> None:
        """Close the file. Its bytes are freed once the last reader has closed it too."""
        if self._open:
            self._open = False
            os.close(self.name.descriptor)


def memory_segment() -> Segment:
    return Segment(os.memfd_create("volley-shuffle", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), in_memory=True)


class SpillFiles:
    """The spill files of one attempt. When a directory is full, the next file goes to another one."""

    def __init__(self, attempt: AttemptId, directories: Sequence[Path]) -> None:
        self._attempt = attempt
        self._directories = list(directories)
        self._untried: list[Path] | None = None
        self._current: Segment | None = None

    def append(self, data: pa.Buffer, align_at: int) -> tuple[Segment, int]:
        """Append `data`. Returns the file and the position in it. SpillDiskFull if no directory has room."""
        if self._untried is None:
            # Look for the directory with the most space only now: many attempts never spill.
            self._untried = sorted(self._directories, key=free_bytes)
        cause: OSError | None = None
        while self._current is not None or self._untried:
            segment = self._current or Segment(_open_unnamed(self._untried.pop()), in_memory=False)
            try:
                start = segment.append(data, align_at)
            except OSError as error:
                # A file that has data belongs to the attempt; an empty one must be closed here.
                if segment is not self._current:
                    segment.close()
                if not is_full(error):
                    raise
                cause = error
                self._current = None
            else:
                self._current = segment
                return segment, start
        raise SpillDiskFull(self._attempt, self._directories, data.size) from cause


def _open_unnamed(directory: Path) -> int:
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    # File systems without O_TMPFILE: the name exists only between these two calls.
    descriptor, path = tempfile.mkstemp(prefix=".volley-", dir=directory)
    Path(path).unlink()
    return descriptor
