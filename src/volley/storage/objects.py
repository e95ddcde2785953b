# SPDX-License-Identifier: Apache-2.0
"""Objects, opened in the version that was planned and checked to stay in it.

A store has no lock on an object that is read, and a reader makes many requests. So the version is compared when an
object is opened, and again after each part that is read: rows of two versions are never mixed.

    open       the size and the time must be those of the plan
    read       by ranges; a short answer is an error
    confirm    the version is still the one that was opened; only then are rows of what was read given out

A small object is read whole by one request, and its version is compared again after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.fs as fs

from volley.errors import DataError
from volley.storage.registry import shared_stores

SMALL_BYTES = 2 * 2**20
"""An object up to this size is read whole: a request takes longer than its bytes."""


# When an object was last changed. Releases of the connectors for Google's service differ in which they take.
_TIMES = ("Last-Modified", "updated", "timeCreated")


@dataclass(frozen=True)
class ObjectName:
    """An object as planned. `path` is `s3a://bucket/key` or `abfss://container@account/key`, not encoded."""

    store: str
    path: str
    size_bytes: int
    modified_ms: int

    @property
    def key(self) -> str:
        """The bucket, or the container, and the key."""
        place, _, key = self.path.partition("://")[2].partition("/")
        return f"{place.partition('@')[0]}/{key}"


class OpenObject:
    """An opened object. Several threads may read it."""

    def __init__(self, name: ObjectName, files: fs.FileSystem, source: pa.NativeFile, version: str) -> None:
        self.name = name
        self.version = version
        """Differs for every content of the object."""
        # Its requests name the version: they fail if the object has been replaced.
        self._is_pinned = isinstance(files, fs.GcsFileSystem)
        self.source = source
        """For readers of Arrow, which read ranges of it concurrently."""
        self._files = files
        self._is_whole = False

    @property
    def size_bytes(self) -> int:
        return self.name.size_bytes

    def read_whole(self) -> None:
        """Read the content by one request. Raises DataError if the object has been replaced since it was opened."""
        content = self.read(0, self.name.size_bytes)
        self.confirm()
        self.source, self._is_whole = pa.BufferReader(content), True

    def read(self, start: int, size_bytes: int) -> bytes:
        """These bytes, all of them unless the object ends before."""
        wanted = max(0, min(size_bytes, self.name.size_bytes - start))
        data: bytes = self.source.read_at(wanted, start)
        if len(data) != wanted:
            raise OSError(f"{len(data)} of {wanted} bytes arrived")
        return data

    def confirm(self) -> None:
        """Raise DataError if the object has been replaced since it was opened."""
        if not self._is_whole and not self._is_pinned and _version(self._files, self.name)[1] != self.version:
            raise DataError(f"{self.name.path} changed while it was read.")


@contextmanager
def open_object(name: ObjectName) -> Iterator[OpenObject]:
    """Open an object. Raises DataError if it is not the planned one, or cannot be read."""
    try:
        files = shared_stores().file_system(name.store)
        source, version = _version(files, name)
        with source:
            opened = OpenObject(name, files, source, version)
            if name.size_bytes <= SMALL_BYTES:
                opened.read_whole()
            yield opened
    except (OSError, pa.ArrowException) as error:
        # Without the cause, which may quote what the redaction removes.
        text = shared_stores().redact(name.store, str(error))
        raise DataError(f"{name.path} cannot be read: {text}") from None


def object_version(name: ObjectName) -> str:
    """The version of an object: its ETag, if the store has one. Raises DataError if it is not the planned one."""
    try:
        source, version = _version(shared_stores().file_system(name.store), name)
        source.close()
    except (OSError, pa.ArrowException) as error:
        text = shared_stores().redact(name.store, str(error))
        raise DataError(f"{name.path} cannot be read: {text}") from None
    return version


def _version(files: fs.FileSystem, name: ObjectName) -> tuple[pa.NativeFile, str]:
    """The object as it is now. Opening one asks the store for its metadata."""
    if isinstance(files, fs.PyFileSystem):
        return _file_version(files, name)
    source = files.open_input_file(name.key)
    found = {key: value.decode() for key, value in source.metadata().items()}
    if source.size() != name.size_bytes:
        raise DataError(f"{name.path} changed: {name.size_bytes} bytes when planned, {source.size()} now.")
    if found.get("Content-Encoding") == "gzip" and "generation" in found:
        # Google's service gives the decoded content, of another size, and its connector refuses such objects.
        raise DataError(f"{name.path} is encoded as gzip.")
    times = [found[key] for key in _TIMES if found.get(key)]
    if times and name.modified_ms and name.modified_ms // 1000 not in map(_seconds, times):
        raise DataError(f"{name.path} changed since it was planned.")
    return source, found.get("ETag") or found.get("generation") or next(iter(times), "")


def _file_version(files: fs.PyFileSystem, name: ObjectName) -> tuple[pa.NativeFile, str]:
    """The file as it is now, in a file system that tells the size and the time of a file apart from opening it."""
    (found,) = files.get_file_info([name.path])
    is_other = name.modified_ms and found.mtime_ns != 1_000_000 * name.modified_ms
    if found.size != name.size_bytes or is_other:
        raise DataError(f"{name.path} changed since it was planned.")
    return files.open_input_file(name.path), str(found.mtime_ns)


def _seconds(modified: str) -> int:
    return int(datetime.fromisoformat(modified.replace("Z", "+00:00")).timestamp())
