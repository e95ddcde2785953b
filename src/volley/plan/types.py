# SPDX-License-Identifier: Apache-2.0
"""Spark's SQL types as plain data, and the Arrow type that carries each of them.

Only these types can enter the native engine. Any other is kept as `OtherType`, so that the plan can still be
printed; the support table turns it into a reason.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
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
class MapType:
    key: DataType
    value: DataType
    value_contains_null: bool

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


@dataclass(frozen=True)
class OpaqueType:
    """A type whose values native operators pass on, but neither compare nor compute with.

    `variant`, `interval`, and text with a collation, such as `string collate UTF8_LCASE`.
    """

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class OtherType:
    """A Spark type without a native form, such as user-defined types."""

    name: str

    def __str__(self) -> str:
        return self.name


DataType = SimpleType | DecimalType | StructType | ArrayType | MapType | OpaqueType | OtherType

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

VARIANT = OpaqueType("variant")
CALENDAR_INTERVAL = OpaqueType("interval")

YEAR_MONTH_INTERVALS = frozenset(
    SimpleType(f"interval {fields}") for fields in ("year", "month", "year to month")
)
"""In months, as in Catalyst."""
_UNITS = ("day", "hour", "minute", "second")
DAY_TIME_INTERVALS = frozenset(
    SimpleType(f"interval {first}" + (f" to {last}" if last != first else ""))
    for place, first in enumerate(_UNITS)
    for last in _UNITS[place:]
)
"""In microseconds, as in Catalyst."""
TIMES = frozenset(SimpleType(f"time({digits})") for digits in range(10))
"""In nanoseconds since midnight, as in Catalyst."""
NUMBERED = YEAR_MONTH_INTERVALS | DAY_TIME_INTERVALS | TIMES
"""Types whose values are Catalyst's numbers, which Arrow orders as Spark orders the values. Only expressions of Spark
compute with them."""

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
    **dict.fromkeys(YEAR_MONTH_INTERVALS, pa.int32()),
    **dict.fromkeys(DAY_TIME_INTERVALS | TIMES, pa.int64()),
}
_OPAQUE = {
    VARIANT: pa.struct([pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False)]),
    CALENDAR_INTERVAL: pa.month_day_nano_interval(),
}
_COLLATED = "string collate "
_UNKNOWN_COLLATION = "string collate null"
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
        simple, opaque = SimpleType(value), OpaqueType(value)
        if opaque in _OPAQUE or (is_collated(opaque) and value != _UNKNOWN_COLLATION):
            return opaque
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
    if value.get("type") == "map":
        return MapType(
            parse_type(value["keyType"]), parse_type(value["valueType"]), value["valueContainsNull"]
        )
    return OtherType(str(value.get("type", value)))


def is_collated(data_type: DataType) -> bool:
    """Whether the type is text that Spark compares by a collation: equal values may have different bytes."""
    return isinstance(data_type, OpaqueType) and data_type.name.startswith(_COLLATED)


def holds_text(data_type: DataType) -> bool:
    """Whether there is text in values of this type, which must be UTF-8."""
    return _holds(data_type, lambda part: part == STRING or is_collated(part))


def merge_nullability(one: DataType, other: DataType) -> DataType:
    """`one`, with NULLs allowed wherever `other` allows them, if the types are the same otherwise; else `one`."""
    match one, other:
        case ArrayType(), ArrayType():
            element = merge_nullability(one.element, other.element)
            return ArrayType(element, one.contains_null or other.contains_null)
        case MapType(), MapType():
            key, value = merge_nullability(one.key, other.key), merge_nullability(one.value, other.value)
            return MapType(key, value, one.value_contains_null or other.value_contains_null)
        case StructType(fields), StructType(others) if len(fields) == len(others):
            return StructType(
                tuple(
                    StructField(a.name, merge_nullability(a.type, b.type), a.nullable or b.nullable)
                    for a, b in zip(fields, others, strict=True)
                )
            )
        case _:
            return one


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
            # Arrow refuses values of no type that are never NULL, such as the keys in the entries of `map()`.
            return bool(fields) and all(is_carried(f.type) and (f.nullable or f.type != NULL) for f in fields)
        case ArrayType(element, contains_null):
            # `array()` has elements of no type that are never NULL, which Arrow refuses.
            return is_carried(element) and (contains_null or element != NULL)
        case MapType(key, value, contains_null):
            # `map()` has keys and values of no type.
            return NULL not in (key, value) and is_carried(key) and is_carried(value)
        case SimpleType() | OpaqueType():
            return True


def is_shared(data_type: DataType) -> bool:
    """Whether values of this type look alike in Spark's Arrow data and in ours, so that other processes get them."""
    return is_carried(data_type) and not _holds(data_type, _is_of_our_own)


