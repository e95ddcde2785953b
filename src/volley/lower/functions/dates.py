# SPDX-License-Identifier: Apache-2.0
"""Date functions, and the time fields of timestamps in sessions whose time zone is UTC."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from datafusion import Expr
from datafusion import functions as f

from volley.lower.registry import always, translates
from volley.lower.semantics import (
    MICROS_A_DAY,
    MICROS_A_SECOND,
    constant,
    floor_divide,
    floor_to,
    null_only_where,
    typed_null,
)
from volley.plan.expressions import Call, Literal
from volley.plan.types import DATE

_PARTS = {
    "Year": "year",
    "Month": "month",
    "DayOfMonth": "day",
    "Quarter": "quarter",
    "DayOfYear": "doy",
    "WeekOfYear": "week",
    "Hour": "hour",
    "Minute": "minute",
    "Second": "second",
}


def _part(call: Call, value: Expr, part: str) -> Expr:
    """A field of a date. The native calendar ends after 262,000 years and returns NULL beyond."""
    field = f.date_part(part, value).cast(pa.int32())
    return null_only_where(field, value, call.arguments[0].type, call.type)


@translates(*_PARTS, fails=always)
def field(call: Call, arguments: list[Expr]) -> Expr:
    return _part(call, arguments[0], _PARTS[call.function])


@translates("DayOfWeek", fails=always)
def day_of_week(call: Call, arguments: list[Expr]) -> Expr:
    # Spark counts from 1, Sunday; DataFusion's dow from 0.
    return _part(call, arguments[0], "dow") + constant(1, pa.int32())


@translates("WeekDay", fails=always)
def week_day(call: Call, arguments: list[Expr]) -> Expr:
    # Spark counts from 0, Monday.
    return (_part(call, arguments[0], "dow") + constant(6, pa.int32())) % constant(7, pa.int32())


def _days(value: Expr) -> Expr:
    return value.cast(pa.int32())


@translates("DateAdd")
def date_add(call: Call, arguments: list[Expr]) -> Expr:
    # Days are plain ints in Spark, and wrap.
    return (_days(arguments[0]) + arguments[1].cast(pa.int32())).cast(pa.date32())


@translates("DateSub")
def date_sub(call: Call, arguments: list[Expr]) -> Expr:
    return (_days(arguments[0]) - arguments[1].cast(pa.int32())).cast(pa.date32())


@translates("DateDiff")
def date_diff(call: Call, arguments: list[Expr]) -> Expr:
    return _days(arguments[0]) - _days(arguments[1])


@translates("UnixDate")
def unix_date(call: Call, arguments: list[Expr]) -> Expr:
    return _days(arguments[0])


@translates("DateFromUnixDate")
def date_from_unix_date(call: Call, arguments: list[Expr]) -> Expr:
    return arguments[0].cast(pa.date32())


@translates("AddMonths", fails=always)
def add_months(call: Call, arguments: list[Expr]) -> Expr:
    start, months = arguments
    both = f.when(months.is_not_null(), start).otherwise(typed_null(pa.date32()))
    return null_only_where(f.spark.add_months(start, months), both, DATE, DATE)


@translates("LastDay", fails=always)
def last_day(call: Call, arguments: list[Expr]) -> Expr:
    return null_only_where(f.spark.last_day(arguments[0]), arguments[0], DATE, DATE)


@translates("TruncDate", fails=always)
def trunc_date(call: Call, arguments: list[Expr]) -> Expr:
    """The first day of the year, quarter, month or week, by subtracting the days since then."""
    unit = call.arguments[1]
    assert isinstance(unit, Literal)
    assert isinstance(unit.value, str)
    return _TRUNCATIONS[unit.value.lower()](arguments[0])


def _whole_day_before(value: Expr, days: Expr) -> Expr:
    first = (_days(value) - days).cast(pa.date32())
    return null_only_where(first, value, DATE, DATE)


def _number(part: str, value: Expr) -> Expr:
    return f.date_part(part, value).cast(pa.int32())


def _first_of_year(value: Expr) -> Expr:
    return _whole_day_before(value, _number("doy", value) - constant(1, pa.int32()))


def _first_of_month(value: Expr) -> Expr:
    return _whole_day_before(value, _number("day", value) - constant(1, pa.int32()))


def _first_of_week(value: Expr) -> Expr:
    since_monday = (_number("dow", value) + constant(6, pa.int32())) % constant(7, pa.int32())
    return _whole_day_before(value, since_monday)


def _first_of_quarter(value: Expr) -> Expr:
    # Computed in nanoseconds, which fails before 1677 and after 2262.
    first = f.date_trunc("quarter", value).cast(pa.date32())
    return null_only_where(first, value, DATE, DATE)


_TRUNCATIONS: dict[str, Callable[[Expr], Expr]] = {
    **dict.fromkeys(("year", "yyyy", "yy"), _first_of_year),
    **dict.fromkeys(("month", "mon", "mm"), _first_of_month),
    "week": _first_of_week,
    "quarter": _first_of_quarter,
}


@translates("TruncTimestamp", fails=always)
def trunc_timestamp(call: Call, arguments: list[Expr]) -> Expr:
    """In UTC every unit up to a week is a fixed number of microseconds; months and years use the date."""
    unit = call.arguments[0]
    assert isinstance(unit, Literal)
    assert isinstance(unit.value, str)
    name, utc = unit.value.lower(), pa.timestamp("us", tz="UTC")
    micros = arguments[1].cast(pa.int64())
    if name in _SECONDS:
        size = _SECONDS[name] * MICROS_A_SECOND
        return floor_to(micros, size).cast(utc)
    day = floor_divide(micros, MICROS_A_DAY).cast(pa.int32()).cast(pa.date32())
    return _TRUNCATIONS[name](day).cast(utc)


_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "dd": 86_400}
