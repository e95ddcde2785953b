"""Reads the pieces of Parquet files that a unit names.

A file is checked as it is before DataFusion reads it (`lower.parquet`), so both ways refuse the same files; what is
read has the plan's types, and what the file does not have is NULL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from volley.errors import DataError
from volley.lower.parquet import physical_columns
from volley.lower.scope import distinct
from volley.plan.expressions import Attribute, Expression
from volley.plan.nodes import DataFile, FileScan
from volley.plan.types import to_arrow
from volley.splits.files import Piece, decode
from volley.splits.prune import may_match

# Large enough that a batch costs DataFusion little beside its rows, small enough that a few fit into a reader's queue.
_ROWS_A_BATCH = 65_536


class ParquetReader:
    """A `SplitReader` of a captured scan. `columns` are always those of the scan: Spark has pruned them already."""

    def __init__(self, scan: FileScan) -> None:
        self._columns = distinct(scan.output)
        self._from_path = {column.id: place for place, column in enumerate(scan.partition_columns)}

    def read(
        self, unit: bytes, columns: Sequence[str], filters: Sequence[Expression]
    ) -> Iterator[pa.RecordBatch]:
        for piece in decode(unit):
            yield from self._read(piece, filters)

    def _read(self, piece: Piece, filters: Sequence[Expression]) -> Iterator[pa.RecordBatch]:
        file = piece.file
        stored = [column for column in self._columns if column.id not in self._from_path]
        fields = physical_columns(file, stored)
        try:
            metadata = _metadata(file.path, file.size_bytes, file.modified_ms)
            groups = [
                number
                for number in range(metadata.num_row_groups)
                if piece.start <= _begin(metadata.row_group(number)) < piece.end
                and may_match(metadata.row_group(number), fields, filters)
            ]
            if not groups:
                return
            names = [fields[column.id].name for column in stored if column.id in fields]
            if not names:
                rows = sum(metadata.row_group(number).num_rows for number in groups)
                yield from self._without_stored_columns(file, rows)
                return
            opened = pq.ParquetFile(
                file.path, metadata=metadata, pre_buffer=True, coerce_int96_timestamp_unit="us"
            )
            with opened:
                for batch in opened.iter_batches(
                    _ROWS_A_BATCH, row_groups=groups, columns=names, use_threads=False
                ):
                    yield self._planned(batch, file, fields)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{file.path} cannot be read as Parquet: {error}") from error

    def _planned(self, batch: pa.RecordBatch, file: DataFile, fields: dict[int, pa.Field]) -> pa.RecordBatch:
        arrays = [self._column(column, batch, file, fields) for column in self._columns]
        return pa.RecordBatch.from_arrays(arrays, [column.name for column in self._columns])

    def _column(
        self, column: Attribute, batch: pa.RecordBatch, file: DataFile, fields: dict[int, pa.Field]
    ) -> pa.Array:
        wanted = to_arrow(column.type)
        if column.id in self._from_path:
            value = pa.scalar(file.partition[self._from_path[column.id]], wanted)
            return pa.repeat(value, batch.num_rows)
        if column.id not in fields:
            return pa.nulls(batch.num_rows, wanted)
        found = batch.column(fields[column.id].name)
        if isinstance(found, pa.DictionaryArray):
            found = found.dictionary_decode()
        return found if found.type == wanted else found.cast(wanted)

    def _without_stored_columns(self, file: DataFile, rows: int) -> Iterator[pa.RecordBatch]:
        """Only values of the path, only missing columns or no columns at all: the footer knows how many rows."""
        for start in range(0, rows, _ROWS_A_BATCH):
            count = min(_ROWS_A_BATCH, rows - start)
            counted = pa.RecordBatch.from_arrays([pa.nulls(count)], ["row"])
            yield self._planned(counted, file, {}) if self._columns else counted.select([])


def _begin(group: pq.RowGroupMetaData) -> int:
    """The byte of the file at which a row group begins: it belongs to the piece that has this byte."""
    first = group.column(0)
    begin: int = first.data_page_offset
    # A dictionary, where there is one, stands before the values.
    return begin if first.dictionary_page_offset is None else min(begin, first.dictionary_page_offset)


@lru_cache(maxsize=64)
def _metadata(path: str, size_bytes: int, modified_ms: int) -> pq.FileMetaData:
    """The pieces of one file are read one after the other, and each needs its footer."""
    return pq.read_metadata(path)
