# SPDX-License-Identifier: Apache-2.0
"""What makes DataFusion's answers Spark's: typed constants, one NaN and one zero, checks that fail.

A check here may fail on data that Spark would accept, since a query that fails natively is run again by Spark.
It must never let pass a value that Spark would not give.
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
    """Data on which the native engine cannot promise Spark's answer."""


def constant(value: Any, arrow_type: pa.DataType) -> Expr:
    """A literal of exactly this type: DataFusion would make an untyped one wider than Spark's."""
    if value is None and pa.types.is_list(arrow_type):
        # It cannot make one of a NULL list.
        return df_literal(pa.scalar(None, pa.null())).cast(arrow_type)
    return df_literal(pa.scalar(value, type=arrow_type))


def typed_null(arrow_type: pa.DataType) -> Expr:
    return constant(None, arrow_type)


TRUE = constant(True, pa.bool_())
FALSE = constant(False, pa.bool_())


# ---------------------------------------------------------------------------------------------- branches


def case(branches: Sequence[tuple[Expr, Expr]], otherwise: Expr, *, lazy_boolean: bool = False) -> Expr:
    """CASE. Its branches are evaluated only for their own rows, unless it is boolean.

    DataFusion turns a boolean CASE into AND and OR, and evaluates both sides of those for every row. Where a branch
    may fail, `lazy_boolean` hides the booleans from it.
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

    Arrow orders NaN by its sign and bits (0.0 / 0.0 has the sign set), and hashes -0.0 unlike 0.0.
    """
    arrow_type = to_arrow(data_type)
    return f.nanvl(expr + constant(0.0, arrow_type), constant(float("nan"), arrow_type))


def comparable(expr: Expr, data_type: DataType) -> Expr:
    """An operand whose Arrow comparison is Spark's."""
    return canonical_float(expr, data_type) if data_type in FRACTIONAL else expr


def sort_operand(expr: Expr, data_type: DataType) -> Expr:
    """A sort key whose Arrow order is Spark's: NaN is the largest value, -0.0 ties with 0.0."""
    return comparable(expr, data_type)


# ------------------------------------------------------------------------------------------------ checks


@cache
def kernel(name: str, function: Kernel, result: pa.DataType, *arguments: pa.DataType) -> ScalarUDF:
    """A function over whole Arrow arrays. One object a name, so that DataFusion sees equal calls as equal.

    `function` must be a module-level function, or one from a cache: the key contains it.
    """
    return udf(function, list(arguments), result, "immutable", f"volley_{name}")


def null_or_fail(expr: Expr, source: pa.DataType, result: pa.DataType) -> Expr:
    """NULL where `expr` is NULL; a value there fails the query. For branches that no value may reach."""
    name = f"null_or_fail_{source}_{result}"
    return kernel(name, _null_or_fail(result), result, source)(expr)


@cache
def _null_or_fail(result: pa.DataType) -> Kernel:
    def run(values: pa.Array) -> pa.Array:
        if values.null_count != len(values):
            raise ExactnessError("a value outside what the native engine computes exactly")
        return pa.nulls(len(values), result)

    return run


def null_only_where(value: Expr, source: Expr, source_type: DataType, result: DataType) -> Expr:
    """`value`, which must be NULL only where `source` is: otherwise the native engine gave up on a value."""
    return f.coalesce(value, null_or_fail(source, to_arrow(source_type), to_arrow(result)))


def fail_on_zero(expr: Expr, arrow_type: pa.DataType) -> Expr:
    """The divisor, or a failure if any is zero: IEEE division would answer infinity."""
    return kernel(f"fail_on_zero_{arrow_type}", _fail_on_zero, arrow_type, arrow_type)(expr)


def _fail_on_zero(values: pa.Array) -> pa.Array:
    if pc.any(pc.equal(values, pa.scalar(0, values.type))).as_py():
        raise ExactnessError("division by zero")
    return values


def null_on_zero(expr: Expr, arrow_type: pa.DataType) -> Expr:
    # Not nullif: it compares bits, and -0.0 would pass.
    zero = constant(Decimal(0) if pa.types.is_decimal(arrow_type) else 0, arrow_type)
    return f.when(expr == zero, typed_null(arrow_type)).otherwise(expr)


# ------------------------------------------------------------------------------------------------- time

MICROS_A_SECOND = 1_000_000
MICROS_A_DAY = 86_400 * MICROS_A_SECOND


def floor_divide(value: Expr, divisor: int) -> Expr:
    """A long divided downwards: Arrow divides towards zero, and times before 1970 must go down."""
    by, zero, one = (constant(number, pa.int64()) for number in (divisor, 0, 1))
    return value / by - f.when(value % by < zero, one).otherwise(zero)


def floor_to(value: Expr, size: int) -> Expr:
    """The largest multiple of `size` that is not above the long; below 64 bits it fails."""
    multiply = kernel("checked_multiply", pc.multiply_checked, pa.int64(), pa.int64(), pa.int64())
    return multiply(floor_divide(value, size), constant(size, pa.int64()))


# ---------------------------------------------------------------------------------------------- decimals


def decimal_type(data_type: DataType) -> DecimalType:
    if not isinstance(data_type, DecimalType):
        raise TypeError(f"expected a decimal, not {data_type}")
    return data_type


def at_scale(expression: Expression, lowered: Expr, scale: int) -> Expr:
    """`lowered`, with a constant rescaled now: Arrow would rescale it again for every row."""
    if not isinstance(expression, Literal) or not isinstance(expression.value, Decimal):
        return lowered
    written = decimal_type(expression.type)
    precision = written.precision + scale - written.scale
    if scale <= written.scale or precision > 38:
        return lowered
    return constant(expression.value, pa.decimal128(precision, scale))


def decimal_of_float(expr: Expr, data_type: DecimalType, *, null_on_overflow: bool) -> Expr:
    """A double rounded half up to a decimal, as Spark rounds the text that Java prints for it; or a failure.

    That text lies within a few units in the last place of the value. If the ends of that interval round alike, so
    does everything between, and Arrow's own rounding is right; otherwise the row is left to Spark.
    """
    arrow_type = to_arrow(data_type)

    def rounded(factor: float) -> Expr:
        value = expr * constant(factor, pa.float64())
        return value.try_cast(arrow_type) if null_on_overflow else value.cast(arrow_type)

    low, high = rounded(1 - 2.0**-50), rounded(1 + 2.0**-50)
    agree = f.coalesce(low == high, low.is_null() & high.is_null())
    return f.when(agree, low).otherwise(null_or_fail(expr, pa.float64(), arrow_type))


def check_precision(expr: Expr, data_type: DecimalType) -> Expr:
    """Fail unless the 128-bit value has the digits of its type: arithmetic only checks that 128 bits suffice.

    Only a cast to fewer digits validates, so a value of 38 digits fails as well and is left to Spark.
    """
    return expr.cast(pa.decimal128(data_type.precision - 1, data_type.scale)).cast(to_arrow(data_type))
