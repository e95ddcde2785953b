# SPDX-License-Identifier: Apache-2.0
"""Which parts of an expression Spark evaluates for every row.

A random number that is only evaluated for some rows is another one than that of the row's place. Most functions of two
arguments evaluate the second only if the first is not NULL; a division begins with its divisor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from volley.plan.expressions import Alias, Attribute, Call, Expression, Literal, SortKey
from volley.plan.partition_nodes import PARTITION_FUNCTIONS
from volley.plan.types import FRACTIONAL, INTEGRAL, STRING

_FIRST_ONLY = frozenset({"And", "Or", "If", "CaseWhen", "Coalesce"})
_ALL = frozenset({"CreateArray", "CreateNamedStruct"})
_IN_TURN = frozenset(
    {
        "Add",
        "Subtract",
        "Multiply",
        "EqualTo",
        "LessThan",
        "LessThanOrEqual",
        "GreaterThan",
        "GreaterThanOrEqual",
    }
    | {"ElementAt", "GetArrayItem", "Round", "Pow", "Concat"}
)
_DIVISOR_FIRST = frozenset({"Divide", "IntegralDivide", "Remainder", "Pmod"})
_NUMBERS = INTEGRAL | FRACTIONAL


def always_evaluated(expression: Expression) -> Iterator[Expression]:
    """Parts of the expression that are evaluated for every row, as far as that is certain."""
    yield expression
    match expression:
        case Alias(_, _, child) | SortKey(child, _, _) | Call(_, (child,), _, _, _):
            yield from always_evaluated(child)
        case Call(function, (first, *_), _, _, _) if function in _FIRST_ONLY:
            yield from always_evaluated(first)
        case Call(function, arguments, _, _, _) if function in _ALL:
            for argument in arguments:
                yield from always_evaluated(argument)
        case Call(function, arguments, _, _, _) if function in _IN_TURN:
            yield from _in_turn(arguments, _is_never_null)
        case Call(function, (left, right), _, _, _) if function in _DIVISOR_FIRST:
            yield from _in_turn((right, left), _is_never_zero)


def _in_turn(
    arguments: tuple[Expression, ...], goes_on: Callable[[Expression], bool]
) -> Iterator[Expression]:
    for argument in arguments:
        yield from always_evaluated(argument)
        if not goes_on(argument):
            return


def _is_never_null(expression: Expression) -> bool:
    match expression:
        case Literal(value, _):
            return value is not None
        case Attribute(_, _, _, nullable):
            return not nullable
        case Call(function, _, _, _, _) if function in PARTITION_FUNCTIONS or function in _ALL:
            return True
        case Call("Cast", (child,), kind, _, _):
            return child.type in _NUMBERS and kind in _NUMBERS | {STRING} and _is_never_null(child)
        case Call(function, (left, right), _, _, _) if function in _DIVISOR_FIRST:
            return _is_never_null(left) and _is_never_zero(right)
        case Call("Add" | "Subtract" | "Multiply" | "Floor" | "Ceil", arguments, kind, _, _):
            return kind in _NUMBERS and all(map(_is_never_null, arguments))
        case _:
            return False


def _is_never_zero(expression: Expression) -> bool:
    return isinstance(expression, Literal) and bool(expression.value)
