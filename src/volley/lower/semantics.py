# SPDX-License-Identifier: Apache-2.0
"""Building blocks that give DataFusion Spark's semantics: typed constants, one NaN and one zero, checks that fail.

A check may fail on data that Spark accepts, because Spark runs a query that fails natively. It must never pass a value
that Spark would not return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr, ScalarUDF, udf
from datafusion import functions as f
from datafusion import literal as df_literal

from volley.plan.expressions import Expression, Literal
from volley.plan.types import FRACTIONAL, DataType, DecimalType, to_arrow

Kernel = Callable[..., pa.Array]


class ExactnessError(ValueError):
    """Data for which the native engine cannot guarantee Spark's result."""


def constant(value: Any, arrow_type: pa.DataType) -> Expr:
    """A literal of exactly this type: DataFusion would give an untyped one a wider type than Spark."""
    if pa.types.is_nested(arrow_type):
        return df_literal(_ArrowValue(pa.array([value], type=arrow_type)))
    return df_literal(pa.scalar(value, type=arrow_type))


class _ArrowValue:
    """One value for DataFusion, through Arrow's C interface.

    It cannot read pyarrow scalars of NULL arrays and maps, nor of arrays that contain such.
    """

    def __init__(self, value: pa.Array) -> None:
        self._value = value

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        exported: tuple[object, object] = self._value.__arrow_c_array__(requested_schema)
        return exported


def typed_null(arrow_type: pa.DataType) -> Expr:
    return constant(None, arrow_type)


TRUE = constant(True, pa.bool_())
FALSE = constant(False, pa.bool_())


# ---------------------------------------------------------------------------------------------- branches


def case(branches: Sequence[tuple[Expr, Expr]], otherwise: Expr, *, lazy_boolean: bool = False) -> Expr:
    """CASE. Unless it is boolean, a branch is evaluated only for its own rows.

    DataFusion turns a boolean CASE into AND and OR, and evaluates both sides of those for every row. If a branch may
    fail, `lazy_boolean` hides the booleans from it.
    """

    def branch(value: Expr) -> Expr:
        return value.cast(pa.int8()) if lazy_boolean else value

    (condition, value), *more = branches
    builder = f.when(condition, branch(value))
    for condition, value in more:
        builder = builder.when(condition, branch(value))
    whole = builder.otherwise(branch(otherwise))
    return whole.cast(pa.bool_()) if lazy_boolean else whole


# ------------------------------------------------------------------------------------------------ floats


def canonical_float(expr: Expr, data_type: DataType) -> Expr:
    """The value with a single NaN and no negative zero, as Spark compares, groups, sorts and joins floats.

    Arrow orders NaNs by sign and bits (0.0 / 0.0 has the sign set), and hashes -0.0 differently from 0.0.
    """
    arrow_type = to_arrow(data_type)
    return f.nanvl(expr + constant(0.0, arrow_type), constant(float("nan"), arrow_type))


def comparable(expr: Expr, data_type: DataType) -> Expr:
    """An operand that Arrow compares as Spark does."""
    return canonical_float(expr, data_type) if data_type in FRACTIONAL else expr


def sort_operand(expr: Expr, data_type: DataType) -> Expr:
    """A sort key that Arrow orders as Spark does: NaN is the largest value, -0.0 equals 0.0."""
    return comparable(expr, data_type)


# ------------------------------------------------------------------------------------------------ checks


@cache
def kernel(name: str, function: Kernel, result: pa.DataType, *arguments: pa.DataType) -> ScalarUDF:
    """A function over whole Arrow arrays. One object per name, so that DataFusion recognizes equal calls.

    `function` must be a module-level function or a cached one: it is part of the cache key.
    """
    return udf(function, list(arguments), result, "immutable", f"volley_{name}")


def null_or_fail(expr: Expr, source: pa.DataType, result: pa.DataType) -> Expr:
    """NULL where `expr` is NULL; any value fails the query. For branches that no value may reach."""
    name = f"null_or_fail_{source}_{result}"
    return kernel(name, _null_or_fail(result), result, source)(expr)


@cache
def _null_or_fail(result: pa.DataType) -> Kernel:
    def run(values: pa.Array) -> pa.Array:
        if values.null_count != len(values):
            raise ExactnessError("a value that the native engine cannot compute exactly")
        return pa.nulls(len(values), result)

    return run


def null_only_where(value: Expr, source: Expr, source_type: DataType, result: DataType) -> Expr:
    """`value`, which may be NULL only where `source` is: elsewhere NULL means that the native engine gave up."""
    return f.coalesce(value, null_or_fail(source, to_arrow(source_type), to_arrow(result)))


