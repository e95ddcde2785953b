# SPDX-License-Identifier: Apache-2.0
"""Turns decoded values of Avro files (`avro_types.decoded_form`) into Spark's, and checks them.

What Spark reads in another way, or refuses, raises DataError: it then runs the query.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from volley.errors import DataError
from volley.formats.avro_types import AvroType, branch_values
from volley.formats.decimals import decimals_of
from volley.plan.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    ArrayType,
    DataType,
    DecimalType,
    StructType,
    to_arrow,
)


def convert(values: pa.Array, stored: AvroType, wanted: DataType) -> pa.Array:
    """The decoded values of a type that has bytes, as the type that Spark asks for."""
    match stored.kind, wanted:
        case "union", _:
            return _of_union(values, stored, wanted)
        case "record", StructType(fields):
            columns = [
                find_column(values, stored, field.name, field.type, may_lack=field.nullable)
                for field in fields
            ]
            mask = values.is_null()
            return pa.StructArray.from_arrays(columns, fields=list(to_arrow(wanted)), mask=mask)
        case "array", ArrayType(element, _):
            items = convert(values.values, stored.parts[0], element)
            buffers = values.buffers()[:2]
            return pa.Array.from_buffers(to_arrow(wanted), len(values), buffers, -1, values.offset, [items])
        case (("bytes" | "fixed"), DecimalType()):
            return _decimals(values, stored, wanted)
        case _:
            find = _CONVERSIONS.get((stored.kind, wanted))
            if find is None:
                raise _not_read(stored, wanted)
            return find(values, stored)


def find_column(
    rows: pa.StructArray, stored: AvroType, name: str, wanted: DataType, *, may_lack: bool = True
) -> pa.Array:
    """A field of records, by its name in any case; NULL if they do not have it."""
    places = [place for place, other in enumerate(stored.names) if other.lower() == name.lower()]
    if len(places) > 1 or not (places or may_lack):
        raise DataError(f"an Avro file has {len(places)} columns {name}.")
    if not places:
        return pa.nulls(len(rows), to_arrow(wanted))
    found = stored.parts[places[0]]
    if found.is_empty:
        if found.kind != "null" or not pa.types.is_null(to_arrow(wanted)):
            raise _not_read(found, wanted)
        return pa.nulls(len(rows))
    return convert(rows.field(_decoded_place(stored, places[0])), found, wanted)


def check_numbers(values: pa.Array, stored: AvroType) -> None:
    """Raise DataError for a symbol or a branch that does not exist: Spark reads the values of all columns."""
    if not stored.has_numbers:
        return
    match stored.kind:
        case "enum":
            _symbols(values, stored)
        case "union":
            numbers, _ = _branches_of(values, stored)
            for number in set(numbers.tolist()):
                if stored.parts[number].has_numbers:
                    check_numbers(branch_values(values, stored, number), stored.parts[number])
        case "record":
            for place, part in enumerate(stored.parts):
                if part.has_numbers:
                    check_numbers(values.field(_decoded_place(stored, place)), part)
        case "map":
            check_numbers(values.values.field(1), stored.parts[0])
        case _:
            check_numbers(values.values, stored.parts[0])


def _decoded_place(record: AvroType, place: int) -> int:
    """Which field the decoded records have at a place: those that have no bytes are left out."""
    return sum(not part.is_empty for part in record.parts[:place])


def _not_read(stored: AvroType, wanted: DataType) -> DataError:
    meaning = f" ({stored.logical})" if stored.logical else ""
    return DataError(f"an Avro file has {stored.kind}{meaning} where {wanted} is read.")


# ----------------------------------------------------------------------------------------------------------- unions


def _of_union(values: pa.UnionArray, stored: AvroType, wanted: DataType) -> pa.Array:
    numbers, offsets = _branches_of(values, stored)

    def values_of(branch: AvroType, kind: DataType) -> pa.Array:
        """Those of a branch, and NULL where the value is of another one."""
        number = stored.parts.index(branch)
        found = convert(branch_values(values, stored, number), branch, kind)
        here = numbers == number
        return (
            found.slice(offsets[0], len(offsets))
            if here.all() and len(here)
            else found.take(pa.array(offsets, mask=~here))
        )

    branches = stored.branches
    if len(branches) == 1:
        return values_of(branches[0], wanted)
    kinds = {branch.kind for branch in branches}
    if (kinds, wanted) in (({"int", "long"}, LONG), ({"float", "double"}, DOUBLE)):
        return pc.coalesce(*(values_of(branch, wanted) for branch in branches))
    if not isinstance(wanted, StructType) or len(wanted.fields) != len(branches):
        raise _not_read(stored, wanted)
    # One of the fields has a value.
    columns = [values_of(branch, field.type) for branch, field in zip(branches, wanted.fields, strict=True)]
    nulls = [number for number, part in enumerate(stored.parts) if part.kind == "null"]
    mask = pa.array(np.isin(numbers, nulls))
    return pa.StructArray.from_arrays(columns, fields=list(to_arrow(wanted)), mask=mask)


def _branches_of(values: pa.UnionArray, stored: AvroType) -> tuple[np.ndarray, np.ndarray]:
    """The branch of each value, and its place there."""
    _, numbers, offsets = values.buffers()[:3]
    rows = slice(values.offset, values.offset + len(values))
    found = np.frombuffer(numbers, np.int8)[rows]
    if found.max(initial=0) >= len(stored.parts):
        raise DataError("an Avro file has a value of a branch that its union does not have.")
    return found, np.frombuffer(offsets, np.int32)[rows]


# ----------------------------------------------------------------------------------------------------- simple values


def _same(values: pa.Array, stored: AvroType) -> pa.Array:
    return values


def _cast_to(wanted: DataType) -> Callable[[pa.Array, AvroType], pa.Array]:
    return lambda values, stored: values.cast(to_arrow(wanted))


def _booleans(values: pa.Array, stored: AvroType) -> pa.Array:
    numbers = np.frombuffer(values.buffers()[1], np.uint8)[values.offset :][: len(values)]
    if (numbers > 1).any():
        raise DataError("an Avro file has booleans that are neither true nor false.")
    return pa.array(numbers.view(bool), mask=values.is_null().to_numpy(zero_copy_only=False))


def _symbols(values: pa.Array, stored: AvroType) -> pa.Array:
    try:
        return pa.array(stored.symbols, pa.string()).take(values)
    except pa.ArrowException as error:
        raise DataError(f"an Avro file has a symbol that its enum does not have: {error}") from error


def _binary(values: pa.Array, stored: AvroType) -> pa.Array:
    if stored.logical == "decimal":
        raise _not_read(stored, BINARY)
    return values.cast(pa.binary())


def _dates(values: pa.Array, stored: AvroType) -> pa.Array:
    if stored.logical != "date":
        raise _not_read(stored, DATE)
    return values.cast(pa.date32())


def _times(wanted: DataType, prefix: str) -> Callable[[pa.Array, AvroType], pa.Array]:
    def convert_times(values: pa.Array, stored: AvroType) -> pa.Array:
        if stored.logical in (None, f"{prefix}timestamp-millis"):
            values = pc.multiply_checked(values, 1000)
        elif stored.logical != f"{prefix}timestamp-micros":
            raise _not_read(stored, wanted)
        return values.cast(to_arrow(wanted))

    return convert_times


_CONVERSIONS: dict[tuple[str, DataType], Callable[[pa.Array, AvroType], pa.Array]] = {
    ("boolean", BOOLEAN): _booleans,
    ("int", INTEGER): _same,
    ("int", LONG): _cast_to(LONG),
    ("int", DOUBLE): _cast_to(DOUBLE),
    ("int", DATE): _dates,
    ("long", LONG): _same,
    ("long", TIMESTAMP): _times(TIMESTAMP, ""),
    ("long", TIMESTAMP_NTZ): _times(TIMESTAMP_NTZ, "local-"),
    ("float", FLOAT): _same,
    ("float", DOUBLE): _cast_to(DOUBLE),
    ("double", DOUBLE): _same,
    ("string", STRING): _same,
    ("enum", STRING): _symbols,
    ("bytes", BINARY): _binary,
    ("fixed", BINARY): _binary,
}


# --------------------------------------------------------------------------------------------------------- decimals


def _decimals(values: pa.Array, stored: AvroType, wanted: DecimalType) -> pa.Array:
    """Numbers in as many bytes as each needs, the highest first."""
    if (stored.logical, stored.precision, stored.scale) != ("decimal", wanted.precision, wanted.scale):
        raise _not_read(stored, wanted)
    # Avro ignores that a type is a decimal if not all numbers of its precision fit.
    if stored.kind == "fixed" and wanted.precision > math.floor(math.log10(2) * (8 * stored.size - 1)):
        raise _not_read(stored, wanted)
    return decimals_of(values.cast(pa.binary()), wanted)
