# SPDX-License-Identifier: Apache-2.0
"""The response stream of a query, as Spark's Connect server sends it.

    schema | Arrow batch ... | metrics | result complete, if the client can reattach

There is at least one batch. Each is an Arrow stream of its own, small enough for the message limits of clients. If a
single row is larger than that, its stream is sent in chunks to clients that can put them together.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from volley.batches import empty_batch
from volley.connect_server.operations import Encode
from volley.observe.connect_metrics import metrics_message
from volley.observe.report import QueryReport

_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class ResponseWriter:
    """Writes the responses of one operation.

    `batch_bytes` is about the size of the largest batch, `chunk_bytes` that of the largest part of one; 0 if the client
    wants whole batches.
    """

    def __init__(
        self,
        *,
        session: str,
        server_session: str,
        operation: str,
        time_zone: str,
        batch_bytes: int,
        chunk_bytes: int = 0,
    ) -> None:
        self._ids = {
            "session_id": session,
            "server_side_session_id": server_session,
            "operation_id": operation,
        }
        self._time_zone = time_zone
        self._batch_bytes = batch_bytes
        self._chunk_bytes = chunk_bytes

    def write(
        self, schema_message: bytes, table: pa.Table, report: QueryReport | None, *, completes: bool
    ) -> list[Encode]:
        """The responses for the rows of a query; each is encoded when it is sent."""
        responses: list[Encode] = [partial(self._encode_schema, schema_message)]
        schema = with_time_zone(table.schema, self._time_zone)
        start = 0
        for batches in group(table.to_batches() or [empty_batch(table.schema)], self._batch_bytes):
            if self._chunk_bytes and sum(batch.nbytes for batch in batches) > self._chunk_bytes:
                responses += self._split(batches, schema, start)
            else:
                responses.append(partial(self._encode_batch, batches, schema, start))
            start += sum(batch.num_rows for batch in batches)
        if report is not None:
            responses.append(partial(self._encode, {"metrics": metrics_message(report)}))
        if completes:
            responses.append(partial(self._encode, {"result_complete": {}}))
        return responses

    def _encode_schema(self, schema_message: bytes, response_id: str) -> bytes:
        from pyspark.sql.connect.proto import types_pb2

        return self._encode({"schema": types_pb2.DataType.FromString(schema_message)}, response_id)

    def _encode(self, content: dict[str, Any], response_id: str) -> bytes:
        from pyspark.sql.connect.proto import base_pb2

        fields: dict[str, Any] = {**self._ids, "response_id": response_id, **content}
        return bytes(base_pb2.ExecutePlanResponse(**fields).SerializeToString())

    def _encode_batch(
        self, batches: list[pa.RecordBatch], schema: pa.Schema, start: int, response_id: str
    ) -> bytes:
        return self._encode({"arrow_batch": _batch_message(batches, schema, start)}, response_id)

    def _split(self, batches: list[pa.RecordBatch], schema: pa.Schema, start: int) -> Iterator[Encode]:
        message = _batch_message(batches, schema, start)
        data: bytes = message["data"]
        count = -(-len(data) // self._chunk_bytes)
        for index in range(count):
            part = data[index * self._chunk_bytes : (index + 1) * self._chunk_bytes]
            chunk = {**message, "data": part, "chunk_index": index, "num_chunks_in_batch": count}
            yield partial(self._encode, {"arrow_batch": chunk})


def _batch_message(batches: list[pa.RecordBatch], schema: pa.Schema, start: int) -> dict[str, Any]:
    batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    return {"row_count": batch.num_rows, "data": arrow_stream(batch, schema), "start_offset": start}


def arrow_stream(batch: pa.RecordBatch, schema: pa.Schema) -> bytes:
    """An Arrow stream of one batch, under a schema of the same layout."""
    # A batch's message does not repeat its schema, so names and time zones cost no cast.
    parts = [schema.serialize().to_pybytes(), batch.serialize().to_pybytes(), _END_OF_STREAM]
    return b"".join(parts)


def group(batches: list[pa.RecordBatch], size_bytes: int) -> Iterator[list[pa.RecordBatch]]:
    """Batches that together are about as large as `size_bytes`; larger ones are cut first."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in (part for whole in batches for part in _cut(whole, size_bytes)):
        if held and held_bytes + batch.nbytes > size_bytes:
            yield held
            held, held_bytes = [], 0
        held.append(batch)
        held_bytes += batch.nbytes
    yield held


def _cut(batch: pa.RecordBatch, size_bytes: int) -> Iterator[pa.RecordBatch]:
    if batch.nbytes <= size_bytes or batch.num_rows < 2:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _cut(batch.slice(0, middle), size_bytes)
    yield from _cut(batch.slice(middle), size_bytes)


def with_time_zone(schema: pa.Schema, time_zone: str) -> pa.Schema:
    """The schema with instants in another time zone; the values stay the same."""
    return pa.schema([_field_in(field, time_zone) for field in schema], schema.metadata)


def _field_in(field: pa.Field, time_zone: str) -> pa.Field:
    return field.with_type(_type_in(field.type, time_zone))


def _type_in(type: pa.DataType, time_zone: str) -> pa.DataType:
    if pa.types.is_timestamp(type) and type.tz is not None:
        return pa.timestamp(type.unit, time_zone)
    if pa.types.is_struct(type):
        return pa.struct([_field_in(field, time_zone) for field in type])
    if pa.types.is_list(type):
        return pa.list_(_field_in(type.value_field, time_zone))
    if pa.types.is_map(type):
        return pa.map_(_field_in(type.key_field, time_zone), _field_in(type.item_field, time_zone))
    return type
