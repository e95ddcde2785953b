# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on integers and floats; `decimals` handles decimals.

Integers: on overflow ANSI fails, LEGACY wraps at the operand's width as Java does, TRY returns NULL. Types below 64
bits are computed in 64 bits, and the cast back checks the range; 64-bit types use Arrow's checked kernels.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr
from datafusion import functions as f

from volley.lower.functions import decimals
from volley.lower.functions.jvm import else_spark
from volley.lower.registry import in_ansi_mode, translates
from volley.lower.semantics import (
    constant,
    decimal_of_float,
    fail_on_zero,
    kernel,
    narrow,
    null_on_zero,
    saturate,
)
from volley.lower.value_ranges import fits
from volley.plan.expressions import Call, EvalMode, Literal
from volley.plan.types import DOUBLE, FRACTIONAL, INTEGRAL, LONG, DecimalType, to_arrow

_LONG_DIGITS = pa.decimal128(38, 0)
_OPERATORS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "Add": lambda left, right: left + right,
    "Subtract": lambda left, right: left - right,
    "Multiply": lambda left, right: left * right,
}
_CHECKED = {"Add": pc.add_checked, "Subtract": pc.subtract_checked, "Multiply": pc.multiply_checked}


def _overflows(call: Call) -> bool:
    if isinstance(call.type, DecimalType):
        return decimals.may_overflow(call)
    return in_ansi_mode(call) and call.type in INTEGRAL


@translates("Add", "Subtract", "Multiply", fails=_overflows)
def add_subtract_multiply(call: Call, arguments: list[Expr]) -> Expr:
    if isinstance(call.type, DecimalType):
        return decimals.add_subtract_multiply(call, arguments)
    left, right = arguments
    if call.type in FRACTIONAL or call.mode is EvalMode.LEGACY or fits(call):
        return _OPERATORS[call.function](left, right)
    return _integral(call, left, right)


def _integral(call: Call, left: Expr, right: Expr) -> Expr:
    arrow_type = to_arrow(call.type)
    compute = _OPERATORS[call.function]
    if call.type == LONG:
        if call.mode is EvalMode.TRY:
            digits = compute(left.cast(_LONG_DIGITS), right.cast(_LONG_DIGITS))
            return narrow(digits, arrow_type, null_on_failure=True)
        name = f"checked_{call.function}_{arrow_type}"
        return kernel(name, _CHECKED[call.function], arrow_type, arrow_type, arrow_type)(left, right)
    wide = compute(left.cast(pa.int64()), right.cast(pa.int64()))
    return narrow(wide, arrow_type, null_on_failure=call.mode is EvalMode.TRY)


@translates("Divide", fails=in_ansi_mode)
def divide(call: Call, arguments: list[Expr]) -> Expr:
    if isinstance(call.type, DecimalType):
        return decimals.divide(call, arguments)
    return arguments[0] / _divisor(call, arguments)


@translates("IntegralDivide", fails=in_ansi_mode)
def integral_divide(call: Call, arguments: list[Expr]) -> Expr:
    if isinstance(call.arguments[0].type, DecimalType):
        return decimals.integral_divide(call, arguments)
    quotient = arguments[0] / _divisor(call, arguments)
    if call.mode is not EvalMode.LEGACY or call.arguments[0].type != LONG:
        return quotient
    # Arrow fails on the one overflow, the smallest long by -1, where Java negates it to itself.
    zero, minus_one = (constant(number, pa.int64()) for number in (0, -1))
    return f.when(arguments[1] == minus_one, zero - arguments[0]).otherwise(quotient)


@translates("Remainder", fails=in_ansi_mode)
def remainder(call: Call, arguments: list[Expr]) -> Expr:
    if isinstance(call.type, DecimalType):
        return decimals.remainder(call, arguments)
    return arguments[0] % _divisor(call, arguments)


@translates("Pmod", fails=in_ansi_mode)
def pmod(call: Call, arguments: list[Expr]) -> Expr:
    arrow_type = to_arrow(call.type)
    value, divisor = arguments[0], _divisor(call, arguments)
    if pa.types.is_integer(arrow_type) and arrow_type.bit_width < 32:
        # Java computes bytes and shorts as ints, so remainder + divisor does not wrap.
        value, divisor = value.cast(pa.int32()), divisor.cast(pa.int32())
    rest = value % divisor
    zero = constant(0, pa.int32() if arrow_type.bit_width < 32 else arrow_type)
    return f.when(rest < zero, (rest + divisor) % divisor).otherwise(rest).cast(arrow_type)


def _divisor(call: Call, arguments: list[Expr]) -> Expr:
    """The divisor with Spark's treatment of zero: failure under ANSI, NULL otherwise."""
    dividend, divisor = arguments
    data_type = call.arguments[1].type
    if call.mode is not EvalMode.ANSI:
        return null_on_zero(divisor, to_arrow(data_type))
    # Arrow itself fails on an integer divided by zero.
    return fail_on_zero(divisor, dividend, to_arrow(data_type)) if data_type in FRACTIONAL else divisor


