"""The output of one attempt on its way into sealed files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from volley.errors import BlockMissing
from volley.ids import AttemptId
from volley.shuffle.base import Block
from volley.shuffle.budget import MemoryBudget
from volley.shuffle.chunks import Chunk, Index, checksum_of, compact, seal, slices
from volley.shuffle.peers import Handle
from volley.shuffle.segments import Segment, SpillFiles, memory_segment

# Readers are twice as fast on batches of this size as on those of an operator (8,192 rows).
CHUNK_ROWS = 128 * 1024
CHUNK_BYTES = 4 * 2**20
# What may wait, over all partitions of an attempt, for enough rows to make a chunk; and what may wait even when there
# is no memory left, because chunks of a few rows would cost more than they save.
_WAITING_BYTES = 64 * 2**20
_LEAST_WAITING_BYTES = 2**20


@dataclass
class _Partition:
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_rows: int = 0
    waiting_bytes: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    size_bytes: int = 0


@dataclass(frozen=True)
class Committed:
    """A block and the bytes of its index."""

    block: Block
    index: bytes


class WorkerSink:
    """A `ShuffleSink`, and after its commit the owner of the attempt's files until `close`.

    Chunks go to memory while the budget admits them; from the first that it does not admit on, to disk.
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
        chunk_bytes: int,
        on_abort: Callable[[AttemptId], None],
    ) -> None:
        self._attempt = attempt
        self._location = location
        self._budget = budget
        self._disk_codec = disk_codec
        self._chunk_bytes = chunk_bytes
        self._on_abort = on_abort
        self._lock = threading.Lock()
        self._partitions = [_Partition() for _ in range(partitions)]
        self._schema: pa.Schema | None = None
        self._waiting_bytes = 0
        self._memory: Segment | None = None
        self._memory_bytes = 0
        self._to_disk = False
        self._spill = SpillFiles(attempt, directories)
        self._segments: list[Segment] = []
        self._committed: tuple[Committed, ...] | None = None
        self._closed = False

    # ------------------------------------------------------------------------------------- as the writer sees it

    def write(self, partition: int, batch: pa.RecordBatch) -> None:
        with self._lock:
            self._check_open()
            if not batch.num_rows:
                return
            self._schema = self._schema or batch.schema
            batch = compact(batch)
            waiting = self._partitions[partition]
            waiting.waiting.append(batch)
            waiting.waiting_rows += batch.num_rows
            waiting.waiting_bytes += batch.nbytes
            waiting.size_bytes += batch.nbytes
            self._waiting_bytes += batch.nbytes
            self._budget.hold(batch.nbytes)
            if waiting.waiting_rows >= CHUNK_ROWS or waiting.waiting_bytes >= self._chunk_bytes:
                self._seal(waiting)
            while self._waiting_bytes > self._waiting_limit():
                self._seal(max(self._partitions, key=lambda item: item.waiting_bytes))

    def commit(self) -> tuple[Block, ...]:
        with self._lock:
            self._check_open()
            for partition in self._partitions:
                self._seal(partition)
            self._committed = tuple(self._finished(number) for number in range(len(self._partitions)))
            for segment in self._segments:
                segment.seal()
            return tuple(item.block for item in self._committed)

    def abort(self) -> None:
        with self._lock:
            if self._committed is not None or self._closed:
                return
            self._free()
        self._on_abort(self._attempt)

    # -------------------------------------------------------------------------------------- as its store sees it

    @property
    def memory_bytes(self) -> int:
        return self._memory_bytes + self._waiting_bytes

    @property
    def spilled_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments if not segment.name.in_memory)

    def committed(self, block: Block) -> Committed:
        """What was committed under the block's name; BlockMissing when that is nothing, or something else."""
        with self._lock:
            if self._committed is None or self._closed or not 0 <= block.partition < len(self._committed):
                raise BlockMissing(f"{block} is not on {self._location}.", attempt=block.attempt)
            found = self._committed[block.partition]
            if found.block != block:
                raise BlockMissing(
                    f"{block} on {self._location} has {found.block.rows} rows and checksum {found.block.checksum:x}"
                    f" instead of {block.rows} and {block.checksum:x}.",
                    attempt=block.attempt,
                )
            return found

    def open(self, index: Index) -> list[pa.NativeFile]:
        """The files of one of its blocks, open for one reader."""
        with self._lock:
            if self._closed:
                raise BlockMissing(
                    f"{self._attempt} is not on {self._location} any more.", attempt=self._attempt
                )
            return [name.open() for name in index.files]

    def close(self) -> None:
        """Let go of everything. Readers that have a file open keep what they have."""
        with self._lock:
            self._free()

    # -------------------------------------------------------------------------------------------------- helpers

    def _check_open(self) -> None:
        if self._closed or self._committed is not None:
            raise BlockMissing(f"{self._attempt}: its output is closed.", attempt=self._attempt)

    def _waiting_limit(self) -> int:
        if self._budget.is_full:
            return _LEAST_WAITING_BYTES
        return max(_LEAST_WAITING_BYTES, min(_WAITING_BYTES, self._budget.limit_bytes // 4))

    def _seal(self, partition: _Partition) -> None:
        if not partition.waiting:
            return
        whole = pa.concat_batches(partition.waiting)
        # It is about to be counted where it goes.
        self._waiting_bytes -= partition.waiting_bytes
        self._budget.free(partition.waiting_bytes)
        partition.waiting, partition.waiting_rows, partition.waiting_bytes = [], 0, 0
        for batch in slices(whole, self._chunk_bytes):
            partition.chunks.append(self._place(batch))

    def _place(self, batch: pa.RecordBatch) -> Chunk:
        size_bytes = pa.ipc.get_record_batch_size(batch)
        if not self._to_disk and self._budget.admit(size_bytes, new=self._memory is None):
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
            start = segment.append(data, align_at)
        if segment not in self._segments:
            self._segments.append(segment)
        return segment, start

    def _finished(self, number: int) -> Committed:
        partition = self._partitions[number]
        # Small beside the rows, which are what is counted.
        names = tuple(segment.name for segment in self._segments)
        packed = Index(names, tuple(partition.chunks), self._schema if partition.chunks else None).pack()
        segment, start = self._append(pa.py_buffer(packed), 0)
        handle = str(Handle(segment.name, start, len(packed)))
        rows = sum(chunk.rows for chunk in partition.chunks)
        size_bytes = partition.size_bytes
        checksum = checksum_of(packed)
        spilled = sum(chunk.size_bytes for chunk in partition.chunks if not names[chunk.file].in_memory)
        block = Block(self._attempt, number, self._location, rows, size_bytes, checksum, handle, spilled)
        return Committed(block, packed)

    def _free(self) -> None:
        if self._closed:
            return
        self._closed = True
        for segment in self._segments:
            segment.close()
        self._budget.free(self._memory_bytes + self._waiting_bytes)
        self._memory_bytes = self._waiting_bytes = 0
        self._segments = []
        self._partitions = []
        self._committed = None
