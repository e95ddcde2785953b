# SPDX-License-Identifier: Apache-2.0
"""The rows of the support table for dates and times."""

from __future__ import annotations

from collections.abc import Callable

from volley.plan.expressions import Call
from volley.plan.types import (
    DATE,
    DAY_TIME_INTERVALS,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
)
from volley.support import casts
from volley.support.patterns import day_of_week
from volley.support.reasons import Reason, Unsupported
from volley.support.signatures import (
    Check,
    ExpressionRule,
    all_of,
    arguments,
    constant_text,
    integral,
    literal_value,
    one_of,
    option_in,
    refuse,
    rules,
    same,
)
from volley.times.patterns import FORMATTED, Part, parsed_pattern, read_pattern

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
    return arguments(_string, one_of(TIMESTAMP))(call) or casts.check_zone(call)


_TIME_TRUNCATIONS = _TRUNCATIONS | {"day", "dd", "hour", "minute", "second", "millisecond", "microsecond"}


def _pattern(read: Callable[[str], tuple[Part, ...] | None]) -> Check:
    """The second argument is a constant pattern, which Spark reads with the formatter of Java."""

    def check(call: Call) -> Unsupported | None:
        pattern = literal_value(call.arguments[1])
        if not isinstance(pattern, str) or read(pattern) is None:
            return refuse(call, "a pattern that is not a constant, or unusual", Reason.ARGUMENT_VALUE)
        return option_in("parserPolicy", "CORRECTED", "EXCEPTION")(call)

    return check


_format = _pattern(lambda pattern: read_pattern(pattern, FORMATTED))
_parsed = _pattern(parsed_pattern)


def _unix_timestamp(call: Call) -> Unsupported | None:
    if call.arguments[0].type in (TIMESTAMP, TIMESTAMP_NTZ):
        return None
    return all_of(arguments(_string, _string), _parsed, casts.check_zone)(call)


def _get_timestamp(call: Call) -> Unsupported | None:
    if call.type != TIMESTAMP:
        return refuse(call, str(call.type))
    return all_of(arguments(_string, _string), _parsed, casts.check_zone)(call)


def _add_interval(call: Call) -> Unsupported | None:
    if not isinstance(literal_value(call.arguments[1]), int):
        return refuse(call, "an interval that is not a constant", Reason.ARGUMENT_VALUE)
    return all_of(arguments(_times, lambda t: t in DAY_TIME_INTERVALS), casts.check_zone)(call)


_times = one_of(TIMESTAMP, TIMESTAMP_NTZ)


_PART = arguments(_date)
_INSTANT = arguments(one_of(TIMESTAMP))
_CLOCK = all_of(arguments(_times), casts.check_zone)
_IN_ZONE = all_of(arguments(one_of(TIMESTAMP), _string), constant_text(1), casts.check_zone)
_FORMATS = "A constant pattern of yyyy, MM, dd, HH, mm, ss, fractions and short names"

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
            "Hour": (_CLOCK, ""),
            "Minute": (_CLOCK, ""),
            "Second": (_CLOCK, ""),
            "SecondWithFraction": (_CLOCK, ""),
            "DateFormatClass": (
                all_of(arguments(one_of(TIMESTAMP), _string), _format, casts.check_zone),
                f"{_FORMATS}.",
            ),
            "FromUnixTime": (
                all_of(arguments(one_of(LONG), _string), _format, casts.check_zone),
                f"{_FORMATS}.",
            ),
            "GetTimestamp": (_get_timestamp, f"{_FORMATS}; Spark's code reads texts of another form."),
            "UnixTimestamp": (_unix_timestamp, f"Timestamps; texts by {_FORMATS.lower()}."),
            "ToUnixTimestamp": (_unix_timestamp, f"Timestamps; texts by {_FORMATS.lower()}."),
            "FromUTCTimestamp": (_IN_ZONE, "A constant time zone."),
            "ToUTCTimestamp": (_IN_ZONE, "A constant time zone."),
            "SubtractTimestamps": (
                all_of(same(_times), option_in("legacyInterval", False), casts.check_zone),
                "",
            ),
            "TimestampAddInterval": (
                _add_interval,
                "A constant interval of days, hours, minutes or seconds.",
            ),
            "PreciseTimestampConversion": (
                arguments(one_of(TIMESTAMP, TIMESTAMP_NTZ, LONG)),
                "Added by Spark for `window`.",
            ),
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
                "A constant unit.",
            ),
            "TruncDate": (_trunc_date, "A constant unit: year, quarter, month or week."),
        },
    ),
}
