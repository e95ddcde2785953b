# SPDX-License-Identifier: Apache-2.0
"""Batches of an operator on their way to become chunks: those of one partition are put together until they suffice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from volley.batches import slices
from volley.shuffle.budget import MemoryBudget
from volley.shuffle.chunks import compact, without_views

# Readers are twice as fast on batches of this size as on those of an operator (8,192 rows).
CHUNK_ROWS = 128 * 1024
CHUNK_BYTES = 4 * 2**20
# What may wait, over all partitions of an attempt, for enough rows to make a chunk; and what may wait even when there
# is no memory left, because chunks of a few rows would cost more than they save.
_WAITING_BYTES = 64 * 2**20
_LEAST_WAITING_BYTES = 2**20


@dataclass
class _Waiting:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0


class Gathering:
    """What waits, of all partitions of one attempt. Counts against `budget`. Used by one thread at a time."""

    def __init__(self, partitions: int, budget: MemoryBudget, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._budget = budget
        self._chunk_bytes = chunk_bytes
        self._partitions = [_Waiting() for _ in range(partitions)]
        self.schema: pa.Schema | None = None
        self.waiting_bytes = 0
        self.written_bytes = [0] * partitions
        """What was written to each partition, as it was in memory."""

    def add(self, partition: int, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        """The batches, with their partitions, that are to become chunks now."""
        if not batch.num_rows:
            return []
        self.schema = self.schema or batch.schema
        batch = compact(batch)
        waiting = self._partitions[partition]
        waiting.batches.append(batch)
        waiting.rows += batch.num_rows
        waiting.size_bytes += batch.nbytes
        self.written_bytes[partition] += batch.nbytes
        self.waiting_bytes += batch.nbytes
        self._budget.hold(batch.nbytes)
        ready = []
        if waiting.rows >= CHUNK_ROWS or waiting.size_bytes >= self._chunk_bytes:
            ready += self._take(partition)
        while self.waiting_bytes > self._limit():
            ready += self._take(max(self._numbers(), key=lambda number: self._partitions[number].size_bytes))
        return ready

    def rest(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """All that still waits."""
        for number in self._numbers():
            yield from self._take(number)

    def clear(self) -> None:
        self._budget.free(self.waiting_bytes)
        self.waiting_bytes = 0
        self._partitions = []

    def _numbers(self) -> range:
        return range(len(self._partitions))

    def _take(self, partition: int) -> list[tuple[int, pa.RecordBatch]]:
        waiting = self._partitions[partition]
        if not waiting.batches:
            return []
        whole = pa.concat_batches(waiting.batches)
        # Whoever takes it counts it where it goes.
        self.waiting_bytes -= waiting.size_bytes
        self._budget.free(waiting.size_bytes)
        self._partitions[partition] = _Waiting()
        parts = list(slices(whole, self._chunk_bytes))
        # A slice of views still points to the bytes of the whole.
        return [(partition, part if len(parts) == 1 else without_views(part)) for part in parts]

    def _limit(self) -> int:
        if self._budget.is_full:
            return _LEAST_WAITING_BYTES
        return max(_LEAST_WAITING_BYTES, min(_WAITING_BYTES, self._budget.limit_bytes // 4))