def fail_on_zero(divisor: Expr, dividend: Expr, arrow_type: pa.DataType) -> Expr:
    """The divisor. Fails if it is zero, for which IEEE division would return infinity, and the dividend is not NULL."""
    return kernel(f"fail_on_zero_{arrow_type}", _fail_on_zero, arrow_type, arrow_type, arrow_type)(
        divisor, dividend
    )


def _fail_on_zero(divisors: pa.Array, dividends: pa.Array) -> pa.Array:
    zero = pc.equal(divisors, pa.scalar(0, divisors.type))
    if pc.any(zero).as_py() and pc.any(pc.and_(zero, dividends.is_valid())).as_py():
        raise ExactnessError("division by zero")
    return divisors


def null_on_zero(expr: Expr, arrow_type: pa.DataType) -> Expr:
    # Not nullif, which compares bits: -0.0 would pass.
    zero = constant(Decimal(0) if pa.types.is_decimal(arrow_type) else 0, arrow_type)
    return f.when(expr == zero, typed_null(arrow_type)).otherwise(expr)


# ------------------------------------------------------------------------------------------------- time


def floor_divide(value: Expr, divisor: int) -> Expr:
    """Floor division of a long: Arrow truncates towards zero, but times before 1970 must round down."""
    by, zero, one = (constant(number, pa.int64()) for number in (divisor, 0, 1))
    return value / by - f.when(value % by < zero, one).otherwise(zero)


def floor_to(value: Expr, size: int) -> Expr:
    """The largest multiple of `size` that is not above the long. Fails if that is below the range of a long."""
    multiply = kernel("checked_multiply", pc.multiply_checked, pa.int64(), pa.int64(), pa.int64())
    return multiply(floor_divide(value, size), constant(size, pa.int64()))


# ---------------------------------------------------------------------------------------------- decimals


def decimal_type(data_type: DataType) -> DecimalType:
    if not isinstance(data_type, DecimalType):
        raise TypeError(f"expected a decimal, not {data_type}")
    return data_type


def at_scale(expression: Expression, lowered: Expr, scale: int) -> Expr:
    """`lowered`, with a constant rescaled in advance: Arrow would rescale it for every row."""
    if not isinstance(expression, Literal) or not isinstance(expression.value, Decimal):
        return lowered
    written = decimal_type(expression.type)
    precision = written.precision + scale - written.scale
    if scale <= written.scale or precision > 38:
        return lowered
    return constant(expression.value, pa.decimal128(precision, scale))


def saturate(value: Expr, floats: pa.DataType, bits: int) -> Expr:
    """A float as an integer of 32 or 64 bits, as Java casts it: NaN is 0, and what is out of range is the limit."""
    limit, integers = 2.0 ** (bits - 1), pa.int64() if bits == 64 else pa.int32()
    return (
        f.when(f.isnan(value), constant(0, integers))
        .when(value >= constant(limit, floats), constant(int(limit) - 1, integers))
        .when(value < constant(-limit, floats), constant(-int(limit), integers))
        # A cast of a constant would fail while DataFusion plans.
        .otherwise(value.try_cast(integers))
    )


def decimal_of_float(expr: Expr, data_type: DecimalType, *, null_on_overflow: bool) -> tuple[Expr, Expr]:
    """A double rounded half up to a decimal, as Spark rounds the text that Java prints for it, and whether it is known.

    That text is within a few units in the last place of the value. If both ends of that interval round alike, so does
    everything between, and Arrow's rounding is correct.
    """
    arrow_type = to_arrow(data_type)

    def rounded(factor: float) -> Expr:
        return (expr * constant(factor, pa.float64())).try_cast(arrow_type)

    low, high = rounded(1 - 2.0**-50), rounded(1 + 2.0**-50)
    is_null = low.is_null() & high.is_null() if null_on_overflow else expr.is_null()
    return low, f.coalesce(low == high, is_null)


def narrow(expr: Expr, arrow_type: pa.DataType, *, null_on_failure: bool = False) -> Expr:
    """Cast to a type that does not hold all values: they are rounded, fail, or become NULL.

    To compare a cast number with a literal, DataFusion casts the literal back instead: for it, `cast(5.4 as int) = 5`
    is `5.4 = 5.0`. It does not see the cast inside of this function, which with one argument is the identity.
    """
    return f.greatest(expr.try_cast(arrow_type) if null_on_failure else expr.cast(arrow_type))


def check_precision(expr: Expr, data_type: DecimalType) -> Expr:
    """Fail unless the value fits the precision of its type: arithmetic only checks for 128 bits.

    Only a cast to fewer digits validates, so a value of 38 digits fails too, and Spark runs the query.
    """
    return narrow(expr, pa.decimal128(data_type.precision - 1, data_type.scale)).cast(to_arrow(data_type))
