# SPDX-License-Identifier: Apache-2.0
"""Compares two results, Spark's and ours, and describes where they differ."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

# A sum of doubles depends on the order of the rows, which varies between runs even in Spark.
RELATIVE_TOLERANCE = 1e-9
_SHOWN_ROWS = 5

Row = tuple[Any, ...]


def difference(
    expected: pa.Table,
    actual: pa.Table,
    order: Sequence[int] | None = None,
    tolerance: float = RELATIVE_TOLERANCE,
) -> str | None:
    """Describe how two results differ; None if they are the same.

    Names, types (including decimal scale and time zone) and rows must agree. `order` lists the columns that the query
    sorts by, most significant first; None if it does not sort. Their values must come in the same sequence. Rows that
    tie in all of them may come in any order, as in Spark. Doubles agree within the relative `tolerance`, and -0.0
    equals 0.0; a tolerance of 0 compares them bit by bit. NaN always equals NaN.
    """
    if problem := _schema_difference(expected.schema, actual.schema):
        return problem
    if expected.num_rows != actual.num_rows:
        return f"{expected.num_rows} rows expected, {actual.num_rows} found" + _some(expected, actual)
    # Arrow takes 0.0 for -0.0.
    if tolerance and expected.equals(actual):
        return None
    if order and (problem := _order_difference(expected.select(order), actual.select(order), tolerance)):
        return problem
    return _rows_difference(expected, actual, tolerance)


def _schema_difference(expected: pa.Schema, actual: pa.Schema) -> str | None:
    if expected.names != actual.names:
        return f"columns expected: {expected.names}, found: {actual.names}"
    lines = [
        f"  {ours.name}: expected {_describe(theirs)}, found {_describe(ours)}"
        for theirs, ours in zip(expected, actual, strict=True)
        if theirs.type != ours.type or theirs.nullable != ours.nullable
    ]
    return "\n".join(["types differ:", *lines]) if lines else None


def _describe(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}"


def _order_difference(expected: pa.Table, actual: pa.Table, tolerance: float) -> str | None:
    # Not 0: zeros tie, whatever their sign.
    tolerance = tolerance or math.ulp(0.0)
    for position, (theirs, ours) in enumerate(zip(_rows(expected), _rows(actual), strict=True)):
        if not _same(theirs, ours, tolerance):
            return f"order differs at row {position}: expected {_show(theirs)}, found {_show(ours)}"
    return None


def _rows_difference(expected: pa.Table, actual: pa.Table, tolerance: float) -> str | None:
    theirs, ours = _rows(expected), _rows(actual)
    pairs = zip(sorted(theirs, key=_place), sorted(ours, key=_place), strict=True)
    differing = [(left, right) for left, right in pairs if not _same(left, right, tolerance)]
    if not differing:
        return None
    lines = [f"{len(differing)} of {len(theirs)} rows differ; columns {expected.column_names}"]
    for left, right in differing[:_SHOWN_ROWS]:
        lines += [f"  expected {_show(left)}", f"  found    {_show(right)}"]
    return "\n".join(lines)


def _some(expected: pa.Table, actual: pa.Table) -> str:
    """A few rows that only one side has, as a starting point."""
    theirs, ours = ({_sort_key(row): row for row in _rows(table)} for table in (expected, actual))
    lines = [f"  only expected {_show(row)}" for key, row in theirs.items() if key not in ours][:_SHOWN_ROWS]
    lines += [f"  only found    {_show(row)}" for key, row in ours.items() if key not in theirs][:_SHOWN_ROWS]
    return "".join(f"\n{line}" for line in lines)


def _rows(table: pa.Table) -> list[Row]:
    columns = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * int(table.num_rows)


def _same(expected: Any, actual: Any, tolerance: float) -> bool:
    match expected, actual:
        case float(), float():
            if math.isnan(expected) or math.isnan(actual):
                return math.isnan(expected) and math.isnan(actual)
            if not tolerance:
                return struct.pack("d", expected) == struct.pack("d", actual)
            return math.isclose(expected, actual, rel_tol=tolerance, abs_tol=0.0)
        case (list() | tuple(), list() | tuple()):
            return len(expected) == len(actual) and all(
                _same(left, right, tolerance) for left, right in zip(expected, actual, strict=True)
            )
        case dict(), dict():
            return expected.keys() == actual.keys() and all(
                _same(expected[name], actual[name], tolerance) for name in expected
            )
        case _:
            return type(expected) is type(actual) and bool(expected == actual)


def _place(row: Row) -> Any:
    """By what rows are sorted before they are compared: first as if doubles were rounded, then by their bits."""
    doubles = list(_doubles(row))
    return (
        _sort_key(row),
        [_exact(value) for value in doubles],
        [math.copysign(1, value) for value in doubles],
    )


def _doubles(value: Any) -> Iterator[float]:
    match value:
        case float():
            yield value
        case list() | tuple() | dict():
            for item in value.values() if isinstance(value, dict) else value:
                yield from _doubles(item)


def _sort_key(value: Any) -> Any:
    """A total order over rows that puts doubles that differ only by rounding next to each other.

    Exact columns come first: a rounded double must not separate rows that an exact column can pair.
    """
    match value:
        case None:
            return (0,)
        case float():
            return (1, _round(value))
        case list() | tuple():
            keys = [_sort_key(item) for item in value]
            exact = [key for item, key in zip(value, keys, strict=True) if not isinstance(item, float)]
            return (2, tuple(exact), tuple(keys))
        case dict():
            return _sort_key(list(value.values()))
        case bool() | int() | Decimal():
            return (3, value)
        case _:
            return (4, str(value))


def _round(value: float) -> tuple[bool, float]:
    return _exact(float(f"{value:.6e}"))


def _exact(value: float) -> tuple[bool, float]:
    # NaN is not comparable, so it is sorted separately, above infinity as in Spark.
    return (True, 0.0) if math.isnan(value) else (False, value + 0.0)


def _show(row: Any) -> str:
    text = ", ".join(_show_value(value) for value in row)
    return f"({text})"


def _show_value(value: Any) -> str:
    if isinstance(value, float):
        # Show the bits too, since different values may print alike.
        return f"{value!r}<{struct.pack('>d', value).hex()}>"
    return str(value) if isinstance(value, Decimal) else repr(value)
