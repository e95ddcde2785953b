# SPDX-License-Identifier: Apache-2.0
"""Writes the output of one attempt to sealed files, in memory or on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from volley.errors import BlockMissing
from volley.ids import AttemptId
from volley.shuffle.base import Block
from volley.shuffle.budget import MemoryBudget
from volley.shuffle.chunked_sink import ChunkedSink
from volley.shuffle.chunks import Chunk, Index, seal
from volley.shuffle.local_blocks import Handle
from volley.shuffle.segments import Segment, SpillFiles, memory_segment


@dataclass(frozen=True)
class Committed:
    """A block and the bytes of its index."""

    block: Block
    index: bytes


class WorkerSink(ChunkedSink):
    """A `ShuffleSink` that owns the files of its attempt until `close`.

    Chunks go to memory as long as the budget admits them. From the first refusal on, all go to disk.
    """

    def __init__(
        self,
        attempt: AttemptId,
        partitions: int,
        *,
        location: str,
        budget: MemoryBudget,
        directories: Sequence[Path],
        disk_codec: str,
        spill_threshold: float,
        chunk_bytes: int,
        on_abort: Callable[[AttemptId], None],
    ) -> None:
        super().__init__(attempt, partitions, budget, chunk_bytes)
        self._location = location
        self._budget = budget
        self._disk_codec = disk_codec
        self._spill_threshold = spill_threshold
        self._on_abort = on_abort
        self._memory: Segment | None = None
        self._memory_bytes = 0
        self._to_disk = False
        self._spill = SpillFiles(attempt, directories)
        self._segments: list[Segment] = []
        self._committed: tuple[Committed, ...] = ()

    # ---------------------------------------------------------------------------------------------- for the writer

    def write(self, partition: int, batch: pa.RecordBatch) -> None:
        with self._lock:
            self._check_open()
            for number, ready in self._builder.add(partition, batch):
                self._chunks[number].append(self._place(ready))

    def commit(self) -> tuple[Block, ...]:
        with self._lock:
            self._check_open()
            for number, ready in self._builder.flush():
                self._chunks[number].append(self._place(ready))
            self._committed = tuple(self._finish_block(number) for number in range(len(self._chunks)))
            self._is_committed = True
            for segment in self._segments:
                segment.seal()
            return tuple(item.block for item in self._committed)

    def abort(self) -> None:
        with self._lock:
            if self._is_committed or self._closed.is_set():
                return
            self._free()
        self._on_abort(self._attempt)

    # ----------------------------------------------------------------------------------------------- for the store

    @property
    def memory_bytes(self) -> int:
        return self._memory_bytes + self._builder.waiting_bytes

    @property
    def spilled_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments if not segment.name.in_memory)

    def find_committed(self, block: Block) -> Committed:
        """Find a committed block. BlockMissing if there is none, or a different one, under this name."""
        with self._lock:
            if not 0 <= block.partition < len(self._committed):
                raise BlockMissing(f"{block} is not on {self._location}.", attempt=block.attempt)
            found = self._committed[block.partition]
            if not block.attempt.query.has_key_of(self._attempt.query):
                raise BlockMissing(f"{block} is not on {self._location}.", attempt=block.attempt)
            if found.block != block:
                raise BlockMissing(
                    f"{block} on {self._location} has {found.block.rows} rows and checksum {found.block.checksum:x}"
                    f" instead of {block.rows} and {block.checksum:x}.",
                    attempt=block.attempt,
                )
            return found

    def open(self, index: Index) -> list[pa.NativeFile]:
        """Open the files of a block for one reader."""
        with self._lock:
            if self._closed.is_set():
                raise BlockMissing(
                    f"{self._attempt} is not on {self._location} any more.", attempt=self._attempt
                )
            return [name.open() for name in index.files]

    def close(self) -> None:
        """Free everything. Readers keep the files that they have open."""
        with self._lock:
            self._free()

    # -------------------------------------------------------------------------------------------------- helpers

    def _place(self, batch: pa.RecordBatch) -> Chunk:
        size_bytes = pa.ipc.get_record_batch_size(batch)
        # A sink that began in memory may finish there.
        share = self._spill_threshold if self._memory is None else 1.0
        if not self._to_disk and self._budget.admit(size_bytes, share):
            self._memory_bytes += size_bytes
            sealed = seal(batch, "none")
        else:
            self._to_disk = True
            sealed = seal(batch, self._disk_codec)
        segment, start = self._append(sealed.data, sealed.body_at)
        return Chunk(self._segments.index(segment), start, sealed.data.size, batch.num_rows, sealed.checksum)

    def _append(self, data: pa.Buffer, align_at: int) -> tuple[Segment, int]:
        if self._to_disk:
            segment, start = self._spill.append(data, align_at)
        else:
            segment = self._memory = self._memory or memory_segment()
            if segment not in self._segments:
                self._segments.append(segment)
            start = segment.append(data, align_at)
        if segment not in self._segments:
            self._segments.append(segment)
        return segment, start

    def _finish_block(self, number: int) -> Committed:
        # The index is not counted against the budget: it is small compared with the rows.
        names = [segment.name for segment in self._segments]
        packed = self._index(number, names)
        segment, start = self._append(pa.py_buffer(packed), 0)
        handle = str(Handle(segment.name, start, len(packed)))
        spilled = sum(c.size_bytes for c in self._chunks[number] if not names[c.file].in_memory)
        return Committed(self._block(number, self._location, packed, handle, spilled_bytes=spilled), packed)

    def _free(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        for segment in self._segments:
            segment.close()
        self._builder.clear()
        self._budget.free(self._memory_bytes)
        self._memory_bytes = 0
        self._segments = []
        self._chunks = []
        self._committed = ()
