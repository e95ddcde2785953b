# SPDX-License-Identifier: Apache-2.0
"""Rows of functions that PySpark sends as pickles and not as Arrow (`useArrow=False`).

The worker gets what Spark's JVM would send: tuples, or Rows that PySpark's own converter makes of internal values
(days, microseconds). What it returns are pickles of plain values, from a process that runs the user's code: nothing is
unpickled but the few classes that such values have.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from volley.errors import DataError
from volley.plan.types import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    NULL,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    ArrayType,
    DataType,
    DecimalType,
    SimpleType,
    StructField,
    StructType,
    contains_any,
    to_arrow,
)
from volley.worker.python.protocol import spark_json

# PySpark converts these in Python.
_CONVERTED: frozenset[DataType] = frozenset({DATE, TIMESTAMP, TIMESTAMP_NTZ})
# Of these Arrow gives the values that the JVM pickles.
_SAME_VALUES: frozenset[DataType] = frozenset(
    {BOOLEAN, BYTE, SHORT, INTEGER, LONG, FLOAT, DOUBLE, STRING, NULL}
)
_PROTOCOL = 4


# ------------------------------------------------------------------------------------------ to the worker


class RowPickler:
    """Pickles rows with these fields as Spark does."""

    def __init__(self, fields: Sequence[StructField], *, binary_as_bytes: bool) -> None:
        self._fields = tuple(fields)
        self._binary = bytes if binary_as_bytes else bytearray
        is_converted = any(contains_any(field.type, _CONVERTED) for field in fields)
        self._row = _Converter(StructType(self._fields)) if is_converted else None

    def pickle(self, batch: pa.RecordBatch) -> bytes:
        """The rows of a batch, whose columns are the fields, as one pickled list."""
        columns = [
            self._values(column, field.type)
            for column, field in zip(batch.columns, self._fields, strict=True)
        ]
        rows: list[Any] = list(zip(*columns, strict=True)) if columns else [()] * batch.num_rows
        if self._row is not None:
            rows = [_Row(self._row, row) for row in rows]
        return pickle.dumps(rows, _PROTOCOL)

    def _values(self, array: pa.Array, data_type: DataType) -> list[Any]:
        """Values as the JVM pickles them: dates and timestamps are numbers, structs are Rows."""
        found: list[Any]
        match data_type:
            case SimpleType("date"):
                found = array.cast(pa.int32()).to_pylist()
            case SimpleType("timestamp" | "timestamp_ntz"):
                found = array.cast(pa.int64()).to_pylist()
            case SimpleType("binary"):
                found = [None if value is None else self._binary(value) for value in array.to_pylist()]
            case ArrayType(element, _):
                flat = self._values(array.flatten(), element)
                found, start = [], 0
                for length in array.value_lengths().to_pylist():
                    found.append(None if length is None else flat[start : start + length])
                    start += length or 0
            case StructType(fields):
                inside = [self._values(array.field(n), field.type) for n, field in enumerate(fields)]
                converter = _Converter(data_type)
                found = [
                    _Row(converter, values) if is_valid else None
                    for values, is_valid in zip(
                        zip(*inside, strict=True), array.is_valid().to_pylist(), strict=True
                    )
                ]
            case _ if data_type in _SAME_VALUES or isinstance(data_type, DecimalType):
                found = array.to_pylist()
            case _:
                raise DataError(f"a Python function gets {data_type}, which is not pickled here.")
        return found


class _Converter:
    """Pickled as PySpark's converter from internal values to a Row of this type."""

    def __init__(self, data_type: StructType) -> None:
        self._type = _Type(json.dumps(spark_json(data_type)))

    def __call__(self, *values: Any) -> None:
        raise TypeError("only a Python worker has it")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        from pyspark.sql import types

        return types._create_row_inbound_converter, (self._type,)


class _Type:
    """Pickled as the type with this JSON."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        from pyspark.sql import types

        return types._parse_datatype_json_string, (self._text,)


class _Row:
    """Pickled as the result of a converter."""

    def __init__(self, converter: _Converter, values: tuple[Any, ...]) -> None:
        self._converter = converter
        self._values = values

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._converter, self._values


# ---------------------------------------------------------------------------------------- from the worker


class _PlainValues(pickle.Unpickler):
    """Unpickles lists, tuples, numbers, texts and bytes, and decimal numbers; no other class and no function."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("decimal", "Decimal"):
            return Decimal
        raise DataError(f"a Python function returned a {module}.{name}, which Spark has to judge.")


