# SPDX-License-Identifier: Apache-2.0
"""The rows of one cached frame: Arrow batches in memory, or mapped from a file that has no name."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pyarrow as pa

from volley.batches import make_batch
from volley.lru_cache import LruCache

# What DataFusion's own operators output, so that a scan is neither many small batches nor few large ones.
_BATCH_ROWS = 16_384

# Sessions of the engine that read a frame in turn: of several numbers of cores, and with and without a memory limit.
_TABLES = 4

PLACE = "place"
"""The last column of frames whose order matters: the position of each row."""


class CachedBatches:
    """Immutable, and shared by the queries that read it. It shares memory with nothing else.

    `rows` counts rows also if there are no columns. `has_places`: the last column is `PLACE`.
    """

    def __init__(self, schema: pa.Schema, batches: Sequence[pa.RecordBatch], *, on_disk: bool) -> None:
        self.schema = schema
        self.batches = tuple(batches)
        self.on_disk = on_disk
        self.rows = sum(batch.num_rows for batch in batches)
        self.size_bytes = sum(batch.get_total_buffer_size() for batch in batches)
        self.has_places = PLACE in schema.names
        self._column_bytes: dict[int, int] = {}
        self.tables: LruCache[Hashable, Any] = LruCache(_TABLES)
        """What readers made of the rows, to use it again while the frame is cached."""

    def divide(self, streams: int) -> list[tuple[pa.RecordBatch, ...]]:
        """Divide the batches, in order, into at most `streams` parts of about the same size."""
        size = -(-len(self.batches) // streams) or 1
        return [self.batches[start : start + size] for start in range(0, len(self.batches), size)]

    def column_bytes(self, columns: Sequence[int]) -> int:
        """The size of these columns."""
        return sum(map(self._size_of, set(columns)))

    def _size_of(self, column: int) -> int:
        if column not in self._column_bytes:
            self._column_bytes[column] = sum(batch.column(column).nbytes for batch in self.batches)
        return self._column_bytes[column]

    def move_to_disk(self, directory: Path) -> CachedBatches:
        """Write the rows to a file, and return them as they are there."""
        with _DiskRows(self.schema, directory) as disk:
            for batch in self.batches:
                disk.write(batch)
            return disk.finish()


class CachedBatchWriter:
    """Collects the rows of a frame: in memory up to `memory_bytes`, and all in a file if there are more.

    With `places`, a column with the position of each row is added.
    """

    def __init__(self, schema: pa.Schema, directory: Path, memory_bytes: int, *, places: bool) -> None:
        self._schema = schema.append(pa.field(PLACE, pa.int64())) if places else schema
        self._places = places
        self._directory = directory
        self._memory_bytes = memory_bytes
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._rows = 0
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._disk: _DiskRows | None = None

    def __enter__(self) -> CachedBatchWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._disk is not None:
            self._disk.close()

    def append(self, batch: pa.RecordBatch) -> None:
        """Add rows whose columns have the types of the schema, by position."""
        if not batch.num_rows:
            return
        columns = list(batch.columns)
        if self._places:
            places = range(self._rows, self._rows + batch.num_rows)
            columns.append(pa.array(places, pa.int64()))
        self._rows += batch.num_rows
        self._pending.append(make_batch(columns, self._schema, batch.num_rows))
        self._pending_rows += batch.num_rows
        if self._pending_rows >= _BATCH_ROWS:
            self._flush()

    def finish(self) -> CachedBatches:
        """All rows."""
        self._flush()
        if self._disk is not None:
            return self._disk.finish()
        return CachedBatches(self._schema, self._held, on_disk=False)

    def _flush(self) -> None:
        if not self._pending:
            return
        batch = _copy(self._pending, self._schema)
        self._pending, self._pending_rows = [], 0
        if self._disk is not None:
            self._disk.write(batch)
            return
        self._held.append(batch)
        self._held_bytes += batch.get_total_buffer_size()
        if self._held_bytes > self._memory_bytes:
            self._disk = _DiskRows(self._schema, self._directory)
            for held in self._held:
                self._disk.write(held)
            self._held.clear()


def _copy(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """One batch with its own buffers: a slice would keep the whole parent buffer alive."""
    columns = []
    for place in range(len(schema)):
        parts = [batch.column(place) for batch in batches]
        # A single array would be returned as it is.
        columns.append(pa.concat_arrays([*parts, parts[0].slice(0, 0)]))
    return make_batch(columns, schema, sum(batch.num_rows for batch in batches))


class _DiskRows:
    """Writes batches to an unnamed file, which disappears with the last reader of its rows."""

    def __init__(self, schema: pa.Schema, directory: Path) -> None:
        self._schema = schema
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=directory, prefix="volley-cache-")  # noqa: SIM115
        self._writer = pa.ipc.new_file(self._file, schema)

    def __enter__(self) -> _DiskRows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def finish(self) -> CachedBatches:
        self._writer.close()
        self._file.flush()
        # The mapping outlives the file object, and the arrays hold the mapping.
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return CachedBatches(self._schema, list(_batches(pa.py_buffer(mapped))), on_disk=True)

    def close(self) -> None:
        self._file.close()


def _batches(buffer: pa.Buffer) -> Iterator[pa.RecordBatch]:
    reader = pa.ipc.open_file(buffer)
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)
