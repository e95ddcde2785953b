# SPDX-License-Identifier: Apache-2.0
"""Keeps parts of objects on the local disk, for queries that read the same parts again.

    first time     a query reads parts of an object as a stream, which is noted
    second time    the same parts are fetched into a file without a name, at their places in the object
    from then on   a query reads that file, after one request for the version of the object

What is read once is never written to the disk, and neither is a table that is larger than the cache: the notes of its
first objects are forgotten before its last ones are read.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from volley.errors import DataError
from volley.process.runtime import Phase, Shared
from volley.storage.objects import ObjectName, OpenObject, object_version, open_object

Range = tuple[int, int]
"""Where a part of an object begins, and where it ends."""

# Each file that is kept takes a descriptor.
_MOST_FILES = 256
_MOST_NOTED = 4_096
# For each object that is fetched; scans fetch several at a time.
_REQUESTS = 4
# A request takes as long as so many bytes, and one for more of them is divided.
_REQUEST_BYTES = 256 * 2**10
_MOST_REQUEST_BYTES = 16 * 2**20
# A file without a name has a path only here.
_DESCRIPTORS = Path("/proc/self/fd")


@dataclass
class _Object:
    """An object of which parts were read. `file` has those in `held`, and holes elsewhere."""

    version: str
    noted: set[Range] = field(default_factory=set)
    held: set[Range] = field(default_factory=set)
    file: IO[bytes] | None = None
    # That of the file, whatever is added to it: readers keep footers by path and time.
    stamp_ns: int = field(default_factory=time.time_ns)
    users: int = 0
    is_dropped: bool = False
    filling: threading.Lock = field(default_factory=threading.Lock)

    @property
    def noted_bytes(self) -> int:
        return sum(end - start for start, end in self.noted)


class ObjectCache:
    """Notes and files, of those objects that were used last. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: OrderedDict[tuple[str, str], _Object] = OrderedDict()
        self._noted_bytes = 0

    @property
    def held_bytes(self) -> int:
        """The bytes on the disk."""
        with self._lock:
            return sum(end - start for found in self._objects.values() for start, end in found.held)

    def note(self, opened: OpenObject, ranges: Iterable[Range], most_bytes: int) -> None:
        """Remember that these parts were read. The cache may hold `most_bytes`."""
        key = (opened.name.store, opened.name.path)
        with self._lock:
            found = self._objects.get(key)
            if found is not None and found.version != opened.version:
                self._drop(key)
                found = None
            if found is None:
                found = self._objects[key] = _Object(opened.version)
            for part in set(ranges) - found.noted:
                found.noted.add(part)
                self._noted_bytes += part[1] - part[0]
            self._objects.move_to_end(key)
            while self._noted_bytes > most_bytes or len(self._objects) > _MOST_NOTED:
                self._drop(next(iter(self._objects)))

    def noted_version(self, name: ObjectName) -> str | None:
        """The version of an object of which parts were read; None if none were."""
        with self._lock:
            found = self._objects.get((name.store, name.path))
            return found.version if found is not None else None

    def has_noted(self, name: ObjectName, ranges: Iterable[Range]) -> bool:
        """Whether all of these parts were read before."""
        with self._lock:
            found = self._objects.get((name.store, name.path))
            return found is not None and found.noted.issuperset(ranges)

    @contextmanager
    def hold(self, name: ObjectName, ranges: frozenset[Range]) -> Iterator[str | None]:
        """The path of a file that has these parts at their places.

        None if they have not been noted for this version, if there is no room, or if this system has no such paths.
        Raises DataError if the object is not as planned, or cannot be read.
        """
        version = object_version(name)
        found = self._use(name, version, ranges)
        if found is None:
            yield None
            return
        try:
            yield self._fill(name, found, ranges)
        finally:
            with self._lock:
                found.users -= 1
                _close_unused(found)

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            while self._objects:
                self._drop(next(iter(self._objects)))

    def _use(self, name: ObjectName, version: str, ranges: frozenset[Range]) -> _Object | None:
        key = (name.store, name.path)
        with self._lock:
            found = self._objects.get(key)
            if found is None or not found.noted.issuperset(ranges) or not _DESCRIPTORS.is_dir():
                return None
            if found.version != version:
                self._drop(key)
                return None
            if found.file is None:
                if sum(other.file is not None for other in self._objects.values()) >= _MOST_FILES:
                    return None
                try:
                    found.file = tempfile.TemporaryFile(prefix="volley-object-")  # noqa: SIM115 - closed when dropped
                except OSError:
                    return None
            self._objects.move_to_end(key)
            found.users += 1
            return found

    def _fill(self, name: ObjectName, found: _Object, ranges: frozenset[Range]) -> str | None:
        assert found.file is not None
        descriptor = found.file.fileno()
        with found.filling:
            missing = ranges - found.held
            if missing:
                try:
                    os.truncate(descriptor, name.size_bytes)
                    _fetch(name, found.version, descriptor, missing)
                except _DiskFull:
                    return None
                os.utime(descriptor, ns=(found.stamp_ns, found.stamp_ns))
                with self._lock:
                    found.held |= missing
        return str(_DESCRIPTORS / str(descriptor))

    def _drop(self, key: tuple[str, str]) -> None:
        found = self._objects.pop(key)
        self._noted_bytes -= found.noted_bytes
        found.is_dropped = True
        _close_unused(found)


class _DiskFull(Exception):
    """There is no room on the local disk."""


def _close_unused(found: _Object) -> None:
    if found.is_dropped and not found.users and found.file is not None:
        found.file.close()


def _fetch(name: ObjectName, version: str, descriptor: int, ranges: Iterable[Range]) -> None:
    """Write parts of an object to a file. Raises DataError if it is not in this version."""
    with open_object(name) as opened, ThreadPoolExecutor(_REQUESTS, "volley-fetch") as pool:
        if opened.version != version:
            raise DataError(f"{name.path} changed while it was read.")
        for _ in pool.map(lambda part: _copy(opened, descriptor, *part), _requests(sorted(ranges))):
            pass
        opened.confirm()


def _copy(opened: OpenObject, descriptor: int, start: int, end: int) -> None:
    data = opened.read(start, end - start)
    try:
        os.pwrite(descriptor, data, start)
    except OSError as error:
        raise _DiskFull from error


def _requests(ranges: Sequence[Range]) -> list[Range]:
    """What to ask for, to get these parts with few requests."""
    found: list[Range] = []
    for start, end in ranges:
        if found and start - found[-1][1] <= _REQUEST_BYTES and end - found[-1][0] <= _MOST_REQUEST_BYTES:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
            continue
        found.extend(
            (place, min(place + _MOST_REQUEST_BYTES, end)) for place in range(start, end, _MOST_REQUEST_BYTES)
        )
    return found


_shared: Shared[None, ObjectCache] = Shared(Phase.FILES, close=ObjectCache.close)


def shared_object_cache() -> ObjectCache:
    """That of this process."""
    return _shared.get(None, ObjectCache)
