# SPDX-License-Identifier: Apache-2.0
"""Creates batches from arrays, with the right number of rows even if there are no columns.

pyarrow takes the number of rows from the columns, so `RecordBatch.from_arrays([], schema)` always has zero rows. Code
that builds a batch from the columns of another one calls `make_batch` with the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa


def make_batch(columns: Sequence[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """A batch of `rows` rows with these columns and this schema."""
    return (
        pa.RecordBatch.from_arrays(list(columns), schema=schema)
        if len(schema)
        else rows_without_columns(rows)
    )


def batch_by_position(columns: Sequence[pa.Array], rows: int) -> pa.RecordBatch:
    """A batch of `rows` rows with these columns, named by their positions."""
    fields = [pa.field(str(position), column.type) for position, column in enumerate(columns)]
    return make_batch(columns, pa.schema(fields), rows)


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return make_batch([pa.array([], field.type) for field in schema], schema, 0)


def rows_without_columns(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"row": pa.nulls(rows)}).select([])


def table_without_columns(rows: int) -> pa.Table:
    return pa.Table.from_batches([rows_without_columns(rows)])


def slice_batch(batch: pa.RecordBatch, limit_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the batch in slices of about `limit_bytes` at most, but at least one row. Nothing is copied."""
    count = -(-batch.nbytes // limit_bytes) or 1
    rows = -(-batch.num_rows // count) or 1
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def conform(array: pa.Array, target: pa.DataType) -> pa.Array:
    """The same values as another type, nested fields by position.

    A cast of pyarrow goes by the names of fields, which may repeat. It also refuses a NULL struct of fields that are
    never NULL.
    """
    if array.type.equals(target):
        return array
    if pa.types.is_struct(target) and pa.types.is_struct(array.type):
        fields = list(target)
        children = [conform(array.field(index), field.type) for index, field in enumerate(fields)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if pa.types.is_list(target) and pa.types.is_list(array.type):
        values = conform(array.values, target.value_type)
        buffers = array.buffers()[:2]
        return pa.Array.from_buffers(target, len(array), buffers, -1, array.offset, [values])
    if pa.types.is_map(target) and pa.types.is_map(array.type):
        children = [conform(array.keys, target.key_type), conform(array.items, target.item_type)]
        return _of_entries(array, target, children, [target.key_field, target.item_field])
    return array.cast(target)


def list_entries(maps: pa.MapArray) -> pa.ListArray:
    """The maps as lists of their entries. A cast would refuse NULL structs of fields that are never NULL."""
    fields = [maps.type.key_field, maps.type.item_field]
    return _of_entries(maps, pa.list_(pa.struct(fields)), [maps.keys, maps.items], fields)


def _of_entries(
    maps: pa.MapArray, target: pa.DataType, children: list[pa.Array], fields: list[pa.Field]
) -> pa.Array:
    entries = pa.StructArray.from_arrays(children, fields=fields)
    return pa.Array.from_buffers(target, len(maps), maps.buffers()[:2], -1, maps.offset, [entries])
