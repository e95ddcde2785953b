# SPDX-License-Identifier: Apache-2.0
"""What all sinks have in common whose output is chunks: batches are put together, sealed, and listed in indexes."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from volley.errors import BlockMissing
from volley.ids import AttemptId
from volley.shuffle.base import Block
from volley.shuffle.budget import MemoryBudget
from volley.shuffle.chunk_builder import CHUNK_BYTES, Gathering
from volley.shuffle.chunks import Chunk, Index, checksum_of
from volley.shuffle.segments import SegmentName


class ChunkedSink:
    """The chunks of an attempt, by partition. Its lock is held by whoever writes, commits, aborts or closes."""

    def __init__(
        self, attempt: AttemptId, partitions: int, budget: MemoryBudget, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self._attempt = attempt
        self._lock = threading.Lock()
        self._gathering = Gathering(partitions, budget, chunk_bytes)
        self._chunks: list[list[Chunk]] = [[] for _ in range(partitions)]
        self._is_committed = False
        # Set without the lock, it also ends whoever waits while holding it.
        self._closed = threading.Event()

    def _check_open(self) -> None:
        if self._closed.is_set() or self._is_committed:
            raise BlockMissing(f"{self._attempt}: its output is closed.", attempt=self._attempt)

    def _index(self, partition: int, files: Sequence[SegmentName] = ()) -> bytes:
        """The packed index of a partition whose chunks lie in `files`."""
        chunks = tuple(self._chunks[partition])
        return Index(tuple(files), chunks, self._gathering.schema if chunks else None).pack()

    def _block(
        self,
        partition: int,
        location: str,
        index: bytes,
        handle: str = "",
        *,
        spilled_bytes: int = 0,
        outlives_worker: bool = False,
    ) -> Block:
        return Block(
            self._attempt,
            partition,
            location,
            sum(chunk.rows for chunk in self._chunks[partition]),
            self._gathering.written_bytes[partition],
            checksum_of(index),
            handle,
            spilled_bytes,
            outlives_worker,
        )