def is_stored(data_type: DataType) -> bool:
    """Whether Parquet files of Spark hold values of this type as we do: intervals are numbers there, too."""
    return is_carried(data_type) and not _holds(
        data_type, lambda part: (isinstance(part, OpaqueType) and not is_collated(part)) or part in TIMES
    )


def is_readable(data_type: DataType) -> bool:
    """Whether Arrow data of Spark can become ours: pyarrow does not read its intervals of months."""
    return is_carried(data_type) and not contains_any(data_type, YEAR_MONTH_INTERVALS)


def is_given_to_functions(data_type: DataType) -> bool:
    """Whether Python functions can get and return values of this type as Arrow.

    pyarrow has no intervals of months. Spark takes every time that a function returns for a `time(6)`.
    """
    return is_carried(data_type) and not _holds(
        data_type, lambda part: part in _NOT_IN_FUNCTIONS or is_collated(part)
    )


def is_collected(data_type: DataType) -> bool:
    """Whether Python programs can get values of this type."""
    return not contains_any(data_type, _NOT_COLLECTED)


_NOT_COLLECTED: frozenset[DataType] = YEAR_MONTH_INTERVALS | {CALENDAR_INTERVAL}
_NOT_IN_FUNCTIONS = _NOT_COLLECTED | (TIMES - {SimpleType("time(6)")})


def _is_of_our_own(data_type: DataType) -> bool:
    return isinstance(data_type, MapType | OpaqueType) or data_type in NUMBERED


def is_comparable(data_type: DataType) -> bool:
    """Whether the native engine can tell equal values of this type, or inside of it, from others."""
    return not _holds(data_type, lambda part: isinstance(part, MapType | OpaqueType | OtherType))


def is_exact(data_type: DataType) -> bool:
    """Whether equal values of this type have equal bits: neither floats nor texts of a collation."""
    return not _holds(data_type, lambda part: part in FRACTIONAL or is_collated(part))


def _holds(data_type: DataType, test: Callable[[DataType], bool]) -> bool:
    """Whether the type, or one inside it, passes a test."""
    if test(data_type):
        return True
    match data_type:
        case StructType(fields):
            return any(_holds(field.type, test) for field in fields)
        case ArrayType(element, _):
            return _holds(element, test)
        case MapType(key, value, _):
            return _holds(key, test) or _holds(value, test)
        case _:
            return False


def contains_any(data_type: DataType, wanted: frozenset[DataType]) -> bool:
    """Whether the type, or one inside it, is among `wanted`."""
    return _holds(data_type, lambda part: part in wanted)


def to_result(data_type: DataType) -> pa.DataType:
    """The Arrow type of this type in results, which is Spark's."""
    match data_type:
        case StructType(fields):
            return pa.struct([pa.field(f.name, to_result(f.type), f.nullable) for f in fields])
        case ArrayType(element, contains_null):
            return pa.list_(pa.field("element", to_result(element), contains_null))
        case MapType(key, value, contains_null):
            return pa.map_(to_result(key), pa.field("value", to_result(value), contains_null))
        case _ if data_type in DAY_TIME_INTERVALS:
            return pa.duration("us")
        case _ if data_type in TIMES:
            return pa.time64("ns")
        case _:
            return to_arrow(data_type)


def to_arrow(data_type: DataType) -> pa.DataType:
    """The Arrow type inside the engine. Fields of a struct have distinct names there, because engines look them up."""
    match data_type:
        case SimpleType():
            return _ARROW[data_type]
        case DecimalType(precision, scale):
            return pa.decimal128(precision, scale)
        case StructType(fields):
            named = zip(_distinct_names([f.name for f in fields]), fields, strict=True)
            return pa.struct([pa.field(name, to_arrow(f.type), f.nullable) for name, f in named])
        case ArrayType(element, contains_null):
            return pa.list_(pa.field("element", to_arrow(element), contains_null))
        case MapType(key, value, contains_null):
            return pa.map_(to_arrow(key), pa.field("value", to_arrow(value), contains_null))
        case OpaqueType():
            return pa.string() if is_collated(data_type) else _OPAQUE[data_type]
        case OtherType(name):
            raise TypeError(f"{name} has no Arrow type in Volley; the support table must refuse it first")


def _distinct_names(names: list[str]) -> list[str]:
    """Each name that occurs more than once gets a number that makes it new."""
    distinct: list[str] = []
    for name in names:
        candidates = (f"{name}_{number}" for number in itertools.count())
        taken = {*names, *distinct}
        distinct.append(name if names.count(name) == 1 else next(c for c in candidates if c not in taken))
    return distinct
