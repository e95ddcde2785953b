# SPDX-License-Identifier: Apache-2.0
"""Decimal arithmetic with exactly the precision, scale and rounding of Spark's expression.

Spark computes exactly, rounds half up to the result's scale, and checks the result's precision. Arrow's 128-bit
arithmetic fails if the bits overflow, but not the precision, so there are three cases:

    the exact result has at most 38 digits         128 bits, nothing to check
    only the precision is capped at 38             128 bits, then check the digits; fails early
    the scale is reduced too, overflow is NULL,    256 bits, then a cast that rounds and checks
    or no digit is left before the point
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr
from datafusion import functions as f

from volley.lower.registry import always, translates
from volley.lower.semantics import (
    at_scale,
    check_precision,
    constant,
    decimal_type,
    kernel,
    narrow,
    null_on_zero,
)
from volley.lower.value_ranges import fits
from volley.plan.expressions import Call, EvalMode
from volley.plan.types import DecimalType, to_arrow

_MAX_DIGITS = 38
_WIDE_DIGITS = 76
_SIGN_DIGITS = 34
# Any number of so many digits is a long.
_LONG_DIGITS = 18


def _exact_type(call: Call) -> tuple[int, int]:
    """Digits and scale of the exact result of a sum, difference or product."""
    left, right = (decimal_type(argument.type) for argument in call.arguments)
    if call.function == "Multiply":
        return left.precision + right.precision, left.scale + right.scale
    scale = max(left.scale, right.scale)
    return max(left.precision - left.scale, right.precision - right.scale) + scale + 1, scale


def may_overflow(call: Call) -> bool:
    return _exact_type(call)[0] > _MAX_DIGITS


def add_subtract_multiply(call: Call, arguments: list[Expr]) -> Expr:
    result = decimal_type(call.type)
    digits, scale = _exact_type(call)
    if call.function != "Multiply":
        arguments = [at_scale(*pair, scale) for pair in zip(call.arguments, arguments, strict=True)]
    if digits <= _MAX_DIGITS or fits(call):
        return _compute(call.function, *arguments).cast(to_arrow(result))
    if scale == result.scale < result.precision and call.mode is EvalMode.ANSI:
        return check_precision(_compute(call.function, *arguments), result)
    wide = [
        expr.cast(pa.decimal256(_WIDE_DIGITS, decimal_type(part.type).scale))
        for expr, part in zip(arguments, call.arguments, strict=True)
    ]
    return _fit(_compute(call.function, *wide), call)


def _compute(function: str, left: Expr, right: Expr) -> Expr:
    match function:
        case "Add":
            return left + right
        case "Subtract":
            return left - right
        case _:
            return left * right


def _fit(expr: Expr, call: Call) -> Expr:
    """Round half up to the call's type; too many digits fail under ANSI and are NULL otherwise."""
    return narrow(expr, to_arrow(call.type), null_on_failure=call.mode is not EvalMode.ANSI)


def divide(call: Call, arguments: list[Expr]) -> Expr:
    """Arrow truncates, so divide to one digit more than needed and let the cast round half up."""
    return _fit(_quotient(call, arguments, decimal_type(call.type).scale + 1), call)


# Arrow's quotient has four more digits than its numerator.
_ARROW_QUOTIENT_DIGITS = 4


def _quotient(call: Call, arguments: list[Expr], scale: int) -> Expr:
    """The quotient truncated to `scale` digits. Arrow fails on zero and on overflow of the bits."""
    left, right = (decimal_type(argument.type) for argument in call.arguments)
    numerator, divisor = arguments
    if call.mode is not EvalMode.ANSI:
        divisor = null_on_zero(divisor, to_arrow(right))
    numerator_scale = max(scale - _ARROW_QUOTIENT_DIGITS, left.scale)
    digits = left.precision - left.scale + numerator_scale + _ARROW_QUOTIENT_DIGITS + right.scale
    if digits <= _MAX_DIGITS:
        enough = pa.decimal128(left.precision - left.scale + numerator_scale, numerator_scale)
        return numerator.cast(enough) / divisor
    wide = numerator.cast(pa.decimal256(_WIDE_DIGITS, numerator_scale))
    return wide / divisor.cast(pa.decimal256(_MAX_DIGITS, right.scale))


