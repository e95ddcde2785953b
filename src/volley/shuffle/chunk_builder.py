# SPDX-License-Identifier: Apache-2.0
"""Combines the small batches of an operator into batches that are large enough for a chunk, by partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from volley.batches import slice_batch
from volley.shuffle.budget import MemoryBudget
from volley.shuffle.chunks import compact, compact_views

# Readers are twice as fast on batches of this size as on those that operators produce (8,192 rows).
CHUNK_ROWS = 128 * 1024
CHUNK_BYTES = 4 * 2**20
# Limits for the rows that an attempt buffers, over all its partitions. The second applies when the budget is exhausted:
# buffering even less would make chunks so small that they cost more memory than they free.
_WAITING_BYTES = 64 * 2**20
_LEAST_WAITING_BYTES = 2**20


@dataclass
class _Waiting:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0


class ChunkBuilder:
    """Buffers the rows of all partitions of one attempt. Counts against `budget`. One thread at a time uses it."""

    def __init__(self, partitions: int, budget: MemoryBudget, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._budget = budget
        self._chunk_bytes = chunk_bytes
        self._partitions = [_Waiting() for _ in range(partitions)]
        self.schema: pa.Schema | None = None
        self.waiting_bytes = 0
        self.written_bytes = [0] * partitions
        """Uncompressed bytes written to each partition."""

    def add(self, partition: int, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        """Buffer a batch. Returns the batches that are to become chunks now, with their partitions."""
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

    def flush(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield everything that is still buffered."""
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
        # The caller counts it where it puts it.
        self.waiting_bytes -= waiting.size_bytes
        self._budget.free(waiting.size_bytes)
        self._partitions[partition] = _Waiting()
        parts = list(slice_batch(whole, self._chunk_bytes))
        # Slicing a view column keeps references to the bytes of the whole column.
        return [(partition, part if len(parts) == 1 else compact_views(part)) for part in parts]

    def _limit(self) -> int:
        if self._budget.is_full:
            return _LEAST_WAITING_BYTES
        return max(_LEAST_WAITING_BYTES, min(_WAITING_BYTES, self._budget.limit_bytes // 4))
