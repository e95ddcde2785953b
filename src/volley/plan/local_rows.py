# SPDX-License-Identifier: Apache-2.0
"""Batches that Spark's ArrowWriter wrote, in the Arrow types of our plans."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from volley.batches import conform, make_batch
from volley.plan.expressions import Attribute
from volley.plan.types import ArrayType, DataType, MapType, StructType, to_arrow


def to_ipc(batches: Iterable[pa.RecordBatch], output: tuple[Attribute, ...]) -> bytes:
    """Batches of Spark as one IPC stream with a column for each attribute, by position."""
    target = pa.schema([pa.field(f"c{index}", to_arrow(item.type)) for index, item in enumerate(output)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, target) as writer:
        for batch in batches:
            columns = [
                conform(column, field.type) for column, field in zip(batch.columns, target, strict=True)
            ]
            writer.write_batch(make_batch(columns, target, batch.num_rows))
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def holds_unexpected_nulls(array: pa.Array, data_type: DataType, nullable: bool) -> bool:
    """Whether there is NULL where the type says that there is none. What lies inside a NULL does not count."""
    if array.null_count and not nullable:
        return True
    match data_type:
        case StructType(fields):
            inside = array.flatten()
            if array.null_count:
                inside = [column.filter(array.is_valid()) for column in inside]
            return any(
                holds_unexpected_nulls(column, field.type, field.nullable)
                for column, field in zip(inside, fields, strict=True)
            )
        case ArrayType(element, contains_null):
            return holds_unexpected_nulls(array.flatten(), element, contains_null)
        case MapType(key, value, contains_null):
            start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
            keys, values = (part.slice(start, end - start) for part in (array.keys, array.items))
            return holds_unexpected_nulls(keys, key, False) or holds_unexpected_nulls(
                values, value, contains_null
            )
        case _:
            return False
