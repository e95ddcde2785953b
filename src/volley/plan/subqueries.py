# SPDX-License-Identifier: Apache-2.0
"""Subqueries: the plans inside a plan's expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from volley.plan.expressions import Expression, InSubquery, ScalarSubquery, transform
from volley.plan.expressions import walk as walk_parts
from volley.plan.nodes import Node, expressions, map_expressions, walk
from volley.plan.nodes import transform as transform_nodes


def plans_in(plan: Node) -> Iterator[Node]:
    """The subqueries of a plan, without nested ones."""
    for node in walk(plan):
        for expression in expressions(node):
            for part in walk_parts(expression):
                if isinstance(part, ScalarSubquery | InSubquery):
                    yield part.plan


def with_subqueries(plan: Node, change: Callable[[Node], Node]) -> Node:
    """The plan with `change` applied to every subquery in it. What holds no changed one stays the same object."""
    if next(plans_in(plan), None) is None:
        return plan

    def change_part(part: Expression) -> Expression:
        if isinstance(part, ScalarSubquery | InSubquery):
            changed = change(part.plan)
            return part if changed is part.plan else replace(part, plan=changed)
        return part

    return with_parts(plan, change_part)


def with_parts(plan: Node, change: Callable[[Expression], Expression]) -> Node:
    """The plan with `change` applied to every part of its expressions, children before their parents."""
    return transform_nodes(plan, lambda node: map_expressions(node, lambda e: transform(e, change)))
