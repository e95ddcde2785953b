# SPDX-License-Identifier: Apache-2.0
"""Casts. ANSI fails where Spark may fail, TRY returns NULL there, LEGACY narrows as Java does."""

from __future__ import annotations

from functools import cache

import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr

from volley.jvm.calls import ProgramCall
from volley.lower.functions import decimals, parsing
from volley.lower.functions.datetime_formats import text_as_time, time_as_text
from volley.lower.functions.jvm import else_spark, run_program
from volley.lower.functions.zones import has_zone, instant_of, local_date, local_time, start_of_day
from volley.lower.registry import translates
from volley.lower.semantics import (
    Kernel,
    constant,
    decimal_of_float,
    floor_divide,
    kernel,
    narrow,
    saturate,
)
from volley.plan.expressions import Call, EvalMode
from volley.plan.types import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FRACTIONAL,
    INTEGER,
    INTEGRAL,
    LONG,
    NULL,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
    to_arrow,
)
from volley.times.units import MICROS_A_SECOND

_TEMPORAL = (DATE, TIMESTAMP, TIMESTAMP_NTZ)
_WIDTH = {BYTE: 1, SHORT: 2, INTEGER: 4, LONG: 8}
_INTEGER_DIGITS = {BYTE: 3, SHORT: 5, INTEGER: 10, LONG: 19}
# A decimal of up to 15 digits is a whole number below 2^53 over an exact power of ten: one division, one rounding.
_DIGITS_EXACT_IN_DOUBLE = 15


def _may_fail(call: Call) -> bool:
    source, target = call.arguments[0].type, call.type
    # Only usual years are written, and a zone does not reach to the ends of the calendar.
    is_time_text = source in (TIMESTAMP, TIMESTAMP_NTZ) and target == STRING
    return is_time_text or has_zone(call) or not _is_total(source, target)


def _is_total(source: DataType, target: DataType) -> bool:
    """Whether every value of `source` has an exact cast, in every mode, without a failure."""
    match source, target:
        case DecimalType(p1, s1), DecimalType(p2, s2):
            # Rounding to fewer digits may carry into one more whole digit.
            return p2 - s2 >= p1 - s1 + (s2 < s1)
        case _, DecimalType(p2, s2) if source in INTEGRAL:
            return p2 - s2 >= _INTEGER_DIGITS[source]
        case DecimalType(), _:
            return target not in INTEGRAL
    if source in INTEGRAL and target in INTEGRAL:
        return _WIDTH[source] <= _WIDTH[target]
    if source in FRACTIONAL:
        return target in FRACTIONAL or target == BOOLEAN
    return source not in (STRING, DATE) or target == BINARY


def _rounds(source: DecimalType, target: DataType) -> bool:
    return isinstance(target, DecimalType) and target.scale < source.scale


@translates("CheckOverflowInTableInsert")
def _insert_cast(call: Call, arguments: list[Expr]) -> Expr:
    # It only rephrases the error of the cast below, and Spark raises all errors itself.
    return arguments[0]


@translates("Cast", fails=_may_fail)
def cast(call: Call, arguments: list[Expr]) -> Expr:
    value, source, target = arguments[0], call.arguments[0].type, call.type
    arrow_type = to_arrow(target)
    if source == target:
        return value
    if source == NULL:
        return value.cast(arrow_type)
    if source == STRING and target in (TIMESTAMP, TIMESTAMP_NTZ):
        return text_as_time(call, arguments)
    if source == STRING and target != BINARY:
        program = ProgramCall.of(call)
        if program is not None:
            return parsing.parse_plain(value, target, run_program(program, call, arguments))
        return parsing.parse(value, target, call.mode)
    if target == BOOLEAN:
        return value != _zero(source)
    if source == BOOLEAN and isinstance(target, DecimalType):
        return _convert(call.mode, value.cast(pa.int8()), arrow_type, exact=target.precision > target.scale)
    if isinstance(source, DecimalType):
        return _from_decimal(call, value, source, target)
    if source in FRACTIONAL and isinstance(target, DecimalType):
        double = value if source == DOUBLE else value.cast(pa.float64())
        decimal, is_known = decimal_of_float(double, target, null_on_overflow=call.mode is not EvalMode.ANSI)
        return else_spark(call, arguments, is_known, decimal)
    if source in FRACTIONAL and target in INTEGRAL:
        return _whole_number(call.mode, value, source, target)
    if source in INTEGRAL and target in INTEGRAL and call.mode is EvalMode.LEGACY:
        return value.cast(arrow_type) if _is_total(source, target) else _wrap(value, source, target)
    if source in _TEMPORAL:
        return _from_time(call, value, source, target)
    return _convert(call.mode, value, arrow_type, exact=_is_total(source, target))


