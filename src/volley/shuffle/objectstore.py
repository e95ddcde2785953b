"""Exchanged data in an object store, or in any other file system that all workers reach.

    <root>/<query>/lease                                      its driver lives          leases.py
    <root>/<query>/s<stage>e<epoch>/t<task>/a<attempt>/
        <random>.data                                         chunks, in the order in which they were sealed
        committed                                             the index of every block: written last, and once

A block's name says where its index lies in `committed`; the checksum in the name covers the index, and the index every
chunk. An attempt without `committed` can be read by nobody.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TypeVar

import pyarrow as pa

from volley.errors import BlockDamaged, BlockMissing, ShuffleRefused
from volley.ids import AttemptId, QueryId
from volley.shuffle.ahead import ahead
from volley.shuffle.base import Block
from volley.shuffle.budget import MemoryBudget
from volley.shuffle.chunks import Chunk, Index, Unsealer, check_totals, checksum_of, seal
from volley.shuffle.fetch import Patience
from volley.shuffle.gather import Gathering
from volley.shuffle.leases import Leases
from volley.shuffle.objects import AlreadyThere, Folder
from volley.shuffle.released import Released

_log = logging.getLogger(__name__)
Value = TypeVar("Value")

LEASE_SECONDS = 60.0
_COMMITTED = "committed"
_READERS = 4
_BLOCKS_AHEAD = 8
_CHUNKS_AHEAD = 4


class ObjectStore:
    """A `SharedStore` in the folder `uri`."""

    waits = True

    def __init__(
        self,
        uri: str,
        *,
        memory_limit_bytes: int,
        compression: str,
        patience: Patience,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._folder = Folder.open(uri)
        self._budget = MemoryBudget(memory_limit_bytes, 1.0)
        self._codec = "lz4" if compression == "auto" else compression
        self._patience = patience
        self._leases = Leases(self._folder, lease_seconds)
        self._lock = threading.Lock()
        self._sinks: dict[AttemptId, ObjectSink] = {}
        self._over = Released()

    # --------------------------------------------------------------------------------------------------- queries

    def begin(self, query: QueryId) -> None:
        self._leases.begin(query)

    def leave(self, query: QueryId) -> None:
        with self._lock:
            self._over.add(query)
            mine = [attempt for attempt in self._sinks if _query(attempt) == query]
            sinks = [self._sinks.pop(attempt) for attempt in mine]
        for sink in sinks:
            sink.stop()

    def release(self, query: QueryId) -> None:
        self.leave(query)
        self._leases.end(query)
        self._folder.remove(self._folder.path(query.value))

    def close(self) -> None:
        with self._lock:
            queries = {_query(attempt) for attempt in self._sinks}
        for query in queries:
            self.leave(query)
        for query in self._leases.queries:
            self.release(query)

    @property
    def held_bytes(self) -> int:
        """What this process has written."""
        with self._lock:
            return sum(sink.held_bytes for sink in self._sinks.values())

    # --------------------------------------------------------------------------------------------------- writing

    def sink(self, attempt: AttemptId, partitions: int) -> ObjectSink:
        with self._lock:
            if _query(attempt) in self._over:
                raise BlockMissing(f"{attempt}: its query is over.")
            if attempt in self._sinks:
                raise ValueError(f"{attempt} has begun its output already")
        self._leases.check(_query(attempt))
        sink = ObjectSink(
            attempt,
            partitions,
            folder=self._folder,
            gathering=Gathering(partitions, self._budget),
            codec=self._codec,
            check=lambda: self._leases.check(_query(attempt)),
        )
        with self._lock:
            if self._sinks.setdefault(attempt, sink) is not sink:
                raise ValueError(f"{attempt} has begun its output already")
        return sink

    # --------------------------------------------------------------------------------------------------- reading

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        return self.read_many((block,))

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        pool = ThreadPoolExecutor(_READERS, thread_name_prefix="volley-objects")
        try:
            works = (partial(self._opened, block) for block in blocks)
            for block, index, first in ahead(pool, works, _BLOCKS_AHEAD):
                rest = (partial(self._chunk, block, chunk) for chunk in index.chunks[len(first) :])
                unsealer = Unsealer(block, index)
                for number, data in enumerate(chain(first, ahead(pool, rest, _CHUNKS_AHEAD))):
                    yield unsealer.unseal(number, data)
        finally:
            pool.shutdown(cancel_futures=True)

    def _opened(self, block: Block) -> tuple[Block, Index, list[pa.Buffer]]:
        """A block's index and, when there is but one, its chunk."""
        attempt, _, start, size_bytes = self._place(block)
        packed = self._read(block, f"{attempt}/{_COMMITTED}", start, size_bytes)
        index = Index.unpack(packed, block)
        check_totals(block, index)
        alone = index.chunks if len(index.chunks) == 1 else ()
        return block, index, [self._chunk(block, chunk) for chunk in alone]

    def _chunk(self, block: Block, chunk: Chunk) -> pa.Buffer:
        return self._read(block, self._data(block), chunk.start, chunk.size_bytes)

    def _data(self, block: Block) -> str:
        attempt, name, _, _ = self._place(block)
        return f"{attempt}/{name}.data"

    def _place(self, block: Block) -> tuple[str, str, int, int]:
        """The attempt's folder, the name of its data, and where its index lies."""
        name, _, rest = block.handle.partition(":")
        start, _, size_bytes = rest.partition(":")
        if block.location != self._folder.uri or not size_bytes.isdecimal():
            raise BlockMissing(f"{block} is not in {self._folder.uri}.", attempt=block.attempt)
        if _query(block.attempt) in self._over:
            raise BlockMissing(f"{block}: its query is over.", attempt=block.attempt)
        return self._folder.path(*_parts(block.attempt)), name, int(start), int(size_bytes)

    def _read(self, block: Block, path: str, start: int, size_bytes: int) -> pa.Buffer:
        try:
            data = patiently(self._patience, partial(self._folder.read, path, start, size_bytes))
        except OSError as error:
            raise BlockMissing(
                f"{block} cannot be read from {self._folder.uri}: {error}.", attempt=block.attempt
            ) from error
        if data.size != size_bytes:
            raise BlockDamaged(f"{block}: {path} ends too early.", attempt=block.attempt)
        return data


