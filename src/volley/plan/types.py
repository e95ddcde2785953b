# SPDX-License-Identifier: Apache-2.0
"""Spark's SQL types as plain data, and the Arrow type that carries each of them.

Only these types can enter the native engine. Any other is kept as `OtherType`, so that the plan can still be
printed; the support table turns it into a reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class SimpleType:
    """A type without parameters, by Spark's JSON name (`long`, `string`, `timestamp_ntz`, ...)."""

    name: str

    def __str__(self) -> str:
        return _SQL_NAMES.get(self.name, self.name)


@dataclass(frozen=True)
class DecimalType:
    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True)
class StructField:
    name: str
    type: DataType
    nullable: bool


@dataclass(frozen=True)
class StructType:
    fields: tuple[StructField, ...]

    def __str__(self) -> str:
        return "struct<" + ",".join(f"{f.name}:{f.type}" for f in self.fields) + ">"


@dataclass(frozen=True)
class ArrayType:
    element: DataType
    contains_null: bool

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True)
class OtherType:
    """A Spark type without a native form (maps, intervals, variants, user-defined types, collated strings)."""

    name: str

    def __str__(self) -> str:
        return self.name


DataType = SimpleType | DecimalType | StructType | ArrayType | OtherType

BOOLEAN = SimpleType("boolean")
BYTE = SimpleType("byte")
SHORT = SimpleType("short")
INTEGER = SimpleType("integer")
LONG = SimpleType("long")
FLOAT = SimpleType("float")
DOUBLE = SimpleType("double")
STRING = SimpleType("string")
BINARY = SimpleType("binary")
DATE = SimpleType("date")
TIMESTAMP = SimpleType("timestamp")
TIMESTAMP_NTZ = SimpleType("timestamp_ntz")
NULL = SimpleType("void")

INTEGRAL = frozenset({BYTE, SHORT, INTEGER, LONG})
FRACTIONAL = frozenset({FLOAT, DOUBLE})

_ARROW: dict[SimpleType, pa.DataType] = {
    BOOLEAN: pa.bool_(),
    BYTE: pa.int8(),
    SHORT: pa.int16(),
    INTEGER: pa.int32(),
    LONG: pa.int64(),
    FLOAT: pa.float32(),
    DOUBLE: pa.float64(),
    STRING: pa.string(),
    BINARY: pa.binary(),
    DATE: pa.date32(),
    TIMESTAMP: pa.timestamp("us", tz="UTC"),
    TIMESTAMP_NTZ: pa.timestamp("us"),
    NULL: pa.null(),
}
_SQL_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


def parse_type(value: Any) -> DataType:
    """Parse a type from Spark's JSON form, already decoded."""
    if isinstance(value, str):
        if value == "string collate UTF8_BINARY":
            return STRING
        if value == "decimal":
            return DecimalType(10, 0)
        if match := _DECIMAL.fullmatch(value):
            return DecimalType(int(match[1]), int(match[2]))
        simple = SimpleType(value)
        return simple if simple in _ARROW else OtherType(value)
    if value.get("type") == "struct":
        # Only this metadata marks a collated string, whose comparisons are not bytewise.
        if any("__COLLATIONS" in field.get("metadata", {}) for field in value["fields"]):
            return OtherType("collated struct")
        return StructType(
            tuple(StructField(f["name"], parse_type(f["type"]), f["nullable"]) for f in value["fields"])
        )
    if value.get("type") == "array":
        return ArrayType(parse_type(value["elementType"]), value["containsNull"])
    return OtherType(str(value.get("type", value)))


def is_number(data_type: DataType) -> bool:
    return isinstance(data_type, DecimalType) or data_type in INTEGRAL or data_type in FRACTIONAL


def is_carried(data_type: DataType) -> bool:
    """Whether values of this type can enter the native engine unchanged."""
    match data_type:
        case OtherType():
            return False
        case DecimalType(precision, scale):
            return 0 <= scale <= precision <= 38
        case StructType(fields):
            return bool(fields) and all(is_carried(field.type) for field in fields)
        case ArrayType(element, contains_null):
            # `array()` has elements of no type that are never NULL, which Arrow refuses.
            return is_carried(element) and (contains_null or element != NULL)
        case SimpleType():
            return True


def contains_any(data_type: DataType, wanted: frozenset[DataType]) -> bool:
    """Whether the type, or one inside it, is among `wanted`."""
    match data_type:
        case StructType(fields):
            return any(contains_any(field.type, wanted) for field in fields)
        case ArrayType(element, _):
            return contains_any(element, wanted)
        case _:
            return data_type in wanted


def to_arrow(data_type: DataType) -> pa.DataType:
    match data_type:
        case SimpleType():
            return _ARROW[data_type]
        case DecimalType(precision, scale):
            return pa.decimal128(precision, scale)
        case StructType(fields):
            return pa.struct([pa.field(f.name, to_arrow(f.type), f.nullable) for f in fields])
        case ArrayType(element, contains_null):
            return pa.list_(pa.field("element", to_arrow(element), contains_null))
        case OtherType(name):
            raise TypeError(f"{name} has no Arrow type in Volley; the support table must refuse it first")
