# SPDX-License-Identifier: Apache-2.0
"""Reads byte ranges of files with pyarrow, on any of its file systems.

Row groups and stripes belong to the range in which they begin; no footer is needed to cut a file into ranges. The rows
are those of pyarrow: a data source that uses this returns the same rows to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs
import pyarrow.orc as orc
import pyarrow.parquet as pq

_ROWS_PER_BATCH = 65_536

KeepsGroup = Callable[[pq.RowGroupMetaData, pa.Schema], bool]
"""Whether a row group of a file with this schema may have rows that are wanted."""


@dataclass(frozen=True)
class FileRange:
    """The part of a file of `size_bytes` that begins in [`start`, `end`)."""

    path: str
    start: int
    end: int
    size_bytes: int


class RangeReader(Protocol):
    """Stateless; called from any thread."""

    @property
    def splittable(self) -> bool:
        """Whether a range may be less than a file."""

    def read(
        self,
        file_system: fs.FileSystem,
        part: FileRange,
        columns: Sequence[str],
        schema: pa.Schema,
        keeps_group: KeepsGroup,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range, with those of `columns` that the file has. `schema` has the types to read."""


class ParquetRanges:
    splittable = True

    def read(
        self,
        file_system: fs.FileSystem,
        part: FileRange,
        columns: Sequence[str],
        schema: pa.Schema,
        keeps_group: KeepsGroup,
    ) -> Iterator[pa.RecordBatch]:
        with file_system.open_input_file(part.path) as opened, pq.ParquetFile(opened) as file:
            groups = [
                number
                for number in range(file.metadata.num_row_groups)
                if begins_in(file.metadata.row_group(number), part.start, part.end)
                and keeps_group(file.metadata.row_group(number), file.schema_arrow)
            ]
            present = [name for name in columns if name in file.schema_arrow.names]
            if groups and present:
                yield from file.iter_batches(_ROWS_PER_BATCH, groups, present, use_threads=False)
            elif groups:
                rows = sum(file.metadata.row_group(number).num_rows for number in groups)
                yield pa.RecordBatch.from_arrays([pa.nulls(rows)], ["row"])


class OrcRanges:
    """A stripe is in the range in which it would begin if all stripes had the same size."""

    splittable = True

    def read(
        self,
        file_system: fs.FileSystem,
        part: FileRange,
        columns: Sequence[str],
        schema: pa.Schema,
        keeps_group: KeepsGroup,
    ) -> Iterator[pa.RecordBatch]:
        with file_system.open_input_file(part.path) as opened:
            file = orc.ORCFile(opened)
            # Read at least one column, or the rows could not be counted.
            present = [name for name in columns if name in file.schema.names] or file.schema.names[:1]
            for stripe in range(file.nstripes):
                if part.start <= part.size_bytes * stripe // file.nstripes < part.end:
                    yield file.read_stripe(stripe, columns=present)


class WholeFiles:
    """Text files of a format of pyarrow's datasets."""

    splittable = False

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def read(
        self,
        file_system: fs.FileSystem,
        part: FileRange,
        columns: Sequence[str],
        schema: pa.Schema,
        keeps_group: KeepsGroup,
    ) -> Iterator[pa.RecordBatch]:
        found = ds.dataset(part.path, filesystem=file_system, format=self._kind)
        present = [name for name in columns if name in found.schema.names]
        typed = pa.schema(
            [
                schema.field(name) if name in present else found.schema.field(name)
                for name in found.schema.names
            ]
        )
        yield from found.replace_schema(typed).to_batches(columns=present, batch_size=_ROWS_PER_BATCH)


RANGE_READERS: dict[str, RangeReader] = {
    "parquet": ParquetRanges(),
    "orc": OrcRanges(),
    "csv": WholeFiles("csv"),
    "json": WholeFiles("json"),
}


def begins_in(group: pq.RowGroupMetaData, start: int, end: int) -> bool:
    """Whether a row group begins in a byte range of its file."""
    first = group.column(0)
    begin: int = first.data_page_offset
    if first.dictionary_page_offset is not None:
        begin = min(begin, first.dictionary_page_offset)
    return start <= begin < end
