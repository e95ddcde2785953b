# SPDX-License-Identifier: Apache-2.0
"""Exchanged data as references to batches in this process: nothing is copied, written or sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pyarrow as pa

from volley.ended_queries import EndedQueries
from volley.errors import BlockMissing
from volley.ids import AttemptId, QueryId
from volley.shuffle.base import Block, ShuffleSink


class MemoryStore:
    """A `ShuffleStore` whose blocks are lists of batches. `location` names its worker."""

    is_blocking = False

    def __init__(self, location: str) -> None:
        self._location = location
        self._lock = threading.Lock()
        self._open: dict[AttemptId, MemorySink] = {}
        self._committed: dict[tuple[AttemptId, int], tuple[pa.RecordBatch, ...]] = {}
        self._bytes: dict[AttemptId, int] = {}
        self._released = EndedQueries()

    def sink(self, attempt: AttemptId, partitions: int) -> ShuffleSink:
        with self._lock:
            if attempt.query in self._released:
                raise BlockMissing(f"{attempt}: its query is over.")
            if attempt in self._bytes:
                raise ValueError(f"{attempt} already has a sink")
            self._bytes[attempt] = 0
            sink = self._open[attempt] = MemorySink(self, attempt, partitions)
            return sink

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        with self._lock:
            batches = self._committed.get((block.attempt, block.partition))
        if batches is None:
            raise BlockMissing(f"partition {block.partition} of {block.attempt} is not on {self._location}.")
        rows = sum(batch.num_rows for batch in batches)
        if rows != block.rows:
            raise BlockMissing(
                f"partition {block.partition} of {block.attempt} has {rows} rows instead of {block.rows}."
            )
        return iter(batches)

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        for block in blocks:
            yield from self.read(block)

    def release(self, query: QueryId) -> None:
        with self._lock:
            self._released.add(query)
            for attempt in [attempt for attempt in self._bytes if attempt.query == query]:
                self._forget(attempt)

    @property
    def held_bytes(self) -> int:
        with self._lock:
            return sum(self._bytes.values())

    def _grow(self, attempt: AttemptId, size_bytes: int) -> None:
        with self._lock:
            if attempt not in self._open:
                raise BlockMissing(f"{attempt}: its output is closed.")
            self._bytes[attempt] += size_bytes

    def _commit(self, attempt: AttemptId, partitions: list[list[pa.RecordBatch]]) -> tuple[Block, ...]:
        with self._lock:
            if self._open.pop(attempt, None) is None:
                raise BlockMissing(f"{attempt}: its output is closed.")
            for partition, batches in enumerate(partitions):
                self._committed[attempt, partition] = tuple(batches)
        return tuple(
            Block(attempt, partition, self._location, _rows(batches), _size_bytes(batches))
            for partition, batches in enumerate(partitions)
        )

    def _abort(self, attempt: AttemptId) -> None:
        with self._lock:
            if attempt in self._open:
                self._forget(attempt)

    def _forget(self, attempt: AttemptId) -> None:
        self._open.pop(attempt, None)
        self._bytes.pop(attempt, None)
        for key in [key for key in self._committed if key[0] == attempt]:
            del self._committed[key]


class MemorySink:
    def __init__(self, store: MemoryStore, attempt: AttemptId, partitions: int) -> None:
        self._store = store
        self._attempt = attempt
        self._partitions: list[list[pa.RecordBatch]] = [[] for _ in range(partitions)]

    def write(self, partition: int, batch: pa.RecordBatch) -> None:
        self._store._grow(self._attempt, batch.nbytes)
        self._partitions[partition].append(batch)

    def commit(self) -> tuple[Block, ...]:
        return self._store._commit(self._attempt, self._partitions)

    def abort(self) -> None:
        self._store._abort(self._attempt)
        self._partitions = [[] for _ in self._partitions]


def _rows(batches: list[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def _size_bytes(batches: list[pa.RecordBatch]) -> int:
    return sum(batch.nbytes for batch in batches)
