# SPDX-License-Identifier: Apache-2.0
"""Opens the files of a scan, on local disks and in object stores, in the version that was planned."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa

from volley.errors import DataError
from volley.plan.nodes import DataFile
from volley.storage.objects import ObjectName, OpenObject, open_object

# Each part of an object that is read is followed by a request that compares its version.
_STREAM_BYTES = 16 * 2**20


class Source(Protocol):
    """An open file."""

    @property
    def source(self) -> pa.NativeFile:
        """For readers of Arrow."""

    @property
    def size_bytes(self) -> int: ...

    def read(self, start: int, size_bytes: int) -> bytes:
        """These bytes, all of them unless the file ends before."""

    def confirm(self) -> None:
        """Raise DataError if what was read so far may be of several versions. Call it before giving out rows."""


def check_size(file: DataFile) -> None:
    """Raise DataError if a local file has another size than planned, and OSError if it is missing."""
    if os.stat(file.path).st_size != file.size_bytes:  # noqa: PTH116  # a Path costs more than the call
        raise DataError(f"{file.path} changed since it was planned.")


@contextmanager
def open_source(file: DataFile) -> Iterator[Source]:
    """Open a file. Raises DataError if it has changed, and OSError or DataError if it cannot be read."""
    if file.store:
        with open_remote(file) as opened:
            yield opened
        return
    check_size(file)
    with pa.OSFile(file.path, "rb") as source:
        yield _LocalFile(source, file.size_bytes)


@contextmanager
def open_remote(file: DataFile) -> Iterator[OpenObject]:
    """A file of an object store. Raises DataError if it has changed or cannot be read."""
    with open_object(object_name(file)) as opened:
        yield opened


def object_name(file: DataFile) -> ObjectName:
    """The object that a file of a store is."""
    return ObjectName(file.store, file.path, file.size_bytes, file.modified_ms)


class _LocalFile:
    """A `Source`. A local file that is replaced stays as it is for those who have it open."""

    def __init__(self, source: pa.NativeFile, size_bytes: int) -> None:
        self.source = source
        self.size_bytes = size_bytes

    def read(self, start: int, size_bytes: int) -> bytes:
        return bytes(self.source.read_at(size_bytes, start))

    def confirm(self) -> None:
        pass


class ConfirmedStream(io.RawIOBase):
    """The bytes of a source in order, as a Python file. Each read gives bytes of one version."""

    def __init__(self, source: Source, part_bytes: int = _STREAM_BYTES) -> None:
        super().__init__()
        self._source = source
        self._part_bytes = part_bytes
        self._position = 0
        self._held = b""
        self._held_at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._source.size_bytes}[whence]
        self._position = begin + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        start = self._position - self._held_at
        if not 0 <= start < len(self._held):
            self._held = self._source.read(self._position, self._part_bytes)
            self._source.confirm()
            self._held_at, start = self._position, 0
        data = self._held[start : start + len(buffer)]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
