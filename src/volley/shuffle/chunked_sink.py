# SPDX-License-Identifier: Apache-2.0
"""The base class of sinks that write chunks: they combine batches, seal them and list them in an index."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from volley.errors import BlockMissing
from volley.ids import AttemptId
from volley.shuffle.base import Block
from volley.shuffle.budget import MemoryBudget
from volley.shuffle.chunk_builder import CHUNK_BYTES, ChunkBuilder
from volley.shuffle.chunks import Chunk, Index, checksum_of
from volley.shuffle.segments import SegmentName


class ChunkedSink:
    """The chunks of an attempt, by partition. Writing, committing, aborting and closing all take its lock."""

    def __init__(
        self, attempt: AttemptId, partitions: int, budget: MemoryBudget, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self._attempt = attempt
        self._lock = threading.Lock()
        self._builder = ChunkBuilder(partitions, budget, chunk_bytes)
        self._chunks: list[list[Chunk]] = [[] for _ in range(partitions)]
        self._is_committed = False
        # It is set without taking the lock, to wake a writer that waits while holding it.
        self._closed = threading.Event()

    def _check_open(self) -> None:
        if self._closed.is_set() or self._is_committed:
            raise BlockMissing(f"{self._attempt}: its output is closed.", attempt=self._attempt)

    def _index(self, partition: int, files: Sequence[SegmentName] = ()) -> bytes:
        """Serialize the index of a partition whose chunks are in `files`."""
        chunks = tuple(self._chunks[partition])
        return Index(tuple(files), chunks, self._builder.schema if chunks else None).pack()

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
            self._builder.written_bytes[partition],
            checksum_of(index),
            handle,
            spilled_bytes,
            outlives_worker,
        )
