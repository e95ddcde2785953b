# SPDX-License-Identifier: Apache-2.0
"""Arrow tables as rows, for releases of PySpark that do this only with the packages of Spark Connect (before 4.0)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.pandas.types import _dedup_names
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StructType,
    TimestampType,
    UserDefinedType,
    _create_row,
)

# Of a value that is not NULL. None stands for a type whose values are Arrow's.
Convert = Callable[[Any], Any] | None


def convert_rows(table: pa.Table, schema: StructType) -> list[Row]:
    """The rows of a table, with the values that `collect` gives for these types."""
    if not table.num_columns:
        return [_create_row([], [])] * table.num_rows
    columns = [
        _convert_all(column.to_pylist(), _converter(field.dataType))
        for column, field in zip(table.columns, schema.fields, strict=True)
    ]
    names = schema.fieldNames()
    return [_create_row(names, values) for values in zip(*columns, strict=True)]


def _convert_all(values: list[Any], convert: Convert) -> list[Any]:
    if convert is None:
        return values
    return [None if value is None else convert(value) for value in values]


def _converter(kind: DataType) -> Convert:
    match kind:
        case StructType():
            return _struct_converter(kind)
        case ArrayType():
            element = _converter(kind.elementType)
            return None if element is None else lambda values: _convert_all(values, element)
        case MapType():
            return _map_converter(kind)
        case BinaryType():
            return bytearray
        case TimestampType():
            return lambda instant: instant.astimezone().replace(tzinfo=None)
        case UserDefinedType():
            stored = _converter(kind.sqlType())
            return lambda value: kind.deserialize(value if stored is None else stored(value))
        case _:
            return None


def _struct_converter(kind: StructType) -> Convert:
    converters = [_converter(field.dataType) for field in kind.fields]
    fields = list(zip(_dedup_names(kind.names), converters, strict=True))

    def convert(value: dict[str, Any]) -> Row:
        return _create_row(kind.names, [_convert_all([value[name]], each)[0] for name, each in fields])

    return convert


def _map_converter(kind: MapType) -> Convert:
    key, item = _converter(kind.keyType), _converter(kind.valueType)

    def convert(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        keys = _convert_all([pair[0] for pair in pairs], key)
        return dict(zip(keys, _convert_all([pair[1] for pair in pairs], item), strict=True))

    return convert
