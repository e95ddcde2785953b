# SPDX-License-Identifier: Apache-2.0
"""Exchanged data in an object store, or in any other file system that all workers reach.

    <root>/<query>/lease                                      its driver lives          leases.py
    <root>/<query>/s<stage>e<epoch>/t<task>/a<attempt>/
        <random>.data                                         chunks, in the order in which they were sealed
        committed                                             the same <random>, and the index of every block:
                                                              written last, and once                  once.py

A block's name says where its index lies in `committed`; the checksum in the name covers the index, and the index every
chunk. An attempt without `committed` can be read by nobody.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import TypeVar

import pyarrow as pa

from volley.errors import BlockDamaged, BlockMissing
from volley.ids import AttemptId, QueryId
from volley.shuffle.base import Block
from volley.shuffle.budget import MemoryBudget
from volley.shuffle.chunk_builder import Gathering
from volley.shuffle.chunks import Chunk, Index, Unsealer, check_totals
from volley.shuffle.fetch import RetryPolicy
from volley.shuffle.leases import Leases
from volley.shuffle.objects import Folder
from volley.shuffle.objectsink import COMMITTED, ObjectSink, is_object, parts_of
from volley.shuffle.prefetch import ahead
from volley.shuffle.released import Released

Value = TypeVar("Value")

LEASE_SECONDS = 60.0
_READERS = 4
_BLOCKS_AHEAD = 8
_CHUNKS_AHEAD = 4


class ObjectStore:
    """A `SharedStore` in the folder `uri`."""

    is_blocking = True

    def __init__(
        self,
        uri: str,
        *,
        memory_limit_bytes: int,
        compression: str,
        retry_policy: RetryPolicy,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._folder = Folder.open(uri)
        self._budget = MemoryBudget(memory_limit_bytes, 1.0)
        self._codec = "lz4" if compression == "auto" else compression
        self._retry_policy = retry_policy
        self._leases = Leases(self._folder, lease_seconds, is_object)
        self._lock = threading.Lock()
        self._sinks: dict[AttemptId, ObjectSink] = {}
        self._over = Released()

    # --------------------------------------------------------------------------------------------------- queries

    def begin(self, query: QueryId) -> None:
        self._leases.begin(query)

    def leave(self, query: QueryId) -> None:
        with self._lock:
            self._over.add(query)
            mine = [attempt for attempt in self._sinks if attempt.query == query]
            sinks = [self._sinks.pop(attempt) for attempt in mine]
        for sink in sinks:
            sink.stop()

    def release(self, query: QueryId) -> None:
        self.leave(query)
        self._leases.end(query)
        self._folder.remove(self._folder.path(query.value))

    def close(self) -> None:
        with self._lock:
            queries = {attempt.query for attempt in self._sinks}
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
            if attempt.query in self._over:
                raise BlockMissing(f"{attempt}: its query is over.")
            if attempt in self._sinks:
                raise ValueError(f"{attempt} has begun its output already")
        self._leases.check(attempt.query)
        sink = ObjectSink(
            attempt,
            partitions,
            folder=self._folder,
            gathering=Gathering(partitions, self._budget),
            codec=self._codec,
            check=lambda: self._leases.check(attempt.query),
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
        packed = self._read(block, f"{attempt}/{COMMITTED}", start, size_bytes)
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
        if block.attempt.query in self._over:
            raise BlockMissing(f"{block}: its query is over.", attempt=block.attempt)
        return self._folder.path(*parts_of(block.attempt)), name, int(start), int(size_bytes)

    def _read(self, block: Block, path: str, start: int, size_bytes: int) -> pa.Buffer:
        try:
            data = patiently(self._retry_policy, partial(self._folder.read, path, start, size_bytes))
        except OSError as error:
            raise BlockMissing(
                f"{block} cannot be read from {self._folder.uri}: {error}.", attempt=block.attempt
            ) from error
        if data.size != size_bytes:
            raise BlockDamaged(f"{block}: {path} ends too early.", attempt=block.attempt)
        return data


def patiently(retry_policy: RetryPolicy, work: Callable[[], Value]) -> Value:
    """Try again what failed on the way; what is not there stays away."""
    failures = 0
    while True:
        try:
            return work()
        except FileNotFoundError:
            raise
        except OSError:
            failures += 1
            if failures > retry_policy.attempts:
                raise
        time.sleep(retry_policy.delay(failures))
