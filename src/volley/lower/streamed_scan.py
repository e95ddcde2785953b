# SPDX-License-Identifier: Apache-2.0
"""Scans of formats that Volley parses itself: files are divided over the streams of a plan by their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
from datafusion import DataFrame, col
from datafusion import functions as f

from volley.batches import empty_batch, make_batch
from volley.formats.base import ReadRequest, StreamedFormat
from volley.lower.expressions import column_name
from volley.lower.read_ahead import Batches, read_ahead
from volley.lower.scope import Scope, arrow_schema, distinct
from volley.lower.streams import StreamTable
from volley.plan.nodes import DataFile, FileScan
from volley.plan.types import to_arrow

# A smaller file is read by one stream, which also keeps the order of its rows.
_MIN_PART_BYTES = 8 * 2**20
# Objects are read in parts, several at a time: more of them if each is little more than the wait for an answer.
_REMOTE_PART_BYTES = 32 * 2**20
_OPEN_BYTES = 256 * 2**10
_LITTLE_BYTES = 4 * 2**20
_LITTLE_PARTS_AHEAD = 12
_PARTS_AHEAD = 3
_AHEAD_BYTES = 16 * 2**20

Part = tuple[DataFile, int, int]
"""A file, and which of how many parts of it."""


def lower_streamed_scan(node: FileScan, streamed: StreamedFormat, scope: Scope) -> DataFrame:
    """The rows of the scan. DataError is raised while they are read, if a record has no certain meaning."""
    streams = _requests(node, streamed, scope.streams)
    # A stream without columns still has to tell the number of its rows.
    schema = arrow_schema(node.output) if node.output else pa.schema([pa.field("row", pa.null())])
    read = partial(_read, node, streamed, schema=schema)
    frame = scope.dataset(
        StreamTable(schema, [partial(_batches, requests, read, schema) for requests in streams])
    )
    if not node.output:
        return frame.select()
    # This function, which with one argument is the identity, keeps DataFusion from pushing filters into the stream as
    # pyarrow expressions, which mean something else for NULL and NaN.
    names = [column_name(attribute.id) for attribute in distinct(node.output)]
    return frame.select(*(f.greatest(col(name)).alias(name) for name in names))


def _requests(node: FileScan, streamed: StreamedFormat, streams: int) -> list[list[ReadRequest]]:
    """What each stream reads: all of a partition of Spark's, if that is what is scanned."""
    if not node.partitions:
        parts = divide(node, streamed, streams)
        return [[request_of(node, *part) for part in stream] for stream in parts]
    (partition,) = node.partitions
    return [
        [
            replace(
                request_of(node, part.file, 0, 1),
                spark_range=None if part.is_whole else (part.start, part.end),
            )
            for part in partition
        ]
    ]


def divide(node: FileScan, streamed: StreamedFormat, streams: int) -> list[list[Part]]:
    """Parts of files of about the same size for each stream; fewer streams if there is little to read."""
    total_bytes = sum(file.size_bytes + _open_bytes(file) for file in node.files)
    wanted_bytes = max(_MIN_PART_BYTES, -(-total_bytes // streams))
    parts: list[tuple[int, Part]] = []
    for file in node.files:
        part_bytes = min(wanted_bytes, _REMOTE_PART_BYTES) if file.store else wanted_bytes
        count = -(-file.size_bytes // part_bytes) if streamed.can_split(file, node.options) else 1
        count = max(1, count)
        cost_bytes = file.size_bytes // count + _open_bytes(file)
        parts.extend((cost_bytes, (file, number, count)) for number in range(count))
    found: list[list[Part]] = [[]]
    held_bytes = 0
    for size_bytes, part in parts:
        if held_bytes and held_bytes + size_bytes > wanted_bytes and len(found) < streams:
            found.append([])
            held_bytes = 0
        found[-1].append(part)
        held_bytes += size_bytes
    return found


def _open_bytes(file: DataFile) -> int:
    """What opening a file costs, in bytes that could be read meanwhile."""
    return _OPEN_BYTES if file.store else 0


def _batches(
    requests: Sequence[ReadRequest], read: Callable[[ReadRequest], Batches], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of a stream, in the order of its requests."""
    if not any(request.file.store for request in requests):
        for request in requests:
            yield from read(request)
        return
    mean_bytes = sum(request.file.size_bytes // request.parts for request in requests) // len(requests)
    count = _LITTLE_PARTS_AHEAD if mean_bytes < _LITTLE_BYTES else _PARTS_AHEAD
    works = (partial(read, request) for request in requests)
    yield from read_ahead(works, count, _AHEAD_BYTES, empty_batch(schema))


def _read(node: FileScan, streamed: StreamedFormat, request: ReadRequest, *, schema: pa.Schema) -> Batches:
    """The rows of a part, with the values that all rows of its file have."""
    places = {attribute.id: place for place, attribute in enumerate(node.partition_columns)}
    values = request.file.partition
    for batch in streamed.read(request):
        if not node.output:
            yield pa.record_batch({"row": pa.nulls(batch.num_rows)})
            continue
        columns = iter(batch.columns)
        arrays = [
            pa.repeat(pa.scalar(values[places[attribute.id]], to_arrow(attribute.type)), batch.num_rows)
            if attribute.id in places
            else next(columns)
            for attribute in distinct(node.output)
        ]
        yield make_batch(arrays, schema, batch.num_rows)


def request_of(node: FileScan, file: DataFile, number: int = 0, count: int = 1) -> ReadRequest:
    """What to read of a part of a file; of the file, if nothing else is said."""
    from_path = {attribute.id for attribute in node.partition_columns}
    columns = tuple(attribute for attribute in distinct(node.output) if attribute.id not in from_path)
    stored = {column.name: column for column in node.stored}
    return ReadRequest(
        file, number, count, columns, node.file_columns, node.options, node.filters, stored=stored
    )
