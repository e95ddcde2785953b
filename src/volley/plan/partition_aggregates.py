# SPDX-License-Identifier: Apache-2.0
"""Gives rows below an aggregate their places in Spark's partitions, where its result depends on these.

    Aggregate Final   kll_sketch_agg(v)                  Aggregate Final   kll_sketch_agg(v) of 3 partitions
      Exchange                                             Exchange
        Aggregate Partial   kll_sketch_agg(v)      ->        Aggregate Partial   kll_sketch_agg(v) order by place
          FileScan [v]                                         PartitionedRows [place]
                                                                 FileScan [v], in the partitions of Spark

Spark makes one state for each of its partitions, from the rows in their order, and merges these in the order of the
partitions. The place of a row has both, so the native aggregate can gather rows in any order, in any task.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import count

from volley.plan import synthetic_ids
from volley.plan.expressions import (
    AggregateCall,
    AggregateMode,
    Alias,
    Attribute,
    Call,
    Literal,
    SortKey,
)
from volley.plan.nodes import (
    Aggregate,
    Exchange,
    Filter,
    Node,
    OneRow,
    PartitionedRows,
    Partitioning,
    Project,
    Sort,
    Union,
    with_children,
)
from volley.plan.partition_nodes import PARTITION_BITS, PLACE
from volley.plan.partition_values import extend
from volley.plan.spark_partitions import (
    Concatenated,
    Layout,
    Together,
    partition_count,
    with_partitions,
)
from volley.plan.subqueries import plans_in, with_subqueries
from volley.plan.types import LONG, DecimalType, SimpleType


@dataclass(frozen=True)
class GroupLimits:
    """Up to where Spark aggregates the rows of each group in their order: so many groups; no NULLs among their keys."""

    groups: int | None = None
    nulls: bool = True


@dataclass(frozen=True)
class Halves:
    """An aggregate over rows: a complete one, or one that merges the states that `lower` makes of them.

    `between` are the operators from its child down to `lower`, or to the rows of a complete one; `below` those from the
    child of `lower` to the rows. They keep rows, and the order of rows within a group as far as `GroupLimits` say.
    """

    upper: Aggregate
    between: tuple[Node, ...]
    lower: Aggregate | None
    below: tuple[Node, ...]
    rows: Node

    @property
    def over_rows(self) -> Aggregate:
        return self.lower or self.upper

    @property
    def parent(self) -> Node:
        """The operator over the rows."""
        return (self.upper, *self.between, *([] if self.lower is None else [self.lower]), *self.below)[-1]

    @property
    def sorts(self) -> Iterator[Sort]:
        return (node for node in (*self.between, *self.below) if isinstance(node, Sort))


class AggregatePlaces:
    """Places the rows of the aggregates of one query.

    `find_calls` says which calls of an aggregate are to know the places; none, if no result needs them. `limits` is up
    to where these are all that matters; None if that is not certain. `layout_below`, `prepare`, `replaced` are those of
    `plan.partition_values`.
    """

    def __init__(
        self,
        find_calls: Callable[[Halves], Collection[int]],
        limits: Callable[[Halves], GroupLimits | None],
        layout_below: Callable[[Node], Layout | None],
        prepare: Callable[[Node], Node | None],
        replaced: Callable[[Node, Node], None],
    ) -> None:
        self._find_calls = find_calls
        self._limits = limits
        self._layout_below = layout_below
        self._prepare = prepare
        self._replaced = replaced
        self._ids = count(synthetic_ids.ROW_PLACE)

    def place(self, plan: Node) -> Node:
        return with_subqueries(self._place(plan), self.place)

    def _place(self, old: Node) -> Node:
        node = with_children(old, tuple(self._place(child) for child in old.children))
        if node is not old:
            self._replaced(old, node)
        halves = find_halves(node) if isinstance(node, Aggregate) else None
        return node if halves is None else self._place_rows(halves) or node

    def _place_rows(self, halves: Halves) -> Node | None:
        """The aggregate over rows with places; None if no call needs them, or if they are not certain."""
        found = self._find_calls(halves)
        limits = self._limits(halves) if found else None
        number = None if limits is None else _number(halves.over_rows, limits)
        layout = None if number is None else self._layout_below(halves.parent)
        if number is None or layout is None:
            return None
        placed = self._rows(halves.rows, layout, number, 0)
        return None if placed is None else self._over(halves, placed, found)

    def _over(self, halves: Halves, placed: _Placed, found: Collection[int]) -> Node:
        place = (SortKey(placed.place, ascending=True, nulls_first=True),)
        upper, lower = halves.upper, halves.lower
        if lower is None:
            child = self._wrap(halves.between, placed.rows)
            calls = _mark(upper.calls, found, order_by=place)
            return self._noted(upper, replace(upper, calls=calls, child=child))
        # Without keys every partition has a state, even one without rows.
        states = 0 if lower.grouping else placed.partitions
        below = self._wrap(halves.below, placed.rows)
        calls = _mark(lower.calls, found, order_by=place, partitions=states)
        child = self._noted(lower, replace(lower, calls=calls, child=below))
        child = self._wrap(halves.between, child)
        calls = _mark(upper.calls, found, partitions=states)
        return self._noted(upper, replace(upper, calls=calls, child=child))

    def _wrap(self, operators: tuple[Node, ...], below: Node) -> Node:
        for old in reversed(operators):
            below = self._noted(old, with_children(old, (below,)))
        return below

    def _noted(self, old: Node, new: Node) -> Node:
        self._replaced(old, new)
        return new

    def _rows(self, rows: Node, layout: Layout, number: Call, first: int) -> _Placed | None:
        """The rows with a column for their places. `first` is the number of their first partition."""
        place = Attribute(next(self._ids), "place", LONG)
        values = (Alias(place.id, place.name, number),)
        # Keys may be computed above rows whose places are known already.
        extended = extend(rows, values) if first == 0 and not number.arguments else None
        if extended is not None:
            return _Placed(extended, place, _partitions(extended))
        known = with_partitions(rows, layout)
        if known is not None and next(plans_in(known), None) is None:
            prepared = self._prepare(known)
            count = partition_count(known)
            return (
                None if prepared is None else _Placed(PartitionedRows(prepared, values, first), place, count)
            )
        found = None if number.arguments else self._part(rows, layout, number, first, place)
        prepared = None if found is None else self._prepare(found.rows)
        return None if found is None or prepared is None else replace(found, rows=prepared)

    def _part(self, rows: Node, layout: Layout, number: Call, first: int, place: Attribute) -> _Placed | None:
        """The same for rows that are not all of one plan whose partitions are known, such as those of a subquery."""
        match rows, layout:
            case ((Project() | Filter()), _):
                below = self._rows(rows.child, layout, number, first)
                if below is None:
                    return None
                child = self._wrap((rows,), below.rows)
                if isinstance(child, Project):
                    child = self._noted(rows, replace(child, expressions=(*child.expressions, below.place)))
                return replace(below, rows=child)
            case Union(), Concatenated(layouts):
                branches: list[Node] = []
                end = first
                for branch, its_layout in zip(rows.inputs, layouts, strict=True):
                    found = self._rows(branch, its_layout, number, end)
                    if found is None:
                        return None
                    branches.append(Project((*branch.output, found.place), found.rows))
                    end += found.partitions
                union = replace(rows, output=(*rows.output, place), inputs=tuple(branches))
                return _Placed(self._noted(rows, union), place, end - first)
            case Union(), Together() if all(map(_is_one_row, rows.inputs)):
                branches = [
                    Project((*branch.output, _constant(place, (first << PARTITION_BITS) + at)), branch)
                    for at, branch in enumerate(rows.inputs)
                ]
                union = replace(rows, output=(*rows.output, place), inputs=tuple(branches))
                return _Placed(self._noted(rows, union), place, 1)
            case _ if _is_one_row(rows):
                row = Project((*rows.output, _constant(place, first << PARTITION_BITS)), rows)
                return _Placed(row, place, 1)
            case _:
                return None


@dataclass(frozen=True)
class _Placed:
    rows: Node
    place: Attribute
    partitions: int


def find_halves(node: Aggregate) -> Halves | None:
    """The aggregate and what is below it; None if it does not aggregate rows in one or two steps."""
    if not node.calls or not all(call.mode.gives_values for call in node.calls):
        return None
    between, below = _descend(node.child)
    if not _keep_order(between):
        return None
    if all(call.mode is AggregateMode.COMPLETE for call in node.calls):
        return Halves(node, between, None, (), below)
    if not isinstance(below, Aggregate) or len(below.calls) != len(node.calls):
        return None
    if not all(call.mode is AggregateMode.PARTIAL for call in below.calls):
        return None
    sorts, rows = _descend(below.child)
    return (
        None
        if any(isinstance(part, Exchange) for part in sorts)
        else Halves(node, between, below, sorts, rows)
    )


def _descend(node: Node) -> tuple[tuple[Node, ...], Node]:
    """The sorts and exchanges that Spark needs for an aggregate, and the node below them."""
    passed: list[Node] = []
    while isinstance(node, Exchange) or (isinstance(node, Sort) and not node.whole):
        passed.append(node)
        node = node.child
    return tuple(passed), node


def _keep_order(passed: tuple[Node, ...]) -> bool:
    """Whether rows, or states, of a group arrive in the order of the partitions that they come from."""
    exchanges = [node.partitioning for node in passed if isinstance(node, Exchange)]
    return len(exchanges) <= 1 and set(exchanges) <= {Partitioning.SINGLE, Partitioning.HASH}


def _number(node: Aggregate, limits: GroupLimits) -> Call | None:
    """The place of a row, which is only computed within the limits of its groups; None if they cannot be checked."""
    is_limited = bool(node.grouping) and limits != GroupLimits()
    if not is_limited:
        return Call(PLACE, (), LONG)
    if not all(
        isinstance(key, Attribute) and isinstance(key.type, SimpleType | DecimalType) for key in node.grouping
    ):
        return None
    return Call(PLACE, node.grouping, LONG, options=(("groups", limits.groups), ("nulls", limits.nulls)))


def _mark(
    calls: tuple[AggregateCall, ...],
    found: Collection[int],
    *,
    order_by: tuple[SortKey, ...] = (),
    partitions: int | None = None,
) -> tuple[AggregateCall, ...]:
    return tuple(
        replace(call, order_by=order_by, partitions=partitions) if position in found else call
        for position, call in enumerate(calls)
    )


def _partitions(rows: Node) -> int:
    while isinstance(rows, Project):
        rows = rows.child
    return partition_count(rows)


def _is_one_row(node: Node) -> bool:
    """Whether the node has one row, which is in a partition of its own."""
    match node:
        case OneRow():
            return True
        case Project():
            return _is_one_row(node.child)
        case Aggregate():
            return not node.grouping and all(call.mode.gives_values for call in node.calls)
        case _:
            return False


def _constant(place: Attribute, value: int) -> Alias:
    return Alias(place.id, place.name, Literal(value, LONG))