def _fails_on_smallest(call: Call) -> bool:
    return call.type in INTEGRAL and bool(call.option("failOnError"))


def _sign_fails(call: Call) -> bool:
    return isinstance(call.type, DecimalType) or _fails_on_smallest(call)


@translates("UnaryMinus", fails=_sign_fails)
def unary_minus(call: Call, arguments: list[Expr]) -> Expr:
    arrow_type = to_arrow(call.type)
    if isinstance(call.type, DecimalType):
        return decimals.negate(call.type, arguments[0])
    if call.type in FRACTIONAL:
        # 0.0 - x would turn 0.0 into 0.0, but Spark returns -0.0.
        return arguments[0] * constant(-1.0, arrow_type)
    if _fails_on_smallest(call):
        return kernel(f"checked_negate_{arrow_type}", pc.negate_checked, arrow_type, arrow_type)(arguments[0])
    return constant(0, arrow_type) - arguments[0]


@translates("Abs", fails=_sign_fails)
def absolute(call: Call, arguments: list[Expr]) -> Expr:
    arrow_type = to_arrow(call.type)
    if isinstance(call.type, DecimalType):
        return decimals.absolute(call.type, arguments[0])
    if call.type in FRACTIONAL:
        return f.abs(arguments[0])
    function = pc.abs_checked if _fails_on_smallest(call) else pc.abs
    return kernel(f"{function.__name__}_{arrow_type}", function, arrow_type, arrow_type)(arguments[0])


@translates("Signum")
def signum(call: Call, arguments: list[Expr]) -> Expr:
    # Check NaN first, because Arrow orders it above zero. NaN and both zeros map to themselves.
    value, zero = arguments[0], constant(0.0, pa.float64())
    return (
        f.when(f.isnan(value), value)
        .when(value > zero, constant(1.0, pa.float64()))
        .when(value < zero, constant(-1.0, pa.float64()))
        .otherwise(value)
    )


@translates("Sqrt")
def sqrt(call: Call, arguments: list[Expr]) -> Expr:
    # DataFusion fails on a negative number; Spark returns NaN.
    value = arguments[0]
    return f.when(value < constant(0.0, pa.float64()), constant(float("nan"), pa.float64())).otherwise(
        f.sqrt(value)
    )


def _fails_beyond_long(call: Call) -> bool:
    # Releases before 4.3 do not have the option, and never fail.
    return call.arguments[0].type in FRACTIONAL and bool(call.option("failOnError"))


@translates("Floor", fails=_fails_beyond_long)
def floor(call: Call, arguments: list[Expr]) -> Expr:
    return _whole(call, arguments[0], f.floor)


@translates("Ceil", fails=_fails_beyond_long)
def ceil(call: Call, arguments: list[Expr]) -> Expr:
    return _whole(call, arguments[0], f.ceil)


def _whole(call: Call, value: Expr, function: Callable[[Expr], Expr]) -> Expr:
    source = call.arguments[0].type
    if source in INTEGRAL:
        return value
    if isinstance(source, DecimalType):
        return decimals.whole(call, value, function)
    if _fails_beyond_long(call):
        return function(value).cast(to_arrow(call.type))
    return saturate(function(value), to_arrow(source), 64)


def _rounds_double(call: Call) -> bool:
    return call.type == DOUBLE


@translates("Round", fails=_rounds_double)
def round_(call: Call, arguments: list[Expr]) -> Expr:
    if isinstance(call.type, DecimalType):
        return narrow(arguments[0], to_arrow(call.type))
    # Integers do not change at a scale of 0 or more.
    return _round_double(call, arguments) if call.type == DOUBLE else arguments[0]


def _round_double(call: Call, arguments: list[Expr]) -> Expr:
    """Round as a decimal, as Spark does, and convert back with a single rounding. Beyond 2^53 there is no fraction."""
    value = arguments[0]
    scale = call.arguments[1]
    assert isinstance(scale, Literal)
    assert isinstance(scale.value, int)
    whole = f.isnan(value) | (f.abs(value) >= constant(2.0**53, pa.float64()))
    rounded, is_known = decimal_of_float(value, DecimalType(38, scale.value), null_on_overflow=False)
    native = f.when(whole, value).otherwise(rounded.cast(pa.string()).cast(pa.float64()))
    return else_spark(call, arguments, whole | is_known, native)


@translates("Rint")
def rint(call: Call, arguments: list[Expr]) -> Expr:
    return f.spark.rint(arguments[0])


@translates("Factorial")
def factorial(call: Call, arguments: list[Expr]) -> Expr:
    return f.spark.factorial(arguments[0])


# Java multiplies by these.
_ANGLES = {"ToRadians": 0.017453292519943295, "ToDegrees": 57.29577951308232}


@translates(*_ANGLES)
def angle(call: Call, arguments: list[Expr]) -> Expr:
    return arguments[0] * constant(_ANGLES[call.function], pa.float64())
