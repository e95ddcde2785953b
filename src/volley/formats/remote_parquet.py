# SPDX-License-Identifier: Apache-2.0
"""Parquet files in object stores, and parts of local ones, row group by row group, with pyarrow.

    open       two requests for the metadata of the object and the footer; none for a footer that is known
    prune      row groups that the statistics exclude are not read
    read       the column chunks of a row group, neighbours by one request, several requests at a time
    confirm    that the object is still the same, then give out the rows

The same checks of the footer apply as for local files (`ParquetFooter`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from volley.batches import batch_by_position
from volley.formats.base import ReadOptions, ReadRequest
from volley.formats.file_source import Source, open_remote, open_source
from volley.formats.parquet import Parquet, ParquetFooter, describe
from volley.formats.prune import comparisons, may_hold
from volley.lru_cache import LruCache
from volley.plan.expressions import Attribute
from volley.plan.nodes import DataFile
from volley.plan.types import STRING, holds_text, to_arrow
from volley.storage.objects import OpenObject

_ROWS_PER_BATCH = 65_536
_LENGTH_BYTES = 4
# Footers of wide tables are large.
_KEPT_FOOTERS = 4_096


@dataclass(frozen=True)
class _Metadata:
    stored: pq.FileMetaData
    footer: ParquetFooter


_known: LruCache[tuple[str, str, str], _Metadata] = LruCache(_KEPT_FOOTERS)


class RemoteParquet:
    """See `StreamedFormat`."""

    name = "parquet"

    def can_split(self, file: DataFile, options: ReadOptions) -> bool:
        return True

    def unreadable(self, file: DataFile) -> str | None:
        return None

    def read(self, request: ReadRequest) -> Iterator[pa.RecordBatch]:
        with open_source(request.file) as opened:
            yield from _read(opened, _metadata(opened, request.file), request)


def remote_footer(file: DataFile) -> ParquetFooter:
    """The footer of a file. Raises DataError if the object cannot be read, or has changed since planning."""
    with open_remote(file) as opened:
        return _metadata(opened, file).footer


def drop_remote_footers() -> None:
    """Forget the footers of all objects."""
    _known.clear()


def _metadata(opened: Source, file: DataFile) -> _Metadata:
    if not isinstance(opened, OpenObject):
        return _Metadata(pq.read_metadata(opened.source), Parquet().footer(file))
    key = (opened.name.store, opened.name.path, opened.version)
    if (found := _known.get(key)) is None:
        stored = pq.read_metadata(opened.source)
        opened.confirm()
        _known.put(key, found := _Metadata(stored, describe(opened.name.path, stored)))
    return found


def _read(opened: Source, metadata: _Metadata, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    stored, footer = metadata.stored, metadata.footer
    fields = [footer.column(column.name, column.type, request.options) for column in request.columns]
    names = [None if field is None else field.name for field in fields]
    groups = [group for group in range(stored.num_row_groups) if _is_wanted(group, stored, footer, request)]
    present = list(dict.fromkeys(name for name in names if name is not None))
    if not present:
        rows = sum(stored.row_group(group).num_rows for group in groups)
        nulls = [pa.nulls(rows, to_arrow(column.type)) for column in request.columns]
        yield batch_by_position(nulls, rows)
        return
    file = pq.ParquetFile(
        opened.source,
        metadata=stored,
        pre_buffer=True,
        coerce_int96_timestamp_unit="us",
        read_dictionary=_dictionaries(stored, groups, present, request),
    )
    for group in groups:
        batches = file.iter_batches(_ROWS_PER_BATCH, [group], present, use_threads=False)
        # The bytes of the whole group are read for its first batch.
        first = next(batches, None)
        opened.confirm()
        if first is None:
            continue
        yield _select(first, names, request)
        for batch in batches:
            yield _select(batch, names, request)


def _dictionaries(
    stored: pq.FileMetaData, groups: list[int], present: list[str], request: ReadRequest
) -> list[str]:
    """The text columns to read as dictionaries, which takes half the time: those that are stored so.

    A text that is not in a dictionary takes at least the four bytes of its length.
    """
    texts = {column.name.lower() for column in request.columns if column.type == STRING}
    sizes: dict[str, list[int]] = {name: [0, 0] for name in present if name.lower() in texts}
    for group in groups:
        found = stored.row_group(group)
        for place in range(found.num_columns):
            column = found.column(place)
            if (size := sizes.get(column.path_in_schema)) is not None:
                size[0] += column.total_uncompressed_size
                size[1] += column.num_values
    return [name for name, (size_bytes, values) in sizes.items() if size_bytes < _LENGTH_BYTES * values]


def _is_wanted(group: int, stored: pq.FileMetaData, footer: ParquetFooter, request: ReadRequest) -> bool:
    """Whether a row group belongs to this part of the file, and may have rows that the filters keep."""
    found = stored.row_group(group)
    if request.spark_range is not None:
        start, end = request.spark_range
        if not start <= _middle(found) < end:
            return False
    elif group * request.parts // stored.num_row_groups != request.part:
        return False
    for column, function, values in comparisons(request.filters):
        field = footer.column(column.name, column.type, request.options)
        if field is None or pa.types.is_unsigned_integer(field.type):
            # Statistics of unsigned numbers have another order.
            continue
        if not may_hold(found, field.name, function, values):
            return False
    return True


def _middle(group: pq.RowGroupMetaData) -> int:
    """The place in its file by which Spark's reader takes a row group for a part of it."""
    columns = [group.column(place) for place in range(group.num_columns)]
    begin: int = columns[0].data_page_offset
    if columns[0].dictionary_page_offset is not None:
        begin = min(begin, columns[0].dictionary_page_offset)
    size_bytes: int = sum(column.total_compressed_size for column in columns)
    return begin + size_bytes // 2


def _select(batch: pa.RecordBatch, names: list[str | None], request: ReadRequest) -> pa.RecordBatch:
    arrays = [_column(batch, name, column) for name, column in zip(names, request.columns, strict=True)]
    return batch_by_position(arrays, batch.num_rows)


def _column(batch: pa.RecordBatch, name: str | None, column: Attribute) -> pa.Array:
    wanted = to_arrow(column.type)
    if name is None:
        return pa.nulls(batch.num_rows, wanted)
    found = batch.column(name)
    if holds_text(column.type):
        # Arrow does not check text when it reads it, and the engine relies on it. Checking decimals takes long.
        texts = found.dictionary if isinstance(found, pa.DictionaryArray) else found
        texts.validate(full=True)
    return found if found.type == wanted else found.cast(wanted)