def integral_divide(call: Call, arguments: list[Expr]) -> Expr:
    left, right = (decimal_type(argument.type) for argument in call.arguments)
    scale = left.scale + _ARROW_QUOTIENT_DIGITS
    return _as_long(_quotient(call, arguments, 0), left.precision - left.scale + right.scale, scale)


def whole_long(value: Expr, source: DecimalType) -> Expr:
    """The whole part as a long; of one that is too large, the low bits, as Java keeps them."""
    return _as_long(value, source.precision - source.scale, source.scale)


def _as_long(value: Expr, digits: int, scale: int) -> Expr:
    if digits <= _LONG_DIGITS:
        return narrow(value, pa.int64())
    arrow_type = pa.decimal256(_WIDE_DIGITS, scale)
    return kernel(f"low_bits_{scale}", _low_bits, pa.int64(), arrow_type)(value.cast(arrow_type))


def _low_bits(values: pa.Array) -> pa.Array:
    # More digits than that fail.
    whole = pc.trunc(values).cast(pa.decimal128(_MAX_DIGITS, 0))
    longs = np.frombuffer(whole.buffers()[1], "<i8")[2 * whole.offset :: 2][: len(whole)]
    return pa.array(longs, pa.int64(), mask=~pc.is_valid(whole).to_numpy(zero_copy_only=False))


def remainder(call: Call, arguments: list[Expr]) -> Expr:
    types = [decimal_type(argument.type) for argument in call.arguments]
    left, right = arguments
    if call.mode is not EvalMode.ANSI:
        right = null_on_zero(right, to_arrow(types[1]))
    scale = max(part.scale for part in types)
    if scale + max(part.precision - part.scale for part in types) > _MAX_DIGITS:
        # Arrow computes at the larger scale, and fails if a number does not fit then.
        left, right = (part.cast(pa.decimal256(_WIDE_DIGITS, scale)) for part in (left, right))
    return (left % right).cast(to_arrow(call.type))


def _with_exact_sign(expr: Expr, data_type: DecimalType) -> Expr:
    """Fail on values that Spark does not negate exactly: Scala rounds them to 34 digits."""
    if data_type.precision <= _SIGN_DIGITS:
        return expr
    return narrow(expr, pa.decimal128(_SIGN_DIGITS, data_type.scale)).cast(to_arrow(data_type))


def negate(data_type: DecimalType, value: Expr) -> Expr:
    zero = constant(Decimal(0), pa.decimal128(max(data_type.scale, 1), data_type.scale))
    return (zero - _with_exact_sign(value, data_type)).cast(to_arrow(data_type))


def absolute(data_type: DecimalType, value: Expr) -> Expr:
    return f.abs(_with_exact_sign(value, data_type))


def whole(call: Call, value: Expr, function: Callable[[Expr], Expr]) -> Expr:
    """Floor or ceiling, computed with one more digit because 9.99 becomes 10."""
    source = decimal_type(call.arguments[0].type)
    if source.scale == 0:
        return value.cast(to_arrow(call.type))
    digits = source.precision + 1
    roomy = (pa.decimal128 if digits <= _MAX_DIGITS else pa.decimal256)(digits, source.scale)
    return function(value.cast(roomy)).cast(to_arrow(call.type))


@translates("CheckOverflow", fails=always)
def check_overflow(call: Call, arguments: list[Expr]) -> Expr:
    return narrow(arguments[0], to_arrow(call.type), null_on_failure=bool(call.option("nullOnOverflow")))


@translates("MakeDecimal", fails=always)
def make_decimal(call: Call, arguments: list[Expr]) -> Expr:
    """A decimal from its unscaled value: a long times the smallest positive decimal of that scale."""
    result = decimal_type(call.type)
    last_digit = constant(Decimal(1).scaleb(-result.scale), pa.decimal128(max(result.scale, 1), result.scale))
    value = arguments[0].cast(pa.decimal128(19, 0)) * last_digit
    return narrow(value, to_arrow(result), null_on_failure=bool(call.option("nullOnOverflow")))


@translates("UnscaledValue")
def unscaled_value(call: Call, arguments: list[Expr]) -> Expr:
    source = decimal_type(call.arguments[0].type)
    shift = constant(Decimal(10) ** source.scale, pa.decimal128(source.scale + 1, 0))
    return (arguments[0] * shift).cast(pa.int64())
