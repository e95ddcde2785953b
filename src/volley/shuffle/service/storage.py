# SPDX-License-Identifier: Apache-2.0
"""Stores the chunks of a server: in memory first, in files above the watermark and on commit.

    <directory>/<query>/s<stage>e<epoch>p<partition>.log       the chunks of all map tasks for one reader, merged

A chunk in memory may also be in a file; its memory can then be freed at any time. Files have names, so that a server
finds them after a crash. The journal says which of their bytes are valid.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from volley.ids import QueryId, StageId
from volley.rpc.shuffle_messages import ChunkPlace
from volley.shuffle.disk import free_bytes, is_full, write_at
from volley.shuffle.service.directories import sync_directory

_SYNCS = 8


class NoRoom(Exception):
    """No directory has room for a chunk."""


@dataclass(eq=False)
class Stored:
    """One chunk. `log` identifies the file that it belongs to."""

    log: tuple[StageId, int]
    size_bytes: int
    checksum: int
    data: pa.Buffer | None
    place: ChunkPlace | None = None


@dataclass
class _Log:
    path: Path
    size_bytes: int = 0
    stored: int = 0


@dataclass
class _OfQuery:
    logs: dict[tuple[StageId, int], _Log] = field(default_factory=dict)
    directories: set[Path] = field(default_factory=set)


class Storage:
    """May be used from any thread. Chunks are moved to files when more than the share `watermark` of memory is used.

    With `in_memory_commits` a commit does not write chunks to files; they are lost with the process.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        memory_limit_bytes: int,
        watermark: float = 0.8,
        in_memory_commits: bool = False,
    ) -> None:
        self.directories = tuple(directories)
        self.memory_limit_bytes = memory_limit_bytes
        self._watermark_bytes = int(memory_limit_bytes * watermark)
        self._in_memory_commits = in_memory_commits
        self._lock = threading.RLock()
        self._queries: dict[QueryId, _OfQuery] = {}
        # In order of arrival. Chunks that are also in a file can be dropped without writing.
        self._in_memory: OrderedDict[Stored, None] = OrderedDict()
        self._memory_bytes = 0
        self._reserved_bytes = 0
        self.disk_bytes = 0
        self.spilled_bytes = 0

    @property
    def memory_bytes(self) -> int:
        """Bytes in use and reserved."""
        return self._memory_bytes + self._reserved_bytes

    # ------------------------------------------------------------------------------------------------ room

    def reserve(self, size_bytes: int) -> bool:
        """Reserve room. False if there is none now; NoRoom if there will be none because files cannot grow."""
        with self._lock:
            if self.memory_bytes + size_bytes > self._watermark_bytes:
                self._make_room(max(0, self._watermark_bytes - size_bytes))
            # A chunk larger than the whole memory passes alone.
            if self._reserved_bytes and self.memory_bytes + size_bytes > self.memory_limit_bytes:
                return False
            self._reserved_bytes += size_bytes
            return True

    def unreserve(self, size_bytes: int) -> None:
        with self._lock:
            self._reserved_bytes -= size_bytes

    def _make_room(self, target_bytes: int) -> None:
        """Free memory until at most `target_bytes` are in use, or nothing is left to free."""
        while self._in_memory and self.memory_bytes > target_bytes:
            stored = next(iter(self._in_memory))
            if stored.place is None:
                self._write(stored)
                self.spilled_bytes += stored.size_bytes
            self._forget_memory(stored)

    # ---------------------------------------------------------------------------------------------- chunks

    def put(self, stage: StageId, partition: int, data: pa.Buffer, checksum: int) -> Stored:
        """Store a chunk in memory. Its room was reserved."""
        stored = Stored((stage, partition), data.size, checksum, data)
        with self._lock:
            self._reserved_bytes -= data.size
            self._memory_bytes += data.size
            self._in_memory[stored] = None
        return stored

    def read(self, stored: Stored) -> pa.Buffer:
        """The bytes of a chunk; OSError if they can no longer be read. Readers verify them."""
        with self._lock:
            data, place = stored.data, stored.place
        if data is not None:
            return data
        if place is None:
            raise FileNotFoundError(errno.ENOENT, "the chunk is gone")
        with pa.OSFile(place.file) as file:
            file.seek(place.start)
            return file.read_buffer(stored.size_bytes)

    def keep(self, chunks: Iterable[Stored]) -> None:
        """Make chunks survive a crash of the process or the machine, unless commits stay in memory."""
        if self._in_memory_commits:
            return
        with self._lock:
            wanted = list(chunks)
            for stored in wanted:
                if stored.place is None and stored.data is not None:
                    self._write(stored)
            paths = {Path(stored.place.file) for stored in wanted if stored.place}
        # Without the lock, so that other calls proceed. A file that is gone belongs to a query that is over.
        with suppress(FileNotFoundError):
            # In parallel: a file system commits its own journal once for all waiting syncs.
            with ThreadPoolExecutor(_SYNCS, thread_name_prefix="volley-sync") as threads:
                list(threads.map(_sync, paths))
            for directory in {path.parent for path in paths}:
                sync_directory(directory)
            for directory in {path.parent.parent for path in paths}:
                sync_directory(directory)

    def link(self, stored: Stored, query: QueryId) -> Stored:
        """A chunk of another query with the same bytes: a second name of its file. Stays when the first one goes."""
        with self._lock:
            if stored.place is None:
                if stored.data is None:
                    raise FileNotFoundError(errno.ENOENT, "the chunk is gone")
                self._write(stored)
            place = stored.place
            assert place is not None, "it was written"
            path = Path(place.file)
            folder = path.parent.parent / query.value
            folder.mkdir(mode=0o700, exist_ok=True)
            with suppress(FileExistsError):
                os.link(path, folder / path.name)
            stage, partition = stored.log
            return self.restore(
                replace(stage, query=query),
                partition,
                ChunkPlace(str(folder / path.name), place.start),
                stored.size_bytes,
                stored.checksum,
            )

    def drop(self, chunks: Iterable[Stored]) -> None:
        """Drop chunks. A file is removed with its last chunk."""
        with self._lock:
            for stored in chunks:
                self._forget_memory(stored)
                if stored.place is not None:
                    self._forget_place(stored)

    def drop_query(self, query: QueryId) -> None:
        """Remove the files of a query whose chunks were dropped."""
        with self._lock:
            for directory in self._queries.pop(query, _OfQuery()).directories:
                shutil.rmtree(directory / query.value, ignore_errors=True)

    # -------------------------------------------------------------------------------------------- recovery

    def restore(
        self, stage: StageId, partition: int, place: ChunkPlace, size_bytes: int, checksum: int
    ) -> Stored:
        """Register a chunk that is in a file according to the journal. Unregistered bytes are overwritten."""
        stored = Stored((stage, partition), size_bytes, checksum, None, place)
        path = Path(place.file)
        with self._lock:
            mine = self._queries.setdefault(stage.query, _OfQuery())
            mine.directories.add(path.parent.parent)
            log = mine.logs.setdefault((stage, partition), _Log(path))
            if log.path == path:
                log.size_bytes = max(log.size_bytes, place.start + size_bytes)
            log.stored += 1
            self.disk_bytes += size_bytes
        return stored

    def remove_unknown(self) -> None:
        """Remove the files of unknown queries, after all known chunks were restored."""
        with self._lock:
            for directory in self.directories:
                for path in directory.iterdir():
                    if path.is_dir() and QueryId(path.name) not in self._queries:
                        shutil.rmtree(path, ignore_errors=True)

    # --------------------------------------------------------------------------------------------- helpers

    def _write(self, stored: Stored) -> None:
        assert stored.data is not None
        stage, _ = stored.log
        mine = self._queries.setdefault(stage.query, _OfQuery())
        log = mine.logs.get(stored.log)
        cause: OSError | None = None
        tried: set[Path] = set()
        while True:
            if log is None:
                directory = self._emptiest(tried)
                if directory is None:
                    raise NoRoom(", ".join(map(str, self.directories))) from cause
                tried.add(directory)
                log = self._new_log(mine, stored.log, directory)
            try:
                _append(log, stored.data)
                break
            except OSError as error:
                if not is_full(error):
                    raise
                cause = error
                tried.add(log.path.parent.parent)
                log = None
        mine.logs[stored.log] = log
        start = log.size_bytes
        log.size_bytes += stored.size_bytes
        log.stored += 1
        self.disk_bytes += stored.size_bytes
        stored.place = ChunkPlace(str(log.path), start)

    def _new_log(self, mine: _OfQuery, key: tuple[StageId, int], directory: Path) -> _Log:
        stage, partition = key
        folder = directory / stage.query.value
        folder.mkdir(mode=0o700, exist_ok=True)
        mine.directories.add(directory)
        return _Log(folder / f"s{stage.stage}e{stage.epoch}p{partition}.log")

    def _emptiest(self, tried: set[Path]) -> Path | None:
        return max((path for path in self.directories if path not in tried), key=free_bytes, default=None)

    def _forget_memory(self, stored: Stored) -> None:
        if self._in_memory.pop(stored, self) is None:
            self._memory_bytes -= stored.size_bytes
            stored.data = None

    def _forget_place(self, stored: Stored) -> None:
        assert stored.place is not None
        self.disk_bytes -= stored.size_bytes
        mine = self._queries.get(stored.log[0].query)
        log = mine.logs.get(stored.log) if mine else None
        if mine and log and str(log.path) == stored.place.file:
            log.stored -= 1
            if not log.stored:
                del mine.logs[stored.log]
                log.path.unlink(missing_ok=True)
        stored.place = None


def _append(log: _Log, data: pa.Buffer) -> None:
    descriptor = os.open(log.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_at(descriptor, data, log.size_bytes)
    except OSError:
        # Free the space of the partial write.
        os.ftruncate(descriptor, log.size_bytes)
        raise
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
