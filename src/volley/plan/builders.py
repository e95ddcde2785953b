# SPDX-License-Identifier: Apache-2.0
"""Builds the expressions of which rewritten plans consist."""

from __future__ import annotations

from volley.plan.expressions import Call, EvalMode, Expression, Literal
from volley.plan.types import BOOLEAN, LONG


def both(one: Expression, other: Expression) -> Expression:
    return Call("And", (one, other), BOOLEAN)


def either(one: Expression, other: Expression) -> Expression:
    return Call("Or", (one, other), BOOLEAN)


def is_null(value: Expression) -> Expression:
    return Call("IsNull", (value,), BOOLEAN)


def is_not_null(value: Expression) -> Expression:
    return Call("IsNotNull", (value,), BOOLEAN)


def compare(function: str, one: Expression, other: Expression) -> Expression:
    return Call(function, (one, other), BOOLEAN)


def null_where(condition: Expression, value: Expression) -> Expression:
    """The value, or NULL where the condition holds."""
    return Call("If", (condition, Literal(None, value.type), value), value.type)


def fail_if(condition: Expression) -> Expression:
    """True, unless the condition holds: then the query fails, and Spark runs it."""
    counted = Call("If", (condition, Literal(1, LONG), Literal(0, LONG)), LONG)
    overflow = Call("Subtract", (Literal(-(2**63), LONG), counted), LONG, EvalMode.ANSI)
    return compare("LessThan", overflow, Literal(0, LONG))
