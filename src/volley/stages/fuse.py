# SPDX-License-Identifier: Apache-2.0
"""What becomes simpler when no exchange stands between two operators.

Spark splits an aggregate around its exchange: rows to state, exchange, state to value. Where the exchange is gone, the
pair is one aggregate again. Sorts that Spark put in for its own join and aggregate algorithms do nothing here.
"""

from __future__ import annotations

from dataclasses import replace

from volley.plan.expressions import (
    AggregateCall,
    AggregateMode,
    Alias,
    Attribute,
    Expression,
    attribute_of,
    references,
)
from volley.plan.expressions import (
    transform as transform_expression,
)
from volley.plan.nodes import (
    Aggregate,
    Exchange,
    Filter,
    Node,
    Project,
    Sort,
    Window,
    transform,
    with_children,
)
from volley.plan.traits import traits_of


def drop_idle_sorts(plan: Node) -> Node:
    """Without the sorts under joins, aggregates and windows, which order their input as they need it.

    The order of a global sort further down reaches a window as sort keys of its own (`plan.order`).
    """

    def change(node: Node) -> Node:
        if isinstance(node, Window):
            return replace(node, child=_unsorted(node.child))
        if traits_of(node).sorts_input:
            return with_children(node, tuple(_locally_unsorted(child) for child in node.children))
        return node

    return transform(plan, change)


def _locally_unsorted(node: Node) -> Node:
    return node.child if isinstance(node, Sort) and not node.whole else node


def _unsorted(node: Node) -> Node:
    match node:
        case Sort():
            return _unsorted(node.child)
        case Project() | Filter() | Exchange():
            return replace(node, child=_unsorted(node.child))
        case _:
            return node


def drop_idle_distinct(plan: Node) -> Node:
    """Spark removes duplicates below an aggregate of distinct values; doing so once more would only cost."""

    def change(node: Node) -> Node:
        if not isinstance(node, Aggregate) or not any(call.distinct for call in node.calls):
            return node
        # Directly below: behind an exchange, two tasks may still have given the same value.
        if not isinstance(node.child, Aggregate):
            return node
        unique = {attribute_of(key).id for key in node.child.grouping}
        grouped = {id for key in node.grouping for id in references(key)}
        calls = tuple(
            replace(call, distinct=False)
            if call.distinct and call.mode.reads_rows and unique <= grouped | references(call.function)
            else call
            for call in node.calls
        )
        return replace(node, calls=calls)

    return transform(plan, change)


def combine_aggregates(plan: Node) -> Node:
    """Every pair of aggregates that stand on each other with the same groups becomes one."""

    def change(node: Node) -> Node:
        if isinstance(node, Aggregate) and isinstance(node.child, Aggregate):
            return combined(node, node.child) or node
        return node

    return transform(plan, change)


def complete_after_exchange(plan: Node, unsplittable: frozenset[str]) -> Node:
    """Functions whose state cannot leave a task see the rows themselves: exchange first, then aggregate at once."""

    def change(node: Node) -> Node:
        if not isinstance(node, Aggregate) or not isinstance(node.child, Exchange):
            return node
        exchange, partial = node.child, node.child.child
        if not isinstance(partial, Aggregate):
            return node
        if not any(call.function.function in unsplittable for call in partial.calls):
            return node
        whole = combined(node, partial)
        if whole is None:
            return node
        groups = {attribute_of(key).id: key.child for key in partial.grouping if isinstance(key, Alias)}

        def ungroup(part: Expression) -> Expression:
            return groups.get(part.id, part) if isinstance(part, Attribute) else part

        keys = tuple(transform_expression(key, ungroup) for key in exchange.keys)
        return replace(whole, child=replace(exchange, keys=keys, child=_needed(whole, partial.child)))

    return transform(plan, change)


def _needed(aggregate: Aggregate, child: Node) -> Node:
    """The child's columns that the aggregate reads: rows are wider than state, so do not move the others."""
    read: set[int] = set()
    for expression in (*aggregate.grouping, *aggregate.calls):
        read |= references(expression)
    kept = tuple(attribute for attribute in child.output if attribute.id in read)
    return child if len(kept) == len(child.output) else Project(kept, child)


def combined(upper: Aggregate, lower: Aggregate) -> Aggregate | None:
    """`upper` over `lower` as one aggregate, or None where they are not two halves of one."""
    groups = tuple(attribute_of(key).id for key in lower.grouping)
    if tuple(_id(key) for key in upper.grouping) != groups:
        return None
    if tuple(_id(result) for result in lower.results) != groups + tuple(a.id for a in lower.buffers):
        return None
    if len(upper.calls) != len(lower.calls):
        return None
    calls = []
    for above, below in zip(upper.calls, lower.calls, strict=True):
        mode = _combined_mode(above.mode, below.mode)
        if mode is None or above.function.function != below.function.function:
            return None
        calls.append(_call(below, mode, above.result_id))
    return Aggregate(lower.grouping, tuple(calls), upper.buffers, upper.results, lower.child)


def _call(call: AggregateCall, mode: AggregateMode, result_id: int) -> AggregateCall:
    return replace(call, mode=mode, result_id=result_id)


def _combined_mode(above: AggregateMode, below: AggregateMode) -> AggregateMode | None:
    if above.reads_rows or below.gives_values:
        return None
    match below.reads_rows, above.gives_values:
        case True, True:
            return AggregateMode.COMPLETE
        case True, False:
            return AggregateMode.PARTIAL
        case False, True:
            return AggregateMode.FINAL
        case _:
            return AggregateMode.PARTIAL_MERGE


def _id(expression: Expression) -> int | None:
    return expression.id if isinstance(expression, Attribute) else None
