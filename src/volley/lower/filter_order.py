# SPDX-License-Identifier: Apache-2.0
"""Orders the conditions of a filter over stored rows, and groups them for DataFusion.

    mode IN (...) AND commit < receipt AND ship < commit AND receipt >= a AND receipt < b          as Spark asks
    together(commit < receipt AND (ship < commit AND (receipt >= a AND receipt < b))) AND mode IN (...)

DataFusion evaluates AND from left to right. As soon as a left side leaves less than a fifth of a batch, it copies what
is left, all columns of it, for the right side. Comparing numbers in the whole batch takes less. So cheap conditions are
one, in which each left side is a single one of them that leaves more. The others come in the order of what they leave
for their cost. Nothing is known of the values, so how much a condition leaves is a guess. No condition passes one that
may fail: Spark evaluates them in its order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    ordered = [*_arrange(groups, node.child), *asked[len(free) :]]
    return node if ordered == asked else Filter(reduce(both, ordered), node.child)


def _arrange(groups: list[list[Expression]], child: Node) -> list[Expression]:
    parts = [part for group in groups for part in group]
    cheap = [part for part in parts if _is_cheap(part)]
    if len(cheap) < 2 or not _copies_for_cheap(groups):
        return parts
    others = [part for part in parts if not _is_cheap(part)]
    # The scan skips row groups by the plain conditions, and few rows reach them.
    return [_together(cheap), *others, *(part for part in cheap if _may_skip(child, part))]


def _copies_for_cheap(groups: list[list[Expression]]) -> bool:
    """Whether DataFusion would copy rows for a cheap condition."""
    left = 1.0
    for group in groups:
        if left < _COPIED_SHARE and any(map(_is_cheap, group)):
            return True
        left *= prod(map(_share, group))
    return False


def _together(parts: Sequence[Expression]) -> Expression:
    """These conditions as one: a AND (b AND (c AND d))."""
    *others, last = parts
    first, *between = others
    right = reduce(lambda right, part: both(part, right), reversed(between), last)
    return Call("And", (first, right), BOOLEAN, options=((_TOGETHER, True),))


def _groups(parts: Iterable[Expression]) -> list[list[Expression]]:
    """The conditions by the columns that they read: both ends of a range are one."""
    found: dict[frozenset[int], list[Expression]] = {}
    for part in parts:
        found.setdefault(references(part), []).append(part)
    return list(found.values())


def _value(group: list[Expression]) -> float:
    """How much of the rows a group drops for its cost."""
    return (1 - prod(map(_share, group))) / sum(map(_cost, group))


def _is_cheap(part: Expression) -> bool:
    """Whether evaluating it for all rows takes less than copying some, also as the left side of an AND."""
    return _cost(part) < _TEXT_COST and _share(part) >= _COPIED_SHARE


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
