# SPDX-License-Identifier: Apache-2.0
"""Which aggregates know the places of rows in Spark's partitions, without Spark."""

from __future__ import annotations

import pytest

from volley.plan.expressions import AggregateCall, AggregateMode, Attribute, Call, SortKey
from volley.plan.nodes import (
    Aggregate,
    Exchange,
    Node,
    PartitionedRows,
    Partitioning,
    Project,
    Range,
    Sort,
    Union,
)
from volley.plan.partition_aggregates import AggregatePlaces, GroupLimits, find_halves
from volley.plan.spark_partitions import Concatenated, Layout, Slices, Together, Unclear, partition_count
from volley.plan.types import LONG

ID, STATE, RESULT = (Attribute(at, name, LONG) for at, name in enumerate(("id", "state", "result")))
ROWS = Range(0, 30, 3, (ID,))
NO_LIMITS = GroupLimits()


def aggregate(mode: AggregateMode, child: Node, keys: tuple[Attribute, ...] = ()) -> Aggregate:
    buffer = RESULT if mode.gives_values else STATE
    call = AggregateCall(Call("First", (ID,), LONG), mode, False, None, buffer.id)
    return Aggregate(keys, (call,), (buffer,), (*keys, buffer), child)


def halves(
    rows: Node, keys: tuple[Attribute, ...] = (), how: Partitioning = Partitioning.SINGLE
) -> Aggregate:
    exchange = Exchange(how, 1, keys, (), aggregate(AggregateMode.PARTIAL, rows, keys))
    return aggregate(AggregateMode.FINAL, exchange, keys)


def place(plan: Node, layout: Layout, limits: GroupLimits | None = NO_LIMITS) -> Node:
    def nothing(old: Node, new: Node) -> None:
        pass

    places = AggregatePlaces(
        lambda found: {0}, lambda found: limits, lambda node: layout, lambda rows: rows, nothing
    )
    return places.place(plan)


def lower_half(plan: Node) -> Aggregate:
    assert isinstance(plan, Aggregate)
    exchange = plan.child
    assert isinstance(exchange, Exchange)
    assert isinstance(exchange.child, Aggregate)
    return exchange.child


def test_two_steps() -> None:
    placed = place(halves(ROWS), Slices(3))
    lower = lower_half(placed)
    (call,) = lower.calls
    assert isinstance(lower.child, PartitionedRows)
    assert partition_count(lower.child) == 3
    # Without keys, each of the partitions has a state.
    assert call.partitions == 3
    assert [key.child for key in call.order_by] == [lower.child.output[-1]]
    assert isinstance(placed, Aggregate)
    assert placed.calls[0].partitions == 3
    assert placed.output == (RESULT,)
    (keyed,) = lower_half(place(halves(ROWS, (ID,), Partitioning.HASH), Slices(3))).calls
    assert keyed.partitions == 0


def test_one_step_has_no_states_to_merge() -> None:
    placed = place(aggregate(AggregateMode.COMPLETE, ROWS), Slices(1))
    assert isinstance(placed, Aggregate)
    assert placed.calls[0].partitions is None
    assert len(placed.calls[0].order_by) == 1


def test_sorts_for_the_aggregate_stay_above_the_places() -> None:
    key = SortKey(ID, ascending=True, nulls_first=True)
    lower = lower_half(place(halves(Sort((key,), False, ROWS), (ID,), Partitioning.HASH), Slices(2)))
    assert isinstance(lower.child, Sort)
    assert isinstance(lower.child.child, PartitionedRows)


def test_totals_are_rows_of_a_partition_each() -> None:
    total = halves(ROWS)
    column = Attribute(9, "id", LONG)
    for layout, states in ((Concatenated((Slices(1), Slices(1))), 2), (Together(), 1)):
        inner = Union((column,), (total, total))
        placed = place(
            aggregate(
                AggregateMode.FINAL,
                Exchange(
                    Partitioning.SINGLE,
                    1,
                    (),
                    (),
                    aggregate(AggregateMode.PARTIAL, Project((column,), inner)),
                ),
            ),
            layout,
        )
        assert lower_half(placed).calls[0].partitions == states


@pytest.mark.parametrize(
    ("plan", "layout", "limits"),
    [
        (halves(ROWS), Unclear("SortMergeJoinExec"), NO_LIMITS),
        (halves(ROWS), Slices(2), None),
        # The outputs of tasks come in any order.
        (halves(ROWS, (), Partitioning.ROUND_ROBIN), Slices(2), NO_LIMITS),
        # States of states.
        (
            aggregate(AggregateMode.FINAL, aggregate(AggregateMode.PARTIAL_MERGE, ROWS)),
            Slices(2),
            GroupLimits(),
        ),
    ],
)
def test_what_stays(plan: Aggregate, layout: Layout, limits: GroupLimits | None) -> None:
    assert place(plan, layout, limits) is plan


def test_an_aggregate_without_calls_has_no_halves() -> None:
    assert find_halves(Aggregate((ID,), (), (), (ID,), ROWS)) is None
