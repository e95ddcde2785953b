# SPDX-License-Identifier: Apache-2.0
"""The rows of the support table for dates and times."""

from __future__ import annotations

from volley.plan.expressions import Call
from volley.plan.types import (
    DATE,
    INTEGER,
    STRING,
    TIMESTAMP,
)
from volley.support import casts
from volley.support.patterns import day_of_week
from volley.support.reasons import Reason, Unsupported
from volley.support.signatures import (
    ExpressionRule,
    all_of,
    arguments,
    integral,
    literal_value,
    one_of,
    option_in,
    refuse,
    rules,
)

_string = one_of(STRING)
_date = one_of(DATE)
_int = one_of(INTEGER)


def _next_day(call: Call) -> Unsupported | None:
    name = literal_value(call.arguments[1])
    if not isinstance(name, str) or day_of_week(name) is None:
        return refuse(call, "a day that is not a constant name", Reason.ARGUMENT_VALUE)
    return arguments(_date, _string)(call)


def _trunc_date(call: Call) -> Unsupported | None:
    unit = literal_value(call.arguments[1])
    if not isinstance(unit, str) or unit.lower() not in _TRUNCATIONS:
        return refuse(call, f"a unit other than {', '.join(sorted(_TRUNCATIONS))}", Reason.ARGUMENT_VALUE)
    return arguments(_date, _string)(call)


_TRUNCATIONS = frozenset({"year", "yyyy", "yy", "quarter", "month", "mon", "mm", "week"})


def _trunc_timestamp(call: Call) -> Unsupported | None:
    unit = literal_value(call.arguments[0])
    if not isinstance(unit, str) or unit.lower() not in _TIME_TRUNCATIONS:
        return refuse(
            call, f"a unit other than {', '.join(sorted(_TIME_TRUNCATIONS))}", Reason.ARGUMENT_VALUE
        )
    return arguments(_string, one_of(TIMESTAMP))(call) or casts.check_utc(call)


_TIME_TRUNCATIONS = frozenset({"year", "month", "week", "day", "dd", "hour", "minute", "second"})


_PART = arguments(_date)
_INSTANT = arguments(one_of(TIMESTAMP))
_CLOCK = all_of(arguments(one_of(TIMESTAMP)), casts.check_utc)

DATES: dict[str, ExpressionRule] = {
    **rules(
        "Dates and times",
        {
            "Year": (_PART, "Dates."),
            "Month": (_PART, "Dates."),
            "DayOfMonth": (_PART, "Dates."),
            "Quarter": (_PART, "Dates."),
            "DayOfYear": (_PART, "Dates."),
            "WeekOfYear": (_PART, "Dates."),
            "DayOfWeek": (_PART, "Dates."),
            "WeekDay": (_PART, "Dates."),
            "Hour": (_CLOCK, "Session time zone UTC."),
            "Minute": (_CLOCK, "Session time zone UTC."),
            "Second": (_CLOCK, "Session time zone UTC."),
            "DateAdd": (arguments(_date, integral), ""),
            "DateSub": (arguments(_date, integral), ""),
            "DateDiff": (arguments(_date, _date), ""),
            "UnixDate": (arguments(_date), ""),
            "DateFromUnixDate": (arguments(_int), ""),
            "AddMonths": (arguments(_date, _int), ""),
            "LastDay": (arguments(_date), ""),
            "DayName": (_PART, "Dates."),
            "MonthName": (_PART, "Dates."),
            "NextDay": (_next_day, "A constant day."),
            "MakeDate": (
                all_of(arguments(_int, _int, _int), option_in("failOnError", True, False)),
                "Years up to a million.",
            ),
            "UnixMicros": (_INSTANT, ""),
            "UnixMillis": (_INSTANT, ""),
            "UnixSeconds": (_INSTANT, ""),
            "MicrosToTimestamp": (arguments(integral), "Integers."),
            "MillisToTimestamp": (arguments(integral), "Integers."),
            "SecondsToTimestamp": (arguments(integral), "Integers."),
            "TruncTimestamp": (
                _trunc_timestamp,
                "A constant unit from year to second; session time zone UTC.",
            ),
            "TruncDate": (_trunc_date, "A constant unit: year, quarter, month or week."),
        },
    ),
}