def read_results(block: bytes, types: Sequence[DataType]) -> pa.RecordBatch:
    """The results of some rows: one value for each row, or a tuple of them if there are several functions.

    Raises DataError for a value that is not plainly one of its type: Spark says what it makes of it.
    """
    rows = _load(block)
    columns = [rows] if len(types) == 1 else [[row[place] for row in rows] for place in range(len(types))]
    arrays = [to_array(values, data_type) for values, data_type in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[str(place) for place in range(len(types))])


def read_rows(block: bytes, row: StructType) -> list[pa.StructArray]:
    """The rows that a table function returned, one array for each call. Raises DataError, as `read_results`."""
    found = []
    for rows in _load(block):
        if type(rows) is not tuple:
            raise DataError("a Python worker returned no tuple of rows.")
        found.append(to_array(list(rows), row))
    return found


def _load(block: bytes) -> list[Any]:
    try:
        values = _PlainValues(io.BytesIO(block)).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"a Python function returned what cannot be read: {error}") from error
    if type(values) is not list:
        raise DataError("a Python worker returned no list of results.")
    return values


_INTEGERS: dict[DataType, int] = {BYTE: 8, SHORT: 16, INTEGER: 32, LONG: 64, DATE: 32}
_MICROSECONDS = frozenset({TIMESTAMP, TIMESTAMP_NTZ})
_CLASSES: dict[DataType, tuple[type, ...]] = {
    BOOLEAN: (bool,),
    FLOAT: (float,),
    DOUBLE: (float,),
    STRING: (str,),
    BINARY: (bytes, bytearray),
}


def to_array(values: list[Any], data_type: DataType) -> pa.Array:
    """Values that a function returned, in PySpark's internal form, as an array. Raises DataError, as `read_results`."""
    wanted = to_arrow(data_type)
    if not values:
        return pa.array([], wanted)
    match data_type:
        case SimpleType():
            return _simple_array(values, data_type, wanted)
        case DecimalType(precision, scale):
            _require(
                values, data_type, lambda value: type(value) is Decimal and _fits(value, precision, scale)
            )
            return _arrow_array(values, data_type, wanted)
        case ArrayType(element, contains_null):
            _require(values, data_type, lambda value: type(value) is list)
            lengths = [0 if value is None else len(value) for value in values]
            inside = to_array([item for value in values for item in value or ()], element)
            if inside.null_count and not contains_null:
                raise _refusal(data_type)
            ends = [0]
            for length in lengths:
                ends.append(ends[-1] + length)
            mask = pa.array([value is None for value in values])
            return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), inside, type=wanted, mask=mask)
        case StructType(fields):
            count = len(fields)
            _require(values, data_type, lambda value: type(value) is tuple and len(value) == count)
            nothing = (None,) * count
            columns = zip(*(nothing if value is None else value for value in values), strict=True)
            children = [
                to_array(list(column), field.type) for column, field in zip(columns, fields, strict=True)
            ]
            if any(
                child.null_count and not field.nullable for child, field in zip(children, fields, strict=True)
            ):
                raise _refusal(data_type)
            mask = pa.array([value is None for value in values], pa.bool_())
            return pa.StructArray.from_arrays(children, fields=list(wanted), mask=mask)
        case _:
            raise _refusal(data_type)


def _simple_array(values: list[Any], data_type: SimpleType, wanted: pa.DataType) -> pa.Array:
    if data_type == NULL:
        _require(values, data_type, lambda value: False)
        return pa.nulls(len(values))
    if bits := _INTEGERS.get(data_type) or (64 if data_type in _MICROSECONDS else 0):
        most = 1 << (bits - 1)
        _require(values, data_type, lambda value: type(value) is int and -most <= value < most)
        numbers = pa.array(values, pa.int32() if bits == 32 else pa.int64() if bits == 64 else wanted)
        return numbers.cast(wanted)
    if (classes := _CLASSES.get(data_type)) is None:
        raise _refusal(data_type)
    _require(values, data_type, lambda value: type(value) in classes)
    if data_type == FLOAT:
        return pa.array(values, pa.float64()).cast(wanted)
    return _arrow_array(values, data_type, wanted)


def _arrow_array(values: list[Any], data_type: DataType, wanted: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, wanted)
    except (pa.ArrowException, UnicodeEncodeError) as error:
        raise _refusal(data_type) from error


def _fits(value: Decimal, precision: int, scale: int) -> bool:
    """Whether the number has no more digits than its type, so that nothing is rounded."""
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or exponent < -scale:
        return False
    return not value or len(digits) + exponent <= precision - scale


def _require(values: list[Any], data_type: DataType, holds: Callable[[Any], bool]) -> None:
    for value in values:
        if value is not None and not holds(value):
            raise _refusal(data_type)


def _refusal(data_type: DataType) -> DataError:
    return DataError(f"a Python function returned a value that is not simply one of type {data_type}.")
