# SPDX-License-Identifier: Apache-2.0
"""Pickled rows, for functions that do not use Arrow (`useArrow=False`).

The worker gets what Spark's JVM would send: tuples, or Rows that PySpark's own converter makes of internal values
(days, microseconds). It returns pickles of plain values. They come from a process that runs the user's code, so only
the few classes of such values are unpickled.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from types import NoneType
from typing import Any

import pyarrow as pa

from volley.errors import DataError
from volley.plan.python_nodes import PythonProgram
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
from volley.spark_versions.registry import current
from volley.worker.python.protocol import spark_json
from volley.worker.python.row_functions import ARROW_ROWS

# PySpark converts these in Python.
_CONVERTED: frozenset[DataType] = frozenset({DATE, TIMESTAMP, TIMESTAMP_NTZ})
# For these, Arrow's Python values equal those that the JVM pickles.
_SAME_VALUES: frozenset[DataType] = frozenset(
    {BOOLEAN, BYTE, SHORT, INTEGER, LONG, FLOAT, DOUBLE, STRING, NULL}
)
_NUMBERS: frozenset[DataType] = frozenset({BYTE, SHORT, INTEGER, LONG, FLOAT, DOUBLE})
_PROTOCOL = 4
_BINARY_AS_BYTES = "spark.sql.execution.pyspark.binaryAsBytes"
# Without NULL's own type, and with the types of results that `row_functions` checks.
_SENT_AS_ARROW = _SAME_VALUES - {NULL}
# Functions cannot observe the size of a batch.
_ARROW_ROWS = 10_000


# ------------------------------------------------------------------------------------------ to the worker


def can_send_arrow(program: PythonProgram, results: Sequence[DataType]) -> bool:
    """Whether a function of pickled rows gets and returns the same objects if its rows are sent as Arrow.

    That takes a fraction of the time of pickles.
    """
    given = [field.type for field in program.columns]
    return current().calls_row_functions and _SENT_AS_ARROW.issuperset([*given, *results])


def send_arrow(program: PythonProgram) -> PythonProgram:
    """The program with the message to a worker that its rows come as Arrow."""
    settings = (*program.settings, (ARROW_ROWS, "true"))
    return replace(program, settings=settings, batch_rows=_ARROW_ROWS, batch_bytes=0)


class RowPickler:
    """Pickles rows with these fields as Spark does."""

    def __init__(self, fields: Sequence[StructField], *, binary_as_bytes: bool) -> None:
        self._fields = tuple(fields)
        self._binary = bytes if binary_as_bytes else bytearray
        is_converted = any(contains_any(field.type, _CONVERTED) for field in fields)
        self._row = _Converter(StructType(self._fields)) if is_converted else None
        self._is_plain = all(field.type in _SAME_VALUES for field in fields)

    @classmethod
    def of(cls, program: PythonProgram) -> RowPickler:
        as_bytes = current().has_binary_option and program.setting(_BINARY_AS_BYTES) != "false"
        return cls(program.columns, binary_as_bytes=as_bytes)

    def pickle(self, batch: pa.RecordBatch) -> bytes:
        """The rows of a batch, whose columns are the fields, as one pickled list."""
        columns = [
            self._values(column, field.type)
            for column, field in zip(batch.columns, self._fields, strict=True)
        ]
        rows: list[Any] = list(zip(*columns, strict=True)) if columns else [()] * batch.num_rows
        if self._row is not None:
            rows = [_Row(self._row, row) for row in rows]
        out = io.BytesIO()
        pickler = pickle.Pickler(out, _PROTOCOL)
        # Without a memo of objects that were pickled before: plain values are not worth one.
        pickler.fast = self._is_plain
        pickler.dump(rows)
        return out.getvalue()

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
            case _ if data_type in _NUMBERS and not array.null_count:
                # Many times faster than values one by one.
                found = array.to_numpy(zero_copy_only=False).tolist()
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

    Raises DataError for a value that is not plainly of its type: Spark decides how to convert it.
    """
    rows = _load(block)
    columns = [rows] if len(types) == 1 else [[row[place] for row in rows] for place in range(len(types))]
    arrays = [to_array(values, data_type) for values, data_type in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[str(place) for place in range(len(types))])


def read_rows(block: bytes, row: StructType) -> tuple[list[int], pa.StructArray]:
    """The rows that a table function returned: how many of each call, and all of them. DataError, as `read_results`."""
    calls = _load(block)
    if not {*map(type, calls)} <= {tuple}:
        raise DataError("a Python worker returned no tuple of rows.")
    return [len(rows) for rows in calls], to_array([item for rows in calls for item in rows], row)


def _load(block: bytes) -> list[Any]:
    try:
        values = _PlainValues(io.BytesIO(block)).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"a Python function returned what cannot be read: {error}") from error
    if type(values) is not list:
        raise DataError("a Python worker returned no list of results.")
    return values


_INTEGERS: dict[DataType, int] = {BYTE: 8, SHORT: 16, INTEGER: 32, LONG: 64, DATE: 32}
_OF_BITS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
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
            _require_classes(values, data_type, Decimal)
            if not all(value is None or _fits(value, precision, scale) for value in values):
                raise _refusal(data_type)
            return _arrow_array(values, data_type, wanted)
        case ArrayType(element, contains_null):
            _require_classes(values, data_type, list)
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
            _require_classes(values, data_type, tuple)
            if any(value is not None and len(value) != count for value in values):
                raise _refusal(data_type)
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
        _require_classes(values, data_type)
        return pa.nulls(len(values))
    if bits := _INTEGERS.get(data_type) or (64 if data_type in _MICROSECONDS else 0):
        _require_classes(values, data_type, int)
        try:
            return pa.array(values, _OF_BITS[bits]).cast(wanted)
        except (pa.ArrowException, OverflowError) as error:
            raise _refusal(data_type) from error
    if (classes := _CLASSES.get(data_type)) is None:
        raise _refusal(data_type)
    _require_classes(values, data_type, *classes)
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


def _require_classes(values: list[Any], data_type: DataType, *classes: type) -> None:
    """Exactly these classes, or None: a bool is no int here."""
    if not {*map(type, values)} <= {NoneType, *classes}:
        raise _refusal(data_type)


def _refusal(data_type: DataType) -> DataError:
    return DataError(f"a Python function returned a value that is not simply one of type {data_type}.")
