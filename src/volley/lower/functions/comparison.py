# SPDX-License-Identifier: Apache-2.0
"""Comparisons, boolean logic and tests for NULL."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_ as or_operator

import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr
from datafusion import functions as f

from volley.lower.filter_order import is_together
from volley.lower.registry import may_fail, translates
from volley.lower.semantics import FALSE, TRUE, case, comparable, kernel
from volley.plan.expressions import Call, Literal
from volley.plan.types import to_arrow


def _operands(call: Call, arguments: list[Expr]) -> list[Expr]:
    return [comparable(expr, part.type) for expr, part in zip(arguments, call.arguments, strict=True)]


@translates("EqualTo")
def equal_to(call: Call, arguments: list[Expr]) -> Expr:
    left, right = _operands(call, arguments)
    return left == right


@translates("EqualNullSafe")
def equal_null_safe(call: Call, arguments: list[Expr]) -> Expr:
    left, right = _operands(call, arguments)
    return f.coalesce(left == right, left.is_null() & right.is_null())


@translates("LessThan")
def less_than(call: Call, arguments: list[Expr]) -> Expr:
    left, right = _operands(call, arguments)
    return left < right


@translates("LessThanOrEqual")
def less_than_or_equal(call: Call, arguments: list[Expr]) -> Expr:
    left, right = _operands(call, arguments)
    return left <= right


@translates("GreaterThan")
def greater_than(call: Call, arguments: list[Expr]) -> Expr:
    left, right = _operands(call, arguments)
    return left > right


@translates("GreaterThanOrEqual")
def greater_than_or_equal(call: Call, arguments: list[Expr]) -> Expr:
    left, right = _operands(call, arguments)
    return left >= right


@translates("In")
def is_in(call: Call, arguments: list[Expr]) -> Expr:
    value, *candidates = _operands(call, arguments)
    if all(isinstance(candidate, Literal) for candidate in call.arguments[1:]):
        return f.in_list(value, candidates)
    # DataFusion mistakes some lists for constants and returns NULL.
    return reduce(or_operator, (value == candidate for candidate in candidates))


@translates("And")
def and_(call: Call, arguments: list[Expr]) -> Expr:
    left, right = arguments
    if is_together(call):
        # The optimizer does not look into a comparison. Only filters have such conditions, and take NULL for false.
        return (left & right) >= TRUE
    if may_fail(call.arguments[1]):
        # DataFusion may evaluate both sides of AND for every row; CASE keeps `b <> 0 AND a / b > 1` from failing.
        return case([(~left, FALSE)], left & right, lazy_boolean=True)
    return left & right


@translates("Or")
def or_(call: Call, arguments: list[Expr]) -> Expr:
    left, right = arguments
    if may_fail(call.arguments[1]):
        return case([(left, TRUE)], left | right, lazy_boolean=True)
    return left | right


@translates("Not")
def not_(call: Call, arguments: list[Expr]) -> Expr:
    return ~arguments[0]


@translates("IsNull")
def is_null(call: Call, arguments: list[Expr]) -> Expr:
    return _as_kernel(call, arguments[0], pc.is_null) or arguments[0].is_null()


@translates("IsNotNull")
def is_not_null(call: Call, arguments: list[Expr]) -> Expr:
    return _as_kernel(call, arguments[0], pc.is_valid) or arguments[0].is_not_null()


def _as_kernel(call: Call, value: Expr, function: Callable[..., pa.Array]) -> Expr | None:
    """The test as a kernel if its operand may fail; otherwise None.

    DataFusion does not compute an operand that cannot be NULL, but 1 / 0 IS NULL must fail.
    """
    part = call.arguments[0]
    if not may_fail(part):
        return None
    arrow_type = to_arrow(part.type)
    return kernel(f"{function.__name__}_{arrow_type}", function, pa.bool_(), arrow_type)(value)


@translates("IsNaN")
def is_nan(call: Call, arguments: list[Expr]) -> Expr:
    # Spark's isnan of NULL is false.
    return f.coalesce(f.isnan(arguments[0]), FALSE)
