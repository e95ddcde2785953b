# SPDX-License-Identifier: Apache-2.0
"""Compares the rows of engines whose types differ: names, integer widths and the types of fractions do not count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa

_RELATIVE = 1e-6
# What rounding leaves of a zero.
_ZERO = 1e-12
# A little more than one, for the error of the subtraction.
_LAST_DIGIT = 1.01


def approximate_difference(expected: pa.Table, actual: pa.Table) -> str | None:
    """Describe how the rows differ, in any order; None if they agree.

    Numbers agree within a millionth, or within the last digit of the coarser one if they are decimals: an average of
    decimals is rounded to some digits in Spark, cut off in other engines, and a double in others.
    """
    if expected.num_columns != actual.num_columns:
        return f"{expected.num_columns} columns expected, {actual.num_columns} found"
    if expected.num_rows != actual.num_rows:
        return f"{expected.num_rows} rows expected, {actual.num_rows} found"
    slacks = [
        max(_slack(theirs.type), _slack(ours.type))
        for theirs, ours in zip(expected.schema, actual.schema, strict=True)
    ]
    # Fractions come last, so that rounding does not separate rows that other columns pair.
    columns = sorted(range(len(slacks)), key=lambda n: any(map(_is_fraction, _types(expected, actual, n))))
    theirs, ours = (sorted(_rows(table, columns), key=_sort_key) for table in (expected, actual))
    slacks = [slacks[column] for column in columns]
    for left, right in zip(theirs, ours, strict=True):
        if not all(map(_agree, left, right, slacks)):
            return f"expected {_show(left)}, found {_show(right)}"
    return None


def _types(expected: pa.Table, actual: pa.Table, column: int) -> tuple[pa.DataType, pa.DataType]:
    return expected.schema.field(column).type, actual.schema.field(column).type


def _is_fraction(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _slack(kind: pa.DataType) -> float:
    return float(_LAST_DIGIT * 10.0**-kind.scale) if pa.types.is_decimal(kind) and kind.scale > 0 else 0.0


def _rows(table: pa.Table, columns: Sequence[int]) -> list[tuple[Any, ...]]:
    values = [[_plain(value) for value in table.column(column).to_pylist()] for column in columns]
    return list(zip(*values, strict=True)) if values else [()] * int(table.num_rows)


def _plain(value: Any) -> Any:
    match value:
        case bool() | int() | str() | None:
            return value
        case float() | Decimal():
            return float(value)
        case datetime():
            return value.replace(tzinfo=None) if value.time() != time.min else value.date()
        case bytes():
            return value.decode("utf-8", "replace")
        case _:
            return value


def _sort_key(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(_value_key, row))


def _value_key(value: Any) -> tuple[int, Any]:
    match value:
        case None:
            return (0, 0)
        case int() | float():
            return (
                1,
                float(f"{value:.4e}") if math.isfinite(value) else (math.inf if value > 0 else -math.inf),
            )
        case date():
            return (2, value.isoformat())
        case _:
            return (3, str(value))


def _agree(expected: Any, actual: Any, slack: float) -> bool:
    numbers = isinstance(expected, int | float) and isinstance(actual, int | float)
    if not numbers:
        return bool(expected == actual)
    if isinstance(expected, int) and isinstance(actual, int):
        return expected == actual
    if math.isnan(expected) or math.isnan(actual):
        return math.isnan(expected) and math.isnan(actual)
    return math.isclose(expected, actual, rel_tol=_RELATIVE, abs_tol=max(slack, _ZERO))


def _show(row: tuple[Any, ...]) -> str:
    return "(" + ", ".join(repr(value) for value in row) + ")"
