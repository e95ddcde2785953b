# SPDX-License-Identifier: Apache-2.0
"""Drops a semi join where an inner join above it drops the same rows.

Spark applies an IN subquery to both sides of a join by the same column. As stages they share one result; in one plan
the subquery would be computed twice:

    Join  o_orderkey = l_orderkey                 Join  o_orderkey = l_orderkey
      Semi join  o_orderkey in S                    Semi join  o_orderkey in S
        orders                             ->         orders
      Semi join  l_orderkey in S                    lineitem
        lineitem

The one over fewer bytes stays. What is between the dropped one and the inner join sees more rows, so that must not be
able to fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from volley.plan.expressions import Attribute
from volley.plan.nodes import Exchange, Filter, Join, JoinKind, Node, Project, Sort, transform, with_children
from volley.plan.traits import traits_of
from volley.stages.join_order import can_pass
from volley.stages.repeatable import gives_same_rows
from volley.stages.reuse import normal_form
from volley.stages.scans import scanned_bytes


def drop_implied_semi_joins(plan: Node) -> Node:
    """The plan without semi joins that the other side of an inner join implies."""
    return transform(plan, lambda node: _simplify(node) if isinstance(node, Join) else node)


def _simplify(join: Join) -> Join:
    if join.kind is not JoinKind.INNER:
        return join
    for left, right in zip(join.left_keys, join.right_keys, strict=True):
        if not isinstance(left, Attribute) or not isinstance(right, Attribute):
            continue
        on_right = {_set_of(semi): semi for semi in _semi_joins(join.right, right.id)}
        for semi in _semi_joins(join.left, left.id):
            other = on_right.get(_set_of(semi))
            if other is None:
                continue
            if scanned_bytes(semi.left) > scanned_bytes(other.left):
                return replace(join, left=_without(join.left, semi))
            return replace(join, right=_without(join.right, other))
    return join


def _set_of(semi: Join) -> Any:
    """Equal for semi joins by the same values."""
    return normal_form((semi.right_keys, semi.right))


def _semi_joins(node: Node, key: int) -> Iterator[Join]:
    """The semi joins by this column alone, above which all rows are treated separately."""
    match node:
        case Join():
            if node.kind is JoinKind.SEMI and _is_by(node, key) and gives_same_rows(node.right):
                yield node
            places = [
                place
                for place in traits_of(node).divisible
                if key in {attribute.id for attribute in node.children[place].output}
            ]
            if len(places) == 1 and can_pass(node, frozenset({key})):
                yield from _semi_joins(node.children[places[0]], key)
        case Project() | Filter() | Exchange() | Sort() if can_pass(node, frozenset({key})):
            yield from _semi_joins(node.child, key)


def _is_by(semi: Join, key: int) -> bool:
    if semi.condition is not None or len(semi.left_keys) != 1:
        return False
    (column,) = semi.left_keys
    return isinstance(column, Attribute) and column.id == key


def _without(node: Node, semi: Join) -> Node:
    if node is semi:
        return semi.left
    return with_children(node, tuple([_without(child, semi) for child in node.children]))
