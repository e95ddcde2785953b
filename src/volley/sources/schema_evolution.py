# SPDX-License-Identifier: Apache-2.0
"""Reads the columns of a Parquet file as the columns of a table whose schema has changed since the file was written.

A field of the table is found in the file by the metadata of its Spark field, at every depth:

    {"parquet.id": 7}               the field with this Parquet field id, whatever its name
    {"parquet.name": "col-1a2b"}    the field with this name
    {}                              the field with the name that it has in the table

A field that the file does not have is NULL, and one of a narrower type is cast. A cast that would lose something is an
error.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from volley.spark_versions.arrow import arrow_schema

FIELD_ID = "parquet.id"
FIELD_NAME = "parquet.name"
_PARQUET_ID = b"PARQUET:field_id"


def find_field(wanted: StructField, stored: Sequence[pa.Field]) -> int | None:
    """The place of a table's field among those of a file, or None."""
    metadata = wanted.metadata or {}
    if FIELD_ID in metadata:
        identity = str(metadata[FIELD_ID]).encode()
        return next((at for at, field in enumerate(stored) if _id(field) == identity), None)
    name = metadata.get(FIELD_NAME, wanted.name)
    names = [field.name for field in stored]
    if name in names:
        return names.index(name)
    # Tables resolve names without regard to case, as Spark does.
    matching = [at for at, other in enumerate(names) if other.lower() == name.lower()]
    return matching[0] if len(matching) == 1 else None


def read_as(array: pa.Array, wanted: DataType) -> pa.Array:
    """The values of a column of a file as a column of a table."""
    target = arrow_type(wanted)
    stored = array.type
    if isinstance(wanted, StructType) and pa.types.is_struct(stored):
        fields = list(stored)
        children = []
        for field in wanted:
            place = find_field(field, fields)
            children.append(
                pa.nulls(len(array), arrow_type(field.dataType))
                if place is None
                else read_as(array.field(place), field.dataType)
            )
        return pa.StructArray.from_arrays(children, fields=list(target), mask=array.is_null())
    if isinstance(wanted, ArrayType) and (pa.types.is_list(stored) or pa.types.is_large_list(stored)):
        if pa.types.is_large_list(stored):
            array = array.cast(pa.list_(stored.value_field))
        values = read_as(array.values, wanted.elementType)
        return pa.Array.from_buffers(target, len(array), array.buffers()[:2], -1, array.offset, [values])
    if isinstance(wanted, MapType) and pa.types.is_map(stored):
        children = [read_as(array.keys, wanted.keyType), read_as(array.items, wanted.valueType)]
        entries = pa.StructArray.from_arrays(children, fields=[target.key_field, target.item_field])
        return pa.Array.from_buffers(target, len(array), array.buffers()[:2], -1, array.offset, [entries])
    return array if stored.equals(target) else array.cast(target)


def arrow_type(wanted: DataType) -> pa.DataType:
    return arrow_schema(StructType([StructField("value", wanted)])).field(0).type


def _id(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(_PARQUET_ID)
