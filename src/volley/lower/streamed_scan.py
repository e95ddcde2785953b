# SPDX-License-Identifier: Apache-2.0
"""Scans of formats that Volley parses itself: files are divided over the streams of a plan by their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
from datafusion import DataFrame, col
from datafusion import functions as f

from volley.batches import make_batch
from volley.formats import STREAMED, can_split
from volley.formats.base import ReadRequest
from volley.lower.expressions import column_name
from volley.lower.scope import Scope, arrow_schema, distinct
from volley.lower.streams import StreamTable
from volley.plan.nodes import DataFile, FileScan
from volley.plan.types import to_arrow

# A smaller file is read by one stream, which also keeps the order of its rows.
_MIN_PART_BYTES = 8 * 2**20

Part = tuple[DataFile, int, int]
"""A file, and which of how many parts of it."""


def lower_streamed_scan(node: FileScan, scope: Scope) -> DataFrame:
    """The rows of the scan. DataError is raised while they are read, if a record has no certain meaning."""
    streams = divide(node, scope.streams)
    if not node.output:
        schema = pa.schema([pa.field("row", pa.null())])
        table = StreamTable(schema, [partial(_count, node, parts) for parts in streams])
        return scope.dataset(table).select()
    schema = arrow_schema(node.output)
    frame = scope.dataset(StreamTable(schema, [partial(_read, node, parts, schema) for parts in streams]))
    # This function, which with one argument is the identity, keeps DataFusion from pushing filters into the stream as
    # pyarrow expressions, which mean something else for NULL and NaN.
    names = [column_name(attribute.id) for attribute in distinct(node.output)]
    return frame.select(*(f.greatest(col(name)).alias(name) for name in names))


def divide(node: FileScan, streams: int) -> list[list[Part]]:
    """Parts of files of about the same size for each stream; fewer streams if there is little to read."""
    total_bytes = sum(file.size_bytes for file in node.files)
    wanted_bytes = max(_MIN_PART_BYTES, -(-total_bytes // streams))
    parts: list[tuple[int, Part]] = []
    for file in node.files:
        count = -(-file.size_bytes // wanted_bytes) if can_split(node.format, file) else 1
        count = max(1, count)
        parts.extend((file.size_bytes // count, (file, number, count)) for number in range(count))
    found: list[list[Part]] = [[]]
    held_bytes = 0
    for size_bytes, part in parts:
        if held_bytes and held_bytes + size_bytes > wanted_bytes and len(found) < streams:
            found.append([])
            held_bytes = 0
        found[-1].append(part)
        held_bytes += size_bytes
    return found


def _read(node: FileScan, parts: Sequence[Part], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    places = {attribute.id: place for place, attribute in enumerate(node.partition_columns)}
    for request in _requests(node, parts):
        values = request.file.partition
        for batch in STREAMED[node.format].read(request):
            columns = iter(batch.columns)
            arrays = [
                pa.repeat(pa.scalar(values[places[attribute.id]], to_arrow(attribute.type)), batch.num_rows)
                if attribute.id in places
                else next(columns)
                for attribute in distinct(node.output)
            ]
            yield make_batch(arrays, schema, batch.num_rows)


def _count(node: FileScan, parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
    for request in _requests(node, parts):
        for batch in STREAMED[node.format].read(request):
            yield pa.record_batch({"row": pa.nulls(batch.num_rows)})


def _requests(node: FileScan, parts: Sequence[Part]) -> Iterator[ReadRequest]:
    from_path = {attribute.id for attribute in node.partition_columns}
    columns = tuple(attribute for attribute in distinct(node.output) if attribute.id not in from_path)
    for file, part, count in parts:
        yield ReadRequest(file, part, count, columns, node.file_columns, node.options)
