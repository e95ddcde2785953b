# SPDX-License-Identifier: Apache-2.0
"""Drops redundant null checks.

Spark adds `k IS NOT NULL` wherever a join or a comparison rejects NULL anyway. DataFusion estimates that each keeps a
fifth of the rows, and then picks the wrong build side. So checks that an operator above implies are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce

from volley.plan.builders import both
from volley.plan.expressions import Attribute, Call, Expression, Literal, conjuncts
from volley.plan.nodes import Filter, Join, JoinKind, Node, with_children
from volley.plan.traits import traits_of

# Comparisons of a column that are never true for NULL.
_REJECTING = frozenset(
    {"EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "In", "Like"}
    | {"StartsWith", "EndsWith", "Contains"}
)


def drop_implied_null_checks(node: Node, rejected: frozenset[int] = frozenset()) -> Node:
    """The plan without implied null checks. Operators above `node` drop rows with a NULL in a column of `rejected`."""
    match node:
        case Filter(condition, _):
            return _filter(node, list(conjuncts(condition)), rejected)
        case Join(kind, left_keys, right_keys, _, _, left, right, _, _):
            from_left = from_right = frozenset[int]()
            if kind in (JoinKind.INNER, JoinKind.SEMI, JoinKind.RIGHT):
                from_left = _columns(left_keys)
            if kind is not JoinKind.RIGHT and kind is not JoinKind.FULL and not node.null_aware:
                from_right = _columns(right_keys)
            if kind is JoinKind.INNER:
                from_left, from_right = from_left | rejected, from_right | rejected
            elif kind in (JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI, JoinKind.EXISTENCE):
                from_left |= rejected & {attribute.id for attribute in left.output}
            return replace(
                node,
                left=drop_implied_null_checks(left, from_left),
                right=drop_implied_null_checks(right, from_right),
            )
        case _:
            # The NULLs of a grouping key form one group, which is then rejected as a whole.
            below = _below(traits_of(node).carries(), rejected) if rejected else rejected
            return with_children(
                node, tuple(drop_implied_null_checks(child, below) for child in node.children)
            )


def _filter(node: Filter, parts: list[Expression], rejected: frozenset[int]) -> Node:
    compared = frozenset(column for part in parts for column in _rejects(part))
    kept = [part for part in parts if _checked_column(part) not in rejected | compared]
    checked = frozenset(column for part in parts if (column := _checked_column(part)) is not None)
    child = drop_implied_null_checks(node.child, rejected | compared | checked)
    if not kept:
        return child
    return Filter(reduce(both, kept), child)


def _checked_column(condition: Expression) -> int | None:
    match condition:
        case Call("IsNotNull", (Attribute(id, _, _, _),), _, _, _):
            return id
        case _:
            return None


def _rejects(condition: Expression) -> Iterator[int]:
    """The columns for which a NULL makes the condition not true."""
    match condition:
        case Call(name, (Attribute(id, _, _, _), *others), _, _, _) if name in _REJECTING:
            yield id
            if len(others) == 1 and isinstance(others[0], Attribute):
                yield others[0].id
        case Call(name, (Literal(), Attribute(id, _, _, _)), _, _, _) if name in _REJECTING:
            yield id
        case Call("Not", (Call(name, (Attribute(id, _, _, _), *_), _, _, _),), _, _, _) if name in _REJECTING:
            yield id


def _columns(keys: tuple[Expression, ...]) -> frozenset[int]:
    return frozenset(key.id for key in keys if isinstance(key, Attribute))


def _below(carried: Mapping[int, Expression], rejected: frozenset[int]) -> frozenset[int]:
    """The columns below that are copied to the rejected ones above."""
    below = (carried.get(id) for id in rejected)
    return frozenset(column.id for column in below if isinstance(column, Attribute))
