# SPDX-License-Identifier: Apache-2.0
"""Where the files of a table have its columns, by the schemas that Spark and Iceberg plan a scan with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from volley.errors import CaptureError
from volley.plan.decode_expressions import scalar
from volley.plan.expressions import Scalar
from volley.plan.nodes import StoredColumn
from volley.plan.types import (
    BINARY,
    BOOLEAN,
    DATE,
    FRACTIONAL,
    INTEGRAL,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
)

_FIELD_ID = "parquet.field.id"
POSITION = "_tmp_metadata_row_index"
"""The name under which Spark asks a Parquet reader for `_metadata.row_index`."""
_ICEBERG_POSITION = "_pos"
_ICEBERG_CONSTANTS = ("_file", "_spec_id")
# Iceberg counts the ids of its own columns down from the largest one.
_FIRST_RESERVED_ID = 2**31 - 1 - 200


class NotNative(Exception):
    """Only Spark reads a column; the text says why."""


def read_spark_columns(
    schema: Mapping[str, Any],
    defaults: Iterable[Any],
    columns: Mapping[str, DataType],
    filtered: frozenset[str],
    by_id: bool,
) -> tuple[StoredColumn, ...]:
    """The columns of a schema of Spark's, as JSON, that have a field id, one inside, or a default.

    `defaults` are values as Catalyst has them. Spark leaves out row groups by its filters of the columns in `filtered`.
    """
    found = []
    for field, default in zip(schema["fields"], defaults, strict=True):
        if (name := field["name"]) not in columns:
            continue
        column = _spark_column(field, by_id)
        column = replace(column, default=_spark_default(default, columns[name]), is_filtered=name in filtered)
        if column.id is not None or column.parts or column.default is not None:
            found.append(column)
    return tuple(found)


def _spark_default(default: Any, kind: DataType) -> Scalar:
    try:
        value = scalar(default, kind)
    except CaptureError:
        raise NotNative(f"a default of type {kind}") from None
    # Spark's reader of batches cannot assign these.
    is_large = isinstance(kind, DecimalType) and kind.precision > _LONG_DIGITS
    if value is not None and (is_large or kind == BINARY):
        raise NotNative(f"a default of type {kind}")
    return value


_LONG_DIGITS = 18


def _spark_column(field: Mapping[str, Any], by_id: bool) -> StoredColumn:
    number = (field.get("metadata") or {}).get(_FIELD_ID) if by_id else None
    return StoredColumn(field["name"], number, parts=_spark_parts(field["type"], by_id))


def _spark_parts(kind: Any, by_id: bool) -> tuple[StoredColumn, ...]:
    match kind:
        case {"type": "struct", "fields": fields}:
            parts = tuple(_spark_column(field, by_id) for field in fields)
        case {"type": "array", "elementType": element}:
            parts = (_unnamed(_spark_parts(element, by_id)),)
        case {"type": "map", "keyType": key, "valueType": value}:
            parts = (_unnamed(_spark_parts(key, by_id)), _unnamed(_spark_parts(value, by_id)))
        case _:
            return ()
    return parts if any(part.id is not None or part.parts for part in parts) else ()


def has_field_ids(schema: Mapping[str, Any]) -> bool:
    """Whether a column of a schema of Spark's, or a field inside one, has a field id."""
    return any(
        column.id is not None or column.parts
        for column in (_spark_column(field, by_id=True) for field in schema["fields"])
    )


def _unnamed(parts: tuple[StoredColumn, ...]) -> StoredColumn:
    return StoredColumn("", parts=parts)


def read_iceberg_columns(
    schema: Mapping[str, Any], columns: Mapping[str, DataType]
) -> tuple[StoredColumn, ...]:
    """The columns of a schema of Iceberg's, as JSON. NotNative for those that only Spark reads."""
    found = []
    for field in schema["fields"]:
        name, number = field["name"], field["id"]
        if name not in columns or name in _ICEBERG_CONSTANTS:
            continue
        if name == _ICEBERG_POSITION and number >= _FIRST_RESERVED_ID:
            found.append(StoredColumn(name, is_position=True))
        elif number >= _FIRST_RESERVED_ID:
            raise NotNative(f"metadata column {name}")
        else:
            found.append(_iceberg_column(field, columns[name]))
    return tuple(found)


_PLAIN = frozenset(
    {"boolean", "int", "long", "float", "double", "date", "timestamp", "timestamptz", "string", "binary"}
)


def _iceberg_column(field: Mapping[str, Any], kind: DataType | None) -> StoredColumn:
    default = field.get("initial-default")
    if default is not None and kind is None:
        raise NotNative(f"a default of the nested field {field['name']}")
    value = None if default is None or kind is None else _iceberg_value(default, kind)
    return StoredColumn(field["name"], field["id"], value, _iceberg_parts(field["type"]))


def _iceberg_parts(kind: Any) -> tuple[StoredColumn, ...]:
    match kind:
        case {"type": "struct", "fields": fields}:
            return tuple(_iceberg_column(field, None) for field in fields)
        case {"type": "list", "element": element}:
            return (_unnamed(_iceberg_parts(element)),)
        case {"type": "map", "key": key, "value": value}:
            return _unnamed(_iceberg_parts(key)), _unnamed(_iceberg_parts(value))
        case str() if kind in _PLAIN or kind.startswith("decimal("):
            return ()
        case _:
            raise NotNative(f"Iceberg's type {kind}")


_EPOCH = datetime(1970, 1, 1)


def _iceberg_value(value: Any, kind: DataType) -> Scalar:
    """A default, which Iceberg writes as JSON."""
    if kind == DATE:
        return (date.fromisoformat(value) - _EPOCH.date()).days
    if kind in (TIMESTAMP, TIMESTAMP_NTZ):
        local = datetime.fromisoformat(value.removesuffix("+00:00").removesuffix("Z"))
        return (local - _EPOCH) // timedelta(microseconds=1)
    if isinstance(kind, DecimalType):
        return Decimal(value)
    if kind in FRACTIONAL:
        return float(value)
    if kind in INTEGRAL or kind in (STRING, BOOLEAN):
        return value  # type: ignore[no-any-return]  # JSON has these types
    raise NotNative(f"a default of type {kind}")
