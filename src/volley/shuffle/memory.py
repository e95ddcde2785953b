# SPDX-License-Identifier: Apache-2.0
"""Exchanged data as references to batches in this process. Beyond a budget, batches go to unnamed files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from volley.ended_queries import EndedQueries
from volley.errors import BlockDamaged, BlockMissing
from volley.ids import AttemptId, QueryId
from volley.shuffle.base import Block, ShuffleSink
from volley.shuffle.budget import MemoryBudget
from volley.shuffle.chunks import Chunk, Index, Unsealer, compact_views, seal
from volley.shuffle.segments import Segment, SpillFiles

# Readers of this process decompress each batch once.
_CODEC = "lz4"


class MemoryStore:
    """A `ShuffleStore` whose blocks are lists of batches. `location` names its worker.

    With a `budget`, which several stores may share, batches that it does not admit go to `directories`.
    """

    def __init__(
        self, location: str, budget: MemoryBudget | None = None, directories: Sequence[Path] = ()
    ) -> None:
        self._location = location
        self._budget = budget
        self._directories = directories
        self._lock = threading.Lock()
        self._sinks: dict[AttemptId, MemorySink] = {}
        self._released = EndedQueries()

    @property
    def is_blocking(self) -> bool:
        """Whether it writes files."""
        return self._budget is not None

    def sink(self, attempt: AttemptId, partitions: int) -> ShuffleSink:
        with self._lock:
            if attempt.query in self._released:
                raise BlockMissing(f"{attempt}: its query is over.")
            if attempt in self._sinks:
                raise ValueError(f"{attempt} already has a sink")
            sink = self._sinks[attempt] = MemorySink(
                self._location, attempt, partitions, self._budget, self._directories, self._forget
            )
            return sink

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        with self._lock:
            sink = self._sinks.get(block.attempt)
        if sink is None:
            raise BlockMissing(f"partition {block.partition} of {block.attempt} is not on {self._location}.")
        return sink.read(block)

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        for block in blocks:
            yield from self.read(block)

    def release(self, query: QueryId) -> None:
        with self._lock:
            self._released.add(query)
            ended = [attempt for attempt in self._sinks if attempt.query == query]
            sinks = [self._sinks.pop(attempt) for attempt in ended]
        for sink in sinks:
            sink.close()

    @property
    def held_bytes(self) -> int:
        with self._lock:
            sinks = list(self._sinks.values())
        return sum(sink.written_bytes for sink in sinks)

    def _forget(self, attempt: AttemptId) -> None:
        with self._lock:
            self._sinks.pop(attempt, None)


@dataclass
class _Partition:
    """What was written, in order: batches, and the numbers of `chunks` that are in files."""

    items: list[pa.RecordBatch | int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0


class MemorySink:
    """A `ShuffleSink` that owns the batches and the files of its attempt until `close`."""

    def __init__(
        self,
        location: str,
        attempt: AttemptId,
        partitions: int,
        budget: MemoryBudget | None,
        directories: Sequence[Path],
        on_abort: Callable[[AttemptId], None],
    ) -> None:
        self._location = location
        self._attempt = attempt
        self._budget = budget
        self._on_abort = on_abort
        self._lock = threading.Lock()
        self._partitions = [_Partition() for _ in range(partitions)]
        self._schema: pa.Schema | None = None
        self._spill = SpillFiles(attempt, directories)
        self._segments: list[Segment] = []
        self._held_bytes = 0
        self._committed = False
        self._closed = False

    @property
    def written_bytes(self) -> int:
        return sum(part.size_bytes for part in self._partitions)

    # ---------------------------------------------------------------------------------------------- for the writer

    def write(self, partition: int, batch: pa.RecordBatch) -> None:
        with self._lock:
            self._check_open()
            part = self._partitions[partition]
            if self._budget is None or self._budget.admit(batch.nbytes):
                self._held_bytes += batch.nbytes
                part.items.append(batch)
            else:
                part.items.append(len(part.chunks))
                part.chunks.append(self._write_file(batch))
            part.rows += batch.num_rows
            part.size_bytes += batch.nbytes

    def commit(self) -> tuple[Block, ...]:
        with self._lock:
            self._check_open()
            self._committed = True
            return tuple(self._block(number) for number in range(len(self._partitions)))

    def abort(self) -> None:
        with self._lock:
            if self._committed or self._closed:
                return
            self._close()
        self._on_abort(self._attempt)

    # ----------------------------------------------------------------------------------------------- for the store

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        """The batches of a committed block. Raises BlockMissing at once if it does not have exactly this one."""
        with self._lock:
            if not self._committed or self._closed or block.partition >= len(self._partitions):
                raise self._missing(block, f"is not on {self._location}")
            part = self._partitions[block.partition]
            if part.rows != block.rows:
                raise self._missing(block, f"has {part.rows} rows instead of {block.rows}")
            if not part.chunks:
                return iter(tuple(part.items))
            names = tuple(segment.name for segment in self._segments)
            index = Index(names, tuple(part.chunks), self._schema)
        return self._read_files(block, tuple(part.items), index)

    def close(self) -> None:
        """Free everything. Readers keep the files that they have open."""
        with self._lock:
            self._close()

    # -------------------------------------------------------------------------------------------------- helpers

    def _read_files(
        self, block: Block, items: Sequence[pa.RecordBatch | int], index: Index
    ) -> Iterator[pa.RecordBatch]:
        unsealer = Unsealer(block, index)
        with ExitStack() as files:
            opened: dict[int, pa.NativeFile] = {}
            for item in items:
                if isinstance(item, pa.RecordBatch):
                    yield item
                    continue
                chunk = index.chunks[item]
                if chunk.file not in opened:
                    opened[chunk.file] = files.enter_context(self._open(block, chunk.file))
                try:
                    opened[chunk.file].seek(chunk.start)
                    data = opened[chunk.file].read_buffer(chunk.size_bytes)
                except OSError as error:
                    raise BlockDamaged(f"{block}: {error}.", attempt=block.attempt) from error
                yield unsealer.unseal(item, data)

    def _open(self, block: Block, number: int) -> pa.NativeFile:
        with self._lock:
            if self._closed:
                raise self._missing(block, "was released")
            return self._segments[number].name.open()

    def _write_file(self, batch: pa.RecordBatch) -> Chunk:
        self._schema = self._schema or batch.schema
        sealed = seal(compact_views(batch), _CODEC)
        segment, start = self._spill.append(sealed.data, sealed.body_at)
        if segment not in self._segments:
            self._segments.append(segment)
        file = self._segments.index(segment)
        return Chunk(file, start, sealed.data.size, batch.num_rows, sealed.checksum)

    def _block(self, number: int) -> Block:
        part = self._partitions[number]
        spilled = sum(chunk.size_bytes for chunk in part.chunks)
        return Block(self._attempt, number, self._location, part.rows, part.size_bytes, spilled_bytes=spilled)

    def _check_open(self) -> None:
        if self._committed or self._closed:
            raise BlockMissing(f"{self._attempt}: its output is closed.")

    def _missing(self, block: Block, what: str) -> BlockMissing:
        return BlockMissing(f"partition {block.partition} of {block.attempt} {what}.")

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._budget is not None:
            self._budget.free(self._held_bytes)
        for segment in self._segments:
            segment.close()
        self._partitions, self._segments, self._held_bytes = [], [], 0