def _convert(mode: EvalMode | None, value: Expr, arrow_type: pa.DataType, *, exact: bool = False) -> Expr:
    if not exact:
        return narrow(value, arrow_type, null_on_failure=mode is not EvalMode.ANSI)
    return value.cast(arrow_type) if mode is EvalMode.ANSI else value.try_cast(arrow_type)


def _zero(source: DataType) -> Expr:
    arrow_type = to_arrow(source)
    if isinstance(source, DecimalType):
        return constant(0, pa.int8()).cast(arrow_type)
    return constant(0, arrow_type)


def _from_decimal(call: Call, value: Expr, source: DecimalType, target: DataType) -> Expr:
    arrow_type = to_arrow(target)
    if target == DOUBLE and source.precision <= _DIGITS_EXACT_IN_DOUBLE:
        return value.cast(arrow_type)
    if target in FRACTIONAL:
        # Arrow would round twice; the text of a decimal is parsed with a single rounding, as in Java.
        return value.cast(pa.string()).cast(arrow_type)
    if target not in INTEGRAL:
        exact = _is_total(source, target) and not _rounds(source, target)
        return _convert(call.mode, value, arrow_type, exact=exact)
    if call.mode is EvalMode.LEGACY:
        whole = decimals.whole_long(value, source)
        return whole if target == LONG else _wrap(whole, LONG, target)
    if target != LONG and source.precision > 18 and source.scale > 0:
        # Spark goes through double here: 5.99999999999999999999 becomes 6.
        double = value.cast(pa.string()).cast(pa.float64())
        return _whole_number(call.mode, double, DOUBLE, target)
    return _convert(call.mode, value, arrow_type)


def _whole_number(mode: EvalMode | None, value: Expr, source: DataType, target: DataType) -> Expr:
    """A float truncated to an integer. Out of range fails, is NULL, or (LEGACY) saturates as in Java."""
    if mode is not EvalMode.LEGACY:
        # Spark casts 2^63 to the largest long, Arrow does not: this fails, even in TRY mode, and Spark runs the query.
        return value.cast(to_arrow(target)) if target == LONG else _convert(mode, value, to_arrow(target))
    java = LONG if target == LONG else INTEGER
    saturated = saturate(value, to_arrow(source), 8 * _WIDTH[java])
    return saturated if java == target else _wrap(saturated, java, target)


def _wrap(value: Expr, source: DataType, target: DataType) -> Expr:
    """Keep the low bits, as Java's narrowing does."""
    arrow_type = to_arrow(target)
    name = f"wrap_{to_arrow(source)}_{arrow_type}"
    return kernel(name, _wrapping(arrow_type), arrow_type, to_arrow(source))(value)


@cache
def _wrapping(arrow_type: pa.DataType) -> Kernel:
    def run(values: pa.Array) -> pa.Array:
        return pc.cast(values, arrow_type, safe=False)

    return run


def _from_time(call: Call, value: Expr, source: DataType, target: DataType) -> Expr:
    """Dates and timestamps. Values outside the range of a timestamp fail in Spark in every mode."""
    if source == DATE:
        return start_of_day(call, value) if target == TIMESTAMP else value.cast(to_arrow(target))
    micros = value.cast(pa.int64())
    if target == STRING:
        return time_as_text(call, value)
    if target == DATE:
        return local_date(call, value)
    if target == LONG:
        return floor_divide(micros, MICROS_A_SECOND)
    return local_time(call, value) if target == TIMESTAMP_NTZ else instant_of(call, value)