class ObjectSink:
    """A `ShuffleSink` whose chunks go into one object as they are sealed."""

    def __init__(
        self,
        attempt: AttemptId,
        partitions: int,
        *,
        folder: Folder,
        gathering: Gathering,
        codec: str,
        check: Callable[[], None],
    ) -> None:
        self._attempt = attempt
        self._folder = folder
        self._path = folder.path(*_parts(attempt))
        self._name = secrets.token_hex(8)
        self._gathering = gathering
        self._codec = codec
        self._check = check
        self._lock = threading.Lock()
        self._chunks: list[list[Chunk]] = [[] for _ in range(partitions)]
        self._stream: pa.NativeFile | None = None
        self._written_bytes = 0
        self._committed = False
        self._closed = False

    @property
    def held_bytes(self) -> int:
        return self._written_bytes + self._gathering.waiting_bytes

    def write(self, partition: int, batch: pa.RecordBatch) -> None:
        with self._lock:
            self._check_open()
            for number, ready in self._gathering.add(partition, batch):
                self._append(number, ready)

    def commit(self) -> tuple[Block, ...]:
        with self._lock:
            self._check_open()
            for number, ready in self._gathering.rest():
                self._append(number, ready)
            if self._stream is not None:
                self._stream.close()
            # Its query may have ended on other machines, where all that it had was removed.
            self._check()
            packed = [self._index(number) for number in range(len(self._chunks))]
            try:
                self._folder.write_once(f"{self._path}/{_COMMITTED}", b"".join(packed))
            except AlreadyThere:
                raise ShuffleRefused(
                    "SHUFFLE_COMMIT_LOST", f"{self._attempt} has been committed by another process."
                ) from None
            self._committed = True
            return tuple(self._blocks(packed))

    def abort(self) -> None:
        with self._lock:
            if self._committed or self._closed:
                return
            self._free()
            if self._written_bytes:
                # Best effort: the end of the query removes what is left.
                with suppress(OSError):
                    self._folder.files.delete_file(f"{self._path}/{self._name}.data")
            self._written_bytes = 0

    def stop(self) -> None:
        """Its query is over: whoever still writes is refused, and who has committed need not know."""
        with self._lock:
            self._free()

    def _check_open(self) -> None:
        if self._closed or self._committed:
            raise BlockMissing(f"{self._attempt}: its output is closed.")

    def _append(self, partition: int, batch: pa.RecordBatch) -> None:
        if self._stream is None:
            path = f"{self._path}/{self._name}.data"
            self._folder.make_parent(path)
            self._stream = self._folder.files.open_output_stream(path, compression=None)
        sealed = seal(batch, self._codec)
        self._stream.write(sealed.data)
        chunk = Chunk(0, self._written_bytes, sealed.data.size, batch.num_rows, sealed.checksum)
        self._written_bytes += sealed.data.size
        self._chunks[partition].append(chunk)

    def _index(self, partition: int) -> bytes:
        chunks = tuple(self._chunks[partition])
        return Index((), chunks, self._gathering.schema if chunks else None).pack()

    def _blocks(self, packed: Sequence[bytes]) -> Iterator[Block]:
        start = 0
        for number, index in enumerate(packed):
            yield Block(
                self._attempt,
                number,
                self._folder.uri,
                sum(chunk.rows for chunk in self._chunks[number]),
                self._gathering.written_bytes[number],
                checksum_of(index),
                f"{self._name}:{start}:{len(index)}",
                outlives_worker=True,
            )
            start += len(index)

    def _free(self) -> None:
        self._closed = True
        self._gathering.clear()
        if self._stream is not None:
            with suppress(OSError, pa.ArrowException):
                self._stream.close()


def patiently(patience: Patience, work: Callable[[], Value]) -> Value:
    """Try again what failed on the way; what is not there stays away."""
    failures = 0
    while True:
        try:
            return work()
        except FileNotFoundError:
            raise
        except OSError:
            failures += 1
            if failures > patience.attempts:
                raise
        time.sleep(patience.delay(failures))


def _parts(attempt: AttemptId) -> tuple[str, ...]:
    stage = attempt.task.stage
    return stage.query.value, f"s{stage.stage}e{stage.epoch}", f"t{attempt.task.task}", f"a{attempt.attempt}"


def _query(attempt: AttemptId) -> QueryId:
    return attempt.task.stage.query
