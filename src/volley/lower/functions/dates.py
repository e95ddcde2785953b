# SPDX-License-Identifier: Apache-2.0
"""Date functions, and the fields of timestamps in the time zone of the session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr
from datafusion import functions as f

from volley.lower.functions.zones import (
    INSTANT,
    LOCAL,
    has_zone,
    instant_of,
    local_date,
    local_time,
    moved,
    start_of_day,
    truncated,
)
from volley.lower.registry import always, translates
from volley.lower.semantics import (
    ExactnessError,
    Kernel,
    constant,
    floor_divide,
    floor_to,
    kernel,
    null_only_where,
    typed_null,
)
from volley.plan.expressions import Call, Literal
from volley.plan.types import DATE, INTEGER, TIMESTAMP_NTZ, DataType, to_arrow
from volley.support.patterns import day_of_week
from volley.times.units import MICROS_A_DAY, MICROS_A_SECOND

_PARTS = {
    "Year": "year",
    "Month": "month",
    "DayOfMonth": "day",
    "Quarter": "quarter",
    "DayOfYear": "doy",
    "WeekOfYear": "week",
}
_TIME_PARTS = {"Hour": "hour", "Minute": "minute", "Second": "second"}


def _part(value: Expr, part: str, source: DataType = DATE) -> Expr:
    """A field of a date. The native calendar ends after 262,000 years and returns NULL beyond."""
    field = f.date_part(part, value).cast(pa.int32())
    return null_only_where(field, value, source, INTEGER)


@translates(*_PARTS, fails=always)
def field(call: Call, arguments: list[Expr]) -> Expr:
    return _part(arguments[0], _PARTS[call.function])


@translates(*_TIME_PARTS, fails=always)
def time_field(call: Call, arguments: list[Expr]) -> Expr:
    return _part(local_time(call, arguments[0]), _TIME_PARTS[call.function], TIMESTAMP_NTZ)


@translates("SecondWithFraction", fails=always)
def second_with_fraction(call: Call, arguments: list[Expr]) -> Expr:
    seconds = kernel("second_with_fraction", _second_with_fraction, to_arrow(call.type), LOCAL)
    return seconds(local_time(call, arguments[0]))


def _second_with_fraction(local: pa.Array) -> pa.Array:
    micros = local.cast(pa.int64()).fill_null(0).to_numpy() % (60 * MICROS_A_SECOND)
    validity = pa.array(~_nulls(local)).buffers()[1]
    # The halves of decimals, of which the upper ones are 0.
    halves = np.stack([micros, np.zeros_like(micros)], axis=1)
    return pa.Array.from_buffers(pa.decimal128(8, 6), len(local), [validity, pa.py_buffer(halves)])


@translates("DayOfWeek", fails=always)
def day_of_week_(call: Call, arguments: list[Expr]) -> Expr:
    # Spark counts from 1, Sunday; DataFusion's dow from 0.
    return _part(arguments[0], "dow") + constant(1, pa.int32())


@translates("WeekDay", fails=always)
def week_day(call: Call, arguments: list[Expr]) -> Expr:
    # Spark counts from 0, Monday.
    return (_part(arguments[0], "dow") + constant(6, pa.int32())) % constant(7, pa.int32())


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
    months_before = (_number("month", value) - constant(1, pa.int32())) % constant(3, pa.int32())
    first = f.spark.add_months(_first_of_month(value), constant(0, pa.int32()) - months_before)
    return null_only_where(first, value, DATE, DATE)


_TRUNCATIONS: dict[str, Callable[[Expr], Expr]] = {
    **dict.fromkeys(("year", "yyyy", "yy"), _first_of_year),
    **dict.fromkeys(("month", "mon", "mm"), _first_of_month),
    "week": _first_of_week,
    "quarter": _first_of_quarter,
}


@translates("TruncTimestamp", fails=always)
def trunc_timestamp(call: Call, arguments: list[Expr]) -> Expr:
    """Units up to an hour, and in UTC a day, are fixed numbers of microseconds; longer ones use the date."""
    unit = call.arguments[0]
    assert isinstance(unit, Literal)
    assert isinstance(unit.value, str)
    name = unit.value.lower()
    if name in _MICROS_OF:
        size = _MICROS_OF[name]
        if has_zone(call) and size > MICROS_A_SECOND:
            return truncated(call, arguments[1], size)
        return floor_to(arguments[1].cast(pa.int64()), size).cast(INSTANT)
    return start_of_day(call, _TRUNCATIONS[name](local_date(call, arguments[1])))


_MICROS_OF = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": MICROS_A_SECOND,
    "minute": 60 * MICROS_A_SECOND,
    "hour": 3600 * MICROS_A_SECOND,
    "day": MICROS_A_DAY,
    "dd": MICROS_A_DAY,
}


_DAY_NAMES = pa.array(["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"])
_MONTH_NAMES = pa.array(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"])


@translates("DayName", fails=always)
def day_name(call: Call, arguments: list[Expr]) -> Expr:
    names = kernel("day_names", _DAY_NAMES.take, pa.string(), pa.int32())
    return names(_known(_number("dow", arguments[0]), arguments[0]))


@translates("MonthName", fails=always)
def month_name(call: Call, arguments: list[Expr]) -> Expr:
    names = kernel("month_names", _MONTH_NAMES.take, pa.string(), pa.int32())
    return names(_known(_number("month", arguments[0]), arguments[0]) - constant(1, pa.int32()))


def _known(number: Expr, date: Expr) -> Expr:
    return null_only_where(number, date, DATE, INTEGER)


@translates("NextDay", fails=always)
def next_day(call: Call, arguments: list[Expr]) -> Expr:
    day = call.arguments[1]
    assert isinstance(day, Literal)
    number = day_of_week(str(day.value))
    assert number is not None
    days = kernel(f"next_{number}", _next(number), pa.int32(), pa.int32())
    return days(_days(arguments[0])).cast(pa.date32())


@cache
def _next(day: int) -> Kernel:
    def run(days: pa.Array) -> pa.Array:
        numbers = days.fill_null(0).to_numpy().astype(np.int64)
        # At the ends Java's int wraps.
        if np.any(np.abs(numbers) > 2**31 - 16):
            raise ExactnessError("a date at the end of the calendar")
        # The epoch was a Thursday, from which Spark counts.
        found = numbers + 1 + (day - 1 - numbers) % 7
        return pa.array(found.astype(np.int32), mask=_nulls(days))

    return run


def _nulls(*columns: pa.Array) -> Any:
    return np.logical_or.reduce([column.is_null().to_numpy(zero_copy_only=False) for column in columns])


@translates("MakeDate", fails=always)
def make_date(call: Call, arguments: list[Expr]) -> Expr:
    strict = call.option("failOnError") is True
    run = _make_date_strict if strict else _make_date
    days = kernel(f"make_date_{strict}", run, pa.int32(), pa.int32(), pa.int32(), pa.int32())
    return days(*arguments).cast(pa.date32())


def _make_date_strict(*parts: pa.Array) -> pa.Array:
    made = _make_date(*parts)
    if made.null_count != int(_nulls(*parts).sum()):
        raise ExactnessError("a day that no calendar has")
    return made


_MONTH_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


def _make_date(*parts: pa.Array) -> pa.Array:
    """Days since the epoch in the proleptic Gregorian calendar; NULL for a day that does not exist."""
    nulls = _nulls(*parts)
    years, months, days = (part.fill_null(1).to_numpy().astype(np.int64) for part in parts)
    if np.any(np.abs(years) > 1_000_000):
        raise ExactnessError("a year at the end of the calendar")
    leap = (years % 4 == 0) & ((years % 100 != 0) | (years % 400 == 0))
    known = (months >= 1) & (months <= 12)
    months = np.where(known, months, 1)
    last = _MONTH_DAYS[months - 1] + (leap & (months == 2))
    known &= (days >= 1) & (days <= last)
    # Years are counted from March, so that a leap day is the last of its year.
    year = np.where(months <= 2, years - 1, years)
    day_of_year = (153 * ((months + 9) % 12) + 2) // 5 + days - 1
    since = 365 * year + year // 4 - year // 100 + year // 400 + day_of_year - 719_468
    return pa.array(np.where(known, since, 0).astype(np.int32), mask=nulls | ~known)


# ------------------------------------------------------------------------------- instants and numbers

_MICROS = {"UnixMicros": 1, "UnixMillis": 1_000, "UnixSeconds": MICROS_A_SECOND}


@translates(*_MICROS)
def unix_time(call: Call, arguments: list[Expr]) -> Expr:
    micros = arguments[0].cast(pa.int64())
    size = _MICROS[call.function]
    return micros if size == 1 else floor_divide(micros, size)


_SIZES = {"MicrosToTimestamp": 1, "MillisToTimestamp": 1_000, "SecondsToTimestamp": MICROS_A_SECOND}


@translates(*_SIZES, fails=always)
def timestamp_of(call: Call, arguments: list[Expr]) -> Expr:
    multiply = kernel("checked_multiply", pc.multiply_checked, pa.int64(), pa.int64(), pa.int64())
    micros = multiply(arguments[0].cast(pa.int64()), constant(_SIZES[call.function], pa.int64()))
    return micros.cast(pa.timestamp("us", tz="UTC"))


@translates("PreciseTimestampConversion")
def precise_timestamp_conversion(call: Call, arguments: list[Expr]) -> Expr:
    """Added by Spark around the arithmetic of `window`."""
    return arguments[0].cast(pa.int64()).cast(to_arrow(call.type))


@translates("FromUTCTimestamp", fails=always)
def from_utc_timestamp(call: Call, arguments: list[Expr]) -> Expr:
    return local_time(call, arguments[0]).cast(pa.int64()).cast(INSTANT)


@translates("ToUTCTimestamp", fails=always)
def to_utc_timestamp(call: Call, arguments: list[Expr]) -> Expr:
    return instant_of(call, arguments[0].cast(pa.int64()).cast(LOCAL))


@translates("SubtractTimestamps", fails=always)
def subtract_timestamps(call: Call, arguments: list[Expr]) -> Expr:
    """The difference of what the clocks show."""
    subtract = kernel("subtract_checked", pc.subtract_checked, pa.int64(), pa.int64(), pa.int64())
    return subtract(*(local_time(call, argument).cast(pa.int64()) for argument in arguments))


@translates("TimestampAddInterval", fails=always)
def timestamp_add_interval(call: Call, arguments: list[Expr]) -> Expr:
    """Days are those of the calendar, which may have more or fewer hours than 24."""
    interval = call.arguments[1]
    assert isinstance(interval, Literal)
    assert isinstance(interval.value, int)
    # As in Java both have the sign of the interval.
    rest = abs(interval.value) % MICROS_A_DAY * (1 if interval.value > 0 else -1)
    start = moved(call, arguments[0], interval.value - rest) if has_zone(call) else arguments[0]
    add = kernel("add_checked", pc.add_checked, pa.int64(), pa.int64(), pa.int64())
    by = rest if has_zone(call) else interval.value
    return add(start.cast(pa.int64()), constant(by, pa.int64())).cast(to_arrow(call.type))
