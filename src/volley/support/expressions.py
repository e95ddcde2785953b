# SPDX-License-Identifier: Apache-2.0
"""Which expressions run natively with exactly Spark's values: one row per Catalyst class.

The same table drives the verdict, explain and the page of supported expressions. Whatever is not listed is refused:
argument types are an allow-list, and constants that a translation needs are checked.
"""

from __future__ import annotations

from collections.abc import Iterator

from volley.plan.expressions import (
    AggregateCall,
    Call,
    Expression,
    InSubquery,
    ScalarSubquery,
    WindowCall,
    children,
)
from volley.plan.partition_nodes import PARTITION_FUNCTIONS
from volley.plan.types import is_carried, is_comparable
from volley.support.expression_rules import EXPRESSIONS
from volley.support.reasons import NOT_CERTAIN, Reason, Unsupported
from volley.support.signatures import ExpressionRule

__all__ = ["EXPRESSIONS", "ExpressionRule", "check_expression", "check_itself"]


def check_expression(expression: Expression) -> list[Unsupported]:
    """Why the expression cannot run natively: root causes only, each once; empty if it can.

    Aggregate and window functions are checked with their operators; only their arguments are checked here.
    """
    return list(dict.fromkeys(_reasons(expression)))


def _reasons(expression: Expression) -> Iterator[Unsupported]:
    parts = _parts_to_check(expression)
    if (
        isinstance(expression, Call)
        and expression.function not in EXPRESSIONS
        and any(map(_is_lambda, parts))
    ):
        # Name what the user called, not the pieces of its lambda.
        yield Unsupported(Reason.EXPRESSION, expression.function, "it calls a lambda")
        parts = tuple(part for part in parts if not _is_lambda(part))
        yield from (reason for part in parts for reason in _reasons(part))
        return
    below = [reason for part in parts for reason in _reasons(part)]
    if below:
        # The parent of an unsupported expression is not another reason.
        yield from below
    elif refusal := check_itself(expression):
        yield refusal


def check_itself(expression: Expression) -> Unsupported | None:
    """Why the expression has no native form, if all below it has one."""
    if not is_carried(expression.type):
        name = expression.function if isinstance(expression, Call) else getattr(expression, "name", "")
        return Unsupported(Reason.DATA_TYPE, str(name) or type(expression).__name__, str(expression.type))
    if isinstance(expression, ScalarSubquery) and not is_comparable(expression.type):
        # Its result becomes a constant of the plan, and there are none of maps.
        return Unsupported(Reason.DATA_TYPE, "ScalarSubquery", str(expression.type))
    if isinstance(expression, InSubquery) and not is_comparable(expression.value.type):
        return Unsupported(Reason.ARGUMENT_TYPES, "InSubquery", str(expression.value.type))
    if not isinstance(expression, Call):
        return None
    if expression.function in PARTITION_FUNCTIONS:
        # It is part of the operator that needs it, where that can be native.
        return Unsupported(Reason.NONDETERMINISTIC, expression.function, NOT_CERTAIN)
    rule = EXPRESSIONS.get(expression.function)
    return Unsupported(Reason.EXPRESSION, expression.function) if rule is None else rule.check(expression)


def _is_lambda(expression: Expression) -> bool:
    return isinstance(expression, Call) and expression.function == "LambdaFunction"


def _parts_to_check(expression: Expression) -> tuple[Expression, ...]:
    match expression:
        case AggregateCall(function, _, _, condition, _, _):
            return function.arguments if condition is None else (*function.arguments, condition)
        case WindowCall(function, partition_by, order_by, frame):
            called = function.arguments if isinstance(function, Call) else _parts_to_check(function)
            bounds = tuple(bound for bound in (frame.lower, frame.upper) if bound is not None)
            return (*called, *partition_by, *order_by, *bounds)
        case _:
            return children(expression)
