# SPDX-License-Identifier: Apache-2.0
"""Exchanged data in an object store, or in any other file system that all workers reach.

    <root>/<query>/lease                                      renewed by the driver (leases.py)
    <root>/checkpoints/                                       which stages stay after that (object_checkpoints.py)
    <root>/<query>/s<stage>e<epoch>/t<task>/a<attempt>/
        <random>.data                                         chunks, in the order in which they were sealed
        committed                                             the same <random> and the index of every block:
                                                              written last, and once (conditional_put.py)

The name of a block says where its index is in `committed`. The checksum in the name covers the index, and the index
covers every chunk. An attempt without `committed` cannot be read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import TypeVar

import pyarrow as pa

from volley.errors import BlockDamaged, BlockMissing
from volley.events import Distance
from volley.fetch_counters import FetchCounters, current_fetch_counters
from volley.ids import AttemptId, QueryId
from volley.rpc.shuffle_messages import CheckpointInfo, FindStage, KeepStage
from volley.shuffle.active_queries import ActiveQueries
from volley.shuffle.base import Block
from volley.shuffle.budget import MemoryBudget
from volley.shuffle.chunks import Chunk, Index, Unsealer, check_totals
from volley.shuffle.config import RetryPolicy, ShuffleConfig
from volley.shuffle.leases import Leases
from volley.shuffle.location import Holder
from volley.shuffle.object_checkpoints import ObjectCheckpoints
from volley.shuffle.object_sink import COMMITTED, ObjectSink, folders_of, is_object
from volley.shuffle.objects import Folder
from volley.shuffle.prefetch import prefetch

Value = TypeVar("Value")

LEASE_SECONDS = 60.0
_READERS = 4
_BLOCKS_AHEAD = 8
_CHUNKS_AHEAD = 4


class ObjectStore:
    """A `SharedStore` in the folder that `config.store` names."""

    is_blocking = True

    def __init__(
        self, config: ShuffleConfig, *, memory_limit_bytes: int, lease_seconds: float = LEASE_SECONDS
    ) -> None:
        self._config = config
        self._folder = Folder.open(config.store)
        self._budget = MemoryBudget(memory_limit_bytes)
        self._checkpoints = ObjectCheckpoints(self._folder)
        self._leases = Leases(self._folder, lease_seconds, is_object, self._checkpoints.kept_stages)
        self._active: ActiveQueries[ObjectSink, Holder] = ActiveQueries()
        # The queries of this driver of which stages are kept.
        self._kept: set[QueryId] = set()

    # --------------------------------------------------------------------------------------------------- queries

    def begin(self, query: QueryId) -> None:
        self._leases.begin(query)

    def leave(self, query: QueryId) -> None:
        for sink in self._active.end(query):
            sink.stop()

    def release(self, query: QueryId) -> None:
        self.leave(query)
        self._leases.end(query)
        if query in self._kept:
            self._kept.discard(query)
            self._leases.remove(query.value)
        else:
            self._folder.remove(self._folder.path(query.value))

    @property
    def leased_queries(self) -> frozenset[QueryId]:
        """The queries whose leases this store renews."""
        return frozenset(self._leases.queries)

    def close(self) -> None:
        for query in self._active.queries:
            self.leave(query)
        for query in self._leases.queries:
            self.release(query)
        self._leases.stop_renewal()

    @property
    def held_bytes(self) -> int:
        """Bytes that this process has written."""
        return sum(sink.held_bytes for sink in self._active.sinks())

    # ----------------------------------------------------------------------------------------------- checkpoints

    def keep_stage(self, stage: KeepStage, locations: Collection[str]) -> None:
        # First: it must not be forgotten if this fails half-way.
        self._kept.add(stage.attempts[0].query)
        self._checkpoints.keep(stage)

    def find_stage(self, wanted: FindStage) -> bytes | None:
        return self._checkpoints.find(wanted)

    def checkpoints(self) -> tuple[CheckpointInfo, ...]:
        return self._checkpoints.list()

    def drop_checkpoint(self, checkpoint: str) -> bool:
        queries = self._checkpoints.drop(checkpoint)
        for query in queries:
            self._leases.remove_if_over(query)
        return bool(queries)

    # --------------------------------------------------------------------------------------------------- writing

    def sink(self, attempt: AttemptId, partitions: int) -> ObjectSink:
        sink = self._active.open_sink(
            attempt,
            lambda: ObjectSink(
                attempt,
                partitions,
                folder=self._folder,
                budget=self._budget,
                codec=self._config.codec,
                check=lambda: self._leases.check(attempt.query),
            ),
        )
        try:
            self._leases.check(attempt.query)
        except BaseException:
            self._active.forget_sink(attempt)
            raise
        return sink

    # --------------------------------------------------------------------------------------------------- reading

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        return self.read_many((block,))

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        pool = ThreadPoolExecutor(_READERS, thread_name_prefix="volley-objects")
        counters = current_fetch_counters()
        try:
            works = (partial(self._open_block, block, counters) for block in blocks)
            for block, index, first in prefetch(pool, works, _BLOCKS_AHEAD):
                rest = (partial(self._chunk, block, chunk, counters) for chunk in index.chunks[len(first) :])
                unsealer = Unsealer(block, index)
                for number, data in enumerate(chain(first, prefetch(pool, rest, _CHUNKS_AHEAD))):
                    batch = unsealer.unseal(number, data)
                    counters.count_data(Distance.REMOTE, batch.nbytes, data.size)
                    yield batch
        finally:
            pool.shutdown(cancel_futures=True)

    def _open_block(self, block: Block, counters: FetchCounters) -> tuple[Block, Index, list[pa.Buffer]]:
        """Read the index of a block and, if there is only one, its chunk."""
        attempt, _, start, size_bytes = self._place(block)
        packed = self._read(block, f"{attempt}/{COMMITTED}", start, size_bytes, counters)
        index = Index.unpack(packed, block)
        check_totals(block, index)
        alone = index.chunks if len(index.chunks) == 1 else ()
        return block, index, [self._chunk(block, chunk, counters) for chunk in alone]

    def _chunk(self, block: Block, chunk: Chunk, counters: FetchCounters) -> pa.Buffer:
        return self._read(block, self._data(block), chunk.start, chunk.size_bytes, counters)

    def _data(self, block: Block) -> str:
        attempt, name, _, _ = self._place(block)
        return f"{attempt}/{name}.data"

    def _place(self, block: Block) -> tuple[str, str, int, int]:
        """The attempt's folder, the name of its data object, and the position and size of the index."""
        name, _, rest = block.handle.partition(":")
        start, _, size_bytes = rest.partition(":")
        if block.location != self._folder.uri or not size_bytes.isdecimal():
            raise BlockMissing(f"{block} is not in {self._folder.uri}.", attempt=block.attempt)
        if self._active.is_over(block.attempt.query):
            raise BlockMissing(f"{block}: its query is over.", attempt=block.attempt)
        return self._folder.path(*folders_of(block.attempt)), name, int(start), int(size_bytes)

    def _read(
        self, block: Block, path: str, start: int, size_bytes: int, counters: FetchCounters
    ) -> pa.Buffer:
        asked = time.perf_counter()
        try:
            read = partial(self._folder.read, path, start, size_bytes)
            data = retry(self._config.retry, read, counters.count_retry)
            counters.count_request(time.perf_counter() - asked)
        except OSError as error:
            raise BlockMissing(
                f"{block} cannot be read from {self._folder.uri}: {error}.", attempt=block.attempt
            ) from error
        if data.size != size_bytes:
            raise BlockDamaged(f"{block}: {path} ends too early.", attempt=block.attempt)
        return data


def retry(
    retry_policy: RetryPolicy, work: Callable[[], Value], on_retry: Callable[[], None] = lambda: None
) -> Value:
    """Retry on I/O errors, but not if the object does not exist."""
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
        on_retry()
        time.sleep(retry_policy.delay(failures))
