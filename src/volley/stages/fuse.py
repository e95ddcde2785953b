# SPDX-License-Identifier: Apache-2.0
"""Simplifies operators that no exchange separates any more.

Spark splits an aggregate around its exchange: rows to state, exchange, state to value. Without the exchange the pair
becomes one aggregate again. Sorts that Spark added for its own join and aggregate algorithms are dropped.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """Drop the sorts below joins, aggregates and windows, which sort their input as they need.

    A window already has the order of a global sort further down among its own sort keys (`plan.order`).
    """

    def change(node: Node) -> Node:
        if isinstance(node, Window):
            return replace(node, child=_drop_sorts(node.child))
        if traits_of(node).sorts_input:
            return with_children(node, tuple(_drop_local_sort(child) for child in node.children))
        return node

    return transform(plan, change)


def _drop_local_sort(node: Node) -> Node:
    return node.child if isinstance(node, Sort) and not node.whole else node


def _drop_sorts(node: Node) -> Node:
    match node:
        case Sort():
            return _drop_sorts(node.child)
        case Project() | Filter() | Exchange():
            return replace(node, child=_drop_sorts(node.child))
        case _:
            return node


def drop_idle_distinct(plan: Node) -> Node:
    """Drop DISTINCT from calls whose input has no duplicates left: Spark has removed them in an aggregate below."""

    def change(node: Node) -> Node:
        if not isinstance(node, Aggregate) or not any(call.distinct for call in node.calls):
            return node
        # Directly below only: after an exchange, two tasks may have sent the same value.
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
    """Merge every pair of adjacent aggregates with the same groups into one."""

    def change(node: Node) -> Node:
        if isinstance(node, Aggregate) and isinstance(node.child, Aggregate):
            return combine(node, node.child) or node
        return node

    return transform(plan, change)


def rename_reused_halves(plan: Node, is_unsplittable: Callable[[AggregateCall], bool]) -> Node:
    """Give the lower half of an aggregate the ids under which the upper half reads it from a reused exchange.

    Only for functions whose state cannot be sent: others stay as they are, since equal exchanges are computed once.
    """

    def change(node: Node) -> Node:
        match node:
            case Aggregate(child=Project(columns, Exchange(child=Aggregate(calls=calls)) as exchange)) if any(
                map(is_unsplittable, calls)
            ):
                return replace(node, child=_rename(exchange, columns) or node.child)
            case _:
                return node

    return transform(plan, change)


def _rename(exchange: Exchange, columns: tuple[Expression, ...]) -> Exchange | None:
    """The exchange of an aggregate whose output has the ids of `columns`; None unless these only rename."""
    partial = exchange.child
    assert isinstance(partial, Aggregate)
    new = {
        column.child.id: attribute_of(column)
        for column in columns
        if isinstance(column, Alias) and isinstance(column.child, Attribute)
    }
    needed = {attribute_of(key).id for key in partial.grouping} | {buffer.id for buffer in partial.buffers}
    if len(new) != len(columns) or not new.keys() >= needed:
        return None

    def change(part: Expression) -> Expression:
        return new.get(part.id, part) if isinstance(part, Attribute) else part

    grouping = tuple(
        Alias(name.id, name.name, key.child if isinstance(key, Alias) else key)
        for key, name in ((key, new[attribute_of(key).id]) for key in partial.grouping)
    )
    renamed = Aggregate(
        grouping,
        partial.calls,
        tuple(new[buffer.id] for buffer in partial.buffers),
        tuple(transform_expression(result, change) for result in partial.results),
        partial.child,
    )
    return replace(
        exchange, keys=tuple(transform_expression(key, change) for key in exchange.keys), child=renamed
    )


def complete_after_exchange(plan: Node, is_unsplittable: Callable[[AggregateCall], bool]) -> Node:
    """Exchange rows instead of state for functions whose state cannot be sent: exchange first, then aggregate."""

    def change(node: Node) -> Node:
        if not isinstance(node, Aggregate) or not isinstance(node.child, Exchange):
            return node
        exchange, partial = node.child, node.child.child
        if not isinstance(partial, Aggregate):
            return node
        if not any(map(is_unsplittable, partial.calls)):
            return node
        whole = combine(node, partial)
        if whole is None:
            return node
        groups = {attribute_of(key).id: key.child for key in partial.grouping if isinstance(key, Alias)}

        def ungroup(part: Expression) -> Expression:
            return groups.get(part.id, part) if isinstance(part, Attribute) else part

        keys = tuple(transform_expression(key, ungroup) for key in exchange.keys)
        return replace(whole, child=replace(exchange, keys=keys, child=_project_needed(whole, partial.child)))

    return transform(plan, change)


def _project_needed(aggregate: Aggregate, child: Node) -> Node:
    """Keep only the child's columns that the aggregate reads: rows are wider than state."""
    read: set[int] = set()
    for expression in (*aggregate.grouping, *aggregate.calls):
        read |= references(expression)
    kept = tuple(attribute for attribute in child.output if attribute.id in read)
    return child if len(kept) == len(child.output) else Project(kept, child)


def combine(upper: Aggregate, lower: Aggregate) -> Aggregate | None:
    """Merge `upper` and `lower` into one aggregate; None if they are not two halves of one."""
    groups = tuple(attribute_of(key).id for key in lower.grouping)
    if tuple(_id(key) for key in upper.grouping) != groups:
        return None
    if tuple(_id(result) for result in lower.results) != groups + tuple(a.id for a in lower.buffers):
        return None
    if len(upper.calls) != len(lower.calls):
        return None
    calls = []
    for above, below in zip(upper.calls, lower.calls, strict=True):
        mode = _combine_modes(above.mode, below.mode)
        if mode is None or above.function.function != below.function.function:
            return None
        calls.append(_call(below, mode, above.result_id))
    return Aggregate(lower.grouping, tuple(calls), upper.buffers, upper.results, lower.child)


def _call(call: AggregateCall, mode: AggregateMode, result_id: int) -> AggregateCall:
    return replace(call, mode=mode, result_id=result_id)


def _combine_modes(above: AggregateMode, below: AggregateMode) -> AggregateMode | None:
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
