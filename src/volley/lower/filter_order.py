# SPDX-License-Identifier: Apache-2.0
"""Orders the conditions of a filter over stored rows, and groups them for DataFusion.

    mode IN (...) AND commit < receipt AND ship < commit AND receipt >= a AND receipt < b          as Spark asks
    receipt >= a AND receipt < b AND together(commit < receipt AND ship < commit) AND mode IN (...)

DataFusion evaluates AND from left to right. As soon as less than a fifth of a batch is left, it copies what is left,
all columns of it, for each further condition. So the conditions that leave least for their cost come first, and cheap
ones after them are one condition. Nothing is known of the values, so how much a condition leaves is a guess. No
condition passes one that may fail: Spark evaluates them in its order.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from itertools import takewhile
from math import prod

from volley.formats import streamed_format
from volley.formats.parquet import Parquet
from volley.lower.registry import may_fail
from volley.plan.builders import both
from volley.plan.expressions import Attribute, Call, Expression, Literal, conjuncts, references
from volley.plan.nodes import CachedRows, FileScan, Filter, Node, transform
from volley.plan.types import BINARY, BOOLEAN, STRING, DecimalType, SimpleType

# DataFusion copies what is left of a batch if it is less.
_COPIED_SHARE = 0.2
# What conditions probably leave, as in planners that know as little.
_SHARES = {
    "EqualTo": 0.1,
    "LessThan": 0.4,
    "LessThanOrEqual": 0.4,
    "GreaterThan": 0.4,
    "GreaterThanOrEqual": 0.4,
    "IsNotNull": 0.95,
}
_OTHER_SHARE = 0.5
# The cost of a row, of which comparing a number with a constant is 1.
_DECIMAL_COST, _TEXT_COST, _OTHER_COST = 2.0, 4.0, 20.0

_TOGETHER = "together"


def order_conditions(node: Node) -> Node:
    """The plan, with the conditions of each filter over stored rows in the order in which DataFusion is to see them."""
    return transform(node, _order)


def is_together(call: Call) -> bool:
    """Whether DataFusion is to evaluate this AND as one condition."""
    return bool(call.option(_TOGETHER))


def _order(node: Node) -> Node:
    if not isinstance(node, Filter) or not isinstance(node.child, FileScan | CachedRows):
        return node
    asked = list(conjuncts(node.condition))
    free = list(takewhile(lambda part: not may_fail(part), asked))
    groups = sorted(_groups(free), key=_value, reverse=True)
    first, cheap, others = _divide(groups)
    if len(cheap) > 1:
        # The scan skips row groups by the plain conditions, and few rows reach them.
        others += [part for part in cheap if _may_skip(node.child, part)]
        cheap = [Call("And", (reduce(both, cheap[:-1]), cheap[-1]), BOOLEAN, options=((_TOGETHER, True),))]
    ordered = [*first, *cheap, *others, *asked[len(free) :]]
    return node if ordered == asked else Filter(reduce(both, ordered), node.child)


def _groups(parts: Iterable[Expression]) -> list[list[Expression]]:
    """The conditions by the columns that they read: both ends of a range are one."""
    found: dict[frozenset[int], list[Expression]] = {}
    for part in parts:
        found.setdefault(references(part), []).append(part)
    return list(found.values())


def _divide(
    groups: list[list[Expression]],
) -> tuple[list[Expression], list[Expression], list[Expression]]:
    """Those before little is left of a batch; the cheap ones after them; the others after them."""
    first: list[Expression] = []
    cheap: list[Expression] = []
    others: list[Expression] = []
    left = 1.0
    for group in groups:
        if left >= _COPIED_SHARE:
            first += group
            left *= prod(map(_share, group))
        elif all(_cost(part) < _TEXT_COST for part in group):
            cheap += group
        else:
            others += group
    return first, cheap, others


def _value(group: list[Expression]) -> float:
    """How much of the rows a group drops for its cost."""
    return (1 - prod(map(_share, group))) / sum(map(_cost, group))


def _share(part: Expression) -> float:
    match part:
        case Call("In", (_, *candidates)):
            return min(_OTHER_SHARE, len(candidates) * _SHARES["EqualTo"])
        case Call(_, (_, other)) if not isinstance(other, Literal):
            return _OTHER_SHARE
        case Call(function):
            return _SHARES.get(function, _OTHER_SHARE)
        case _:
            return _OTHER_SHARE


def _cost(part: Expression) -> float:
    match part:
        case Call("In", (Attribute() as column, *candidates)):
            return _column_cost(column) + len(candidates)
        case Call("IsNotNull" | "IsNull", (Attribute(),)):
            return 1
        case Call(function, operands) if function in _SHARES and all(map(_is_plain, operands)):
            return sum(_column_cost(operand) for operand in operands if isinstance(operand, Attribute))
        case Call(_, operands):
            return _OTHER_COST + sum(map(_cost, operands))
        case _:
            return 1


def _is_plain(operand: Expression) -> bool:
    return isinstance(operand, Attribute | Literal)


def _column_cost(column: Attribute) -> float:
    match column.type:
        case DecimalType():
            return _DECIMAL_COST
        case SimpleType() if column.type not in (STRING, BINARY):
            return 1
        case _:
            return _TEXT_COST


def _may_skip(child: Node, part: Expression) -> bool:
    """Whether a scan may skip rows by the statistics that the condition is about."""
    if not isinstance(child, FileScan) or child.format != Parquet.name or streamed_format(child) is not None:
        return False
    return isinstance(part, Call) and any(isinstance(operand, Literal) for operand in part.arguments)
