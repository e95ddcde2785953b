# SPDX-License-Identifier: Apache-2.0
"""Parquet files in object stores, and local ones that DataFusion cannot read, row group by row group, with pyarrow.

    open       two requests for the metadata of the object and the footer; none for a footer that is known
    prune      row groups that the statistics exclude are not read
    read       the column chunks of a row group, neighbours by one request, several requests at a time
    confirm    that the object is still the same, then give out the rows

The same checks of the footer apply as for local files (`ParquetFooter`). DataFusion does not read parts of files in
order, leave out deleted rows, tell the positions of rows, or find fields of structs by ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from volley.batches import batch_by_position, rows_without_columns
from volley.formats.base import ReadOptions, ReadRequest, find_columns
from volley.formats.deleted_rows import kept_rows
from volley.formats.file_source import Source, open_remote, open_source
from volley.formats.parquet import Parquet, ParquetFooter, describe
from volley.formats.prune import comparisons, may_hold
from volley.formats.stored_columns import constant, read_as
from volley.lru_cache import LruCache
from volley.plan.expressions import Attribute
from volley.plan.nodes import DataFile, StoredColumn
from volley.plan.types import STRING, holds_text, to_arrow
from volley.storage.object_cache import Range, shared_object_cache
from volley.storage.objects import OpenObject
from volley.storage.registry import shared_stores

_ROWS_PER_BATCH = 65_536
_LENGTH_BYTES = 4
# Footers of wide tables are large.
_KEPT_FOOTERS = 4_096


@dataclass(frozen=True)
class _Metadata:
    stored: pq.FileMetaData
    footer: ParquetFooter
    size_bytes: int

    @cached_property
    def chunks(self) -> tuple[tuple[tuple[str, Range], ...], ...]:
        """The column chunks of each row group, with their columns as dotted paths."""
        groups = map(self.stored.row_group, range(self.stored.num_row_groups))
        return tuple(
            tuple(_chunk(column) for column in map(group.column, range(group.num_columns)))
            for group in groups
        )

    def parts(self, group: int, names: Iterable[str]) -> frozenset[Range]:
        """Where a row group has these columns."""
        wanted = tuple(names)
        return frozenset(
            where
            for path, where in self.chunks[group]
            # A name may have dots: then this has more than it must.
            if any(path == name or path.startswith(f"{name}.") for name in wanted)
        )

    @cached_property
    def others(self) -> frozenset[Range]:
        """All that is not in column chunks: the footer, indexes, filters."""
        found, end = [], 0
        for start, stop in sorted(where for group in self.chunks for _, where in group):
            if start > end:
                found.append((end, start))
            end = max(end, stop)
        return frozenset({*found, (end, self.size_bytes)})


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
        return _Metadata(pq.read_metadata(opened.source), Parquet().footer(file), file.size_bytes)
    key = (opened.name.store, opened.name.path, opened.version)
    if (found := _known.get(key)) is None:
        stored = pq.read_metadata(opened.source)
        opened.confirm()
        _known.put(key, found := _Metadata(stored, describe(opened.name.path, stored), file.size_bytes))
    return found


def parts_to_keep(request: ReadRequest, version: str) -> frozenset[Range] | None:
    """Which parts of an object a reader of all its row groups reads; empty if none of them can have wanted rows.

    None if the statistics exclude some row groups but not all: a reader of a local copy may look at them. Or if the
    footer of this version is not known, or no column is read.
    """
    metadata = _known.get((request.file.store, request.file.path, version))
    if metadata is None:
        return None
    wanted = [_is_wanted(group, metadata, request) for group in range(metadata.stored.num_row_groups)]
    names = _present(metadata, request)
    if not any(wanted):
        return frozenset()
    if not all(wanted) or not names:
        return None
    return metadata.others.union(*(metadata.parts(group, names) for group in range(len(wanted))))


def _chunk(column: pq.ColumnChunkMetaData) -> tuple[str, Range]:
    start = column.data_page_offset
    if column.dictionary_page_offset is not None:
        start = min(start, column.dictionary_page_offset)
    return column.path_in_schema, (start, start + column.total_compressed_size)


def _read(opened: Source, metadata: _Metadata, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    stored = metadata.stored
    places = _places(metadata, request)
    groups = [group for group in range(stored.num_row_groups) if _is_wanted(group, metadata, request)]
    present = _present(metadata, request)
    kept = kept_rows(request.file, stored.num_rows)
    sizes = [stored.row_group(group).num_rows for group in range(stored.num_row_groups)]
    for group, batch in _batches(opened, stored, groups, present, request):
        first_row = sum(sizes[:group])
        for rows in batch:
            arrays = [
                _column(rows, name, column, request.stored.get(column.name), first_row)
                for name, column in zip(places, request.columns, strict=True)
            ]
            found = batch_by_position(arrays, rows.num_rows)
            yield found if kept is None else found.filter(kept.slice(first_row, rows.num_rows))
            first_row += rows.num_rows
        if isinstance(opened, OpenObject) and present:
            _note(opened, metadata.parts(group, present) | metadata.others)


def _note(opened: OpenObject, parts: frozenset[Range]) -> None:
    if most_bytes := shared_stores().cache_bytes(opened.name.store):
        shared_object_cache().note(opened, parts, most_bytes)


def _places(metadata: _Metadata, request: ReadRequest) -> list[str | None]:
    """The names that the columns have in the file."""
    fields = find_columns(metadata.footer, request.columns, request.options, request.stored.get)
    return [None if field is None else field.name for field in fields]


def _present(metadata: _Metadata, request: ReadRequest) -> list[str]:
    return list(dict.fromkeys(name for name in _places(metadata, request) if name is not None))


def _batches(
    opened: Source, stored: pq.FileMetaData, groups: list[int], present: list[str], request: ReadRequest
) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """The rows of each group, with the columns in `present`."""
    if not present:
        for group in groups:
            yield group, iter([rows_without_columns(stored.row_group(group).num_rows)])
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
        if first is not None:
            yield group, chain([first], batches)


def _dictionaries(
    stored: pq.FileMetaData, groups: list[int], present: list[str], request: ReadRequest
) -> list[str]:
    """The text columns to read as dictionaries, which takes half the time: those that are stored so.

    A text that is not in a dictionary takes at least the four bytes of its length.
    """
    texts = {
        column.name.lower()
        for column in request.columns
        if column.type == STRING and column.name not in request.stored
    }
    sizes: dict[str, list[int]] = {name: [0, 0] for name in present if name.lower() in texts}
    for group in groups:
        found = stored.row_group(group)
        for place in range(found.num_columns):
            column = found.column(place)
            if (size := sizes.get(column.path_in_schema)) is not None:
                size[0] += column.total_uncompressed_size
                size[1] += column.num_values
    return [name for name, (size_bytes, values) in sizes.items() if size_bytes < _LENGTH_BYTES * values]


def _is_wanted(group: int, metadata: _Metadata, request: ReadRequest) -> bool:
    """Whether a row group belongs to this part of the file, and may have rows that the filters keep."""
    stored = metadata.stored
    found = stored.row_group(group)
    if request.spark_range is not None:
        start, end = request.spark_range
        if not start <= _middle(found) < end:
            return False
    elif group * request.parts // stored.num_row_groups != request.part:
        return False
    for column, function, values in comparisons(request.filters):
        where = request.stored.get(column.name)
        field = metadata.footer.column(column.name, column.type, request.options, where)
        if field is None or pa.types.is_unsigned_integer(field.type):
            # Statistics of unsigned numbers have another order.
            continue
        if not may_hold(found, field.name, function, values):
            return False
    return True


def _middle(group: pq.RowGroupMetaData) -> int:
    """The place in its file by which Spark's reader takes a row group for a part of it."""
    columns = [group.column(place) for place in range(group.num_columns)]
    _, (begin, _) = _chunk(columns[0])
    size_bytes: int = sum(column.total_compressed_size for column in columns)
    return begin + size_bytes // 2


def _column(
    batch: pa.RecordBatch, name: str | None, column: Attribute, stored: StoredColumn | None, first_row: int
) -> pa.Array:
    if stored is not None and stored.is_position:
        return pa.array(np.arange(first_row, first_row + batch.num_rows))
    if name is None:
        return constant(stored, column.type, batch.num_rows)
    found = batch.column(name)
    if holds_text(column.type):
        # Arrow does not check text when it reads it, and the engine relies on it. Checking decimals takes long.
        texts = found.dictionary if isinstance(found, pa.DictionaryArray) else found
        texts.validate(full=True)
    if stored is not None:
        return read_as(found, column.type, stored)
    wanted = to_arrow(column.type)
    return found if found.type == wanted else found.cast(wanted)
