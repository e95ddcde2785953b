# SPDX-License-Identifier: Apache-2.0
"""Extracts comparisons of single columns from filters, and checks them against row-group statistics.

Only for types whose order is the same in Parquet's statistics and in Spark: integers, dates and strings. Floats are
excluded because statistics ignore NaN, which Spark orders above every other number.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow.parquet as pq

from volley.plan.expressions import Attribute, Call, Expression, Literal, conjuncts
from volley.plan.types import DATE, INTEGRAL, STRING

_EPOCH = datetime.date(1970, 1, 1)

# Whether the comparison with `value` may be true for some x with low <= x <= high.
_MAY: dict[str, Callable[[Any, Any, Any], bool]] = {
    "EqualTo": lambda low, high, value: low <= value <= high,
    "LessThan": lambda low, high, value: low < value,
    "LessThanOrEqual": lambda low, high, value: low <= value,
    "GreaterThan": lambda low, high, value: high > value,
    "GreaterThanOrEqual": lambda low, high, value: high >= value,
}
COMPARISONS = frozenset(_MAY)
"""Their names, which are the same in Catalyst and in PySpark's filters."""
_FLIPPED = {
    "EqualTo": "EqualTo",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
}


def may_hold(group: pq.RowGroupMetaData, name: str, function: str, values: Sequence[Any]) -> bool:
    """Whether the comparison may be true for some row of the group and one of `values`."""
    bounds = _bounds(group, name)
    return bounds is None or may_hold_between(*bounds, function, values)


def may_hold_between(low: Any, high: Any, function: str, values: Sequence[Any]) -> bool:
    """Whether the comparison may be true for some x with low <= x <= high and one of `values`."""
    low, high = _to_plain(low), _to_plain(high)
    if low is None or high is None or any(type(value) is not type(low) for value in values):
        return True
    return any(_MAY[function](low, high, value) for value in values)


def holds(value: Any, function: str, values: Sequence[Any]) -> bool:
    """Whether the comparison of `value` with one of `values` is true. Never for NULL."""
    return value is not None and any(_MAY[function](value, value, other) for other in values)


def comparisons(filters: Sequence[Expression]) -> Iterator[tuple[Attribute, str, list[Any]]]:
    """The comparisons that all `filters` imply: column, comparison, and values of which one must satisfy it."""
    for part in filters:
        for condition in conjuncts(part):
            if (comparison := _comparison(condition)) is not None:
                yield comparison


def _comparison(condition: Expression) -> tuple[Attribute, str, list[Any]] | None:
    match condition:
        case Call(function, (Attribute() as column, Literal(value, type))) if function in _MAY:
            values = [value]
        case Call(function, (Literal(value, type), Attribute() as column)) if function in _FLIPPED:
            function, values = _FLIPPED[function], [value]
        case Call("In", (Attribute() as column, *items)) if all(isinstance(item, Literal) for item in items):
            # A NULL in the list never makes IN true.
            literals = [item for item in items if isinstance(item, Literal) and item.value is not None]
            function, values, type = "EqualTo", [item.value for item in literals], column.type
        case _:
            return None
    if type != column.type or None in values or not (type in INTEGRAL or type in (DATE, STRING)):
        return None
    return column, function, values


def _bounds(group: pq.RowGroupMetaData, name: str) -> tuple[Any, Any] | None:
    for place in range(group.num_columns):
        column = group.column(place)
        if column.path_in_schema == name:
            found = column.statistics
            if found is None or not found.has_min_max:
                return None
            return found.min, found.max
    return None


def _to_plain(value: Any) -> int | str | None:
    """Convert a bound to the form of literals: dates are days since the epoch."""
    if isinstance(value, datetime.datetime | bool):
        return None
    if isinstance(value, datetime.date):
        return (value - _EPOCH).days
    return value if isinstance(value, int | str) else None
