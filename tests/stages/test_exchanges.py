# SPDX-License-Identifier: Apache-2.0
"""Nothing is taken from Spark's layout: a plan without exchanges gets those it needs, and only those."""

from __future__ import annotations

import pytest

from volley.plan.expressions import (
    AggregateCall,
    AggregateMode,
    Alias,
    Attribute,
    Call,
    Expression,
    Frame,
    Literal,
    SortKey,
    WindowCall,
)
from volley.plan.nodes import (
    Aggregate,
    BuildSide,
    DataFile,
    Exchange,
    FileScan,
    Filter,
    Join,
    JoinKind,
    Limit,
    MaterializedInput,
    Node,
    Partitioning,
    Project,
    Range,
    Sort,
    TopN,
    Union,
    Window,
    walk,
)
from volley.plan.types import BOOLEAN, INTEGER, LONG, DataType
from volley.stages.cut import make_stages
from volley.stages.exchanges import place_exchanges
from volley.testing.limits import DISTRIBUTED

HASH, SINGLE, BROADCAST, ROUND_ROBIN = (
    Partitioning.HASH,
    Partitioning.SINGLE,
    Partitioning.BROADCAST,
    Partitioning.ROUND_ROBIN,
)


def column(id: int, type: DataType = LONG) -> Attribute:
    return Attribute(id, f"column{id}", type)


def scan(*columns: Attribute, files: int = 4) -> FileScan:
    return FileScan("parquet", tuple(DataFile(f"/data/{n}", 10, 0) for n in range(files)), columns, (), ())


def counted(mode: AggregateMode, child: Node, *grouping: Attribute) -> Aggregate:
    count = column(90)
    call = AggregateCall(Call("Count", (Literal(1, LONG),), LONG), mode, False, None, count.id)
    return Aggregate(grouping, (call,), (count,), (*grouping, count), child)


def joined(kind: JoinKind, left: Node, right: Node, *keys: tuple[Expression, Expression]) -> Join:
    return Join(kind, tuple(key[0] for key in keys), tuple(key[1] for key in keys), None, None, left, right)


def exchanges(plan: Node, workers: int = 3) -> list[tuple[Partitioning, tuple[int, ...]]]:
    """The exchanges of the placed plan from its top, each with the ids of its key columns."""
    return [
        (node.partitioning, tuple(key.id for key in node.keys if isinstance(key, Attribute)))
        for node in walk(place_exchanges(plan, workers, DISTRIBUTED))
        if isinstance(node, Exchange)
    ]


A, B, C, D = (column(id) for id in (1, 2, 3, 4))


@pytest.mark.parametrize("mode", [AggregateMode.COMPLETE, AggregateMode.FINAL, AggregateMode.PARTIAL_MERGE])
def test_values_of_groups_need_the_groups_together(mode: AggregateMode) -> None:
    assert exchanges(counted(mode, scan(A, B), A)) == [(HASH, (1,))]
    assert exchanges(counted(mode, scan(A, B))) == [(SINGLE, ())]


@pytest.mark.parametrize("workers", [1, 3])
def test_rows_in_several_partitions_of_the_stores_come_together_on_any_number_of_workers(
    workers: int,
) -> None:
    stored = MaterializedInput(0, 1, 3, (A, B))
    grouped = counted(AggregateMode.COMPLETE, stored, A)
    (kept,) = exchanges(grouped, workers)
    assert kept in [(HASH, (1,)), (SINGLE, ())]
    graph = make_stages(grouped, workers, DISTRIBUTED)
    assert [stage.tasks for stage in graph.stages] == [1, 3, 3]
    # One partition needs no exchange.
    assert exchanges(counted(AggregateMode.COMPLETE, MaterializedInput(0, 5, 1, (A, B)), A), workers) == []


def test_state_of_groups_can_be_made_of_any_share() -> None:
    assert exchanges(counted(AggregateMode.PARTIAL, scan(A, B), A)) == []


def test_duplicates_need_their_rows_together() -> None:
    assert exchanges(Aggregate((A,), (), (), (A,), scan(A))) == [(HASH, (1,))]


def test_duplicates_that_are_thinned_out_first_move_once() -> None:
    first = Aggregate((A,), (), (), (A,), scan(A))
    exchange = Exchange(HASH, 200, (A,), (), first)
    assert exchanges(Aggregate((A,), (), (), (A,), exchange)) == [(HASH, (1,))]


@pytest.mark.parametrize(
    "plan",
    [
        counted(AggregateMode.COMPLETE, scan(A, files=1), A),
        Sort((SortKey(A, True, True),), True, scan(A, files=1)),
        joined(JoinKind.FULL, scan(A, files=1), scan(B, files=1), (A, B)),
        Limit(3, 0, True, Range(0, 10, 1, (A,))),
    ],
)
def test_rows_of_one_task_need_not_move(plan: Node) -> None:
    assert exchanges(plan) == []


def test_a_layout_by_fewer_keys_serves_more_keys() -> None:
    laid_out = Exchange(HASH, 7, (A,), (), scan(A, B))
    assert exchanges(counted(AggregateMode.COMPLETE, laid_out, A, B)) == [(HASH, (1,))]


def test_a_layout_by_more_keys_does_not_serve_fewer() -> None:
    laid_out = Filter(Literal(True, BOOLEAN), Exchange(HASH, 7, (A, B), (), scan(A, B)))
    assert exchanges(counted(AggregateMode.COMPLETE, laid_out, A)) == [(HASH, (1,)), (HASH, (1, 2))]


def test_a_layout_follows_a_column_under_its_new_name() -> None:
    renamed = Project((Alias(8, "new", A), B), Exchange(HASH, 7, (A,), (), scan(A, B)))
    assert exchanges(counted(AggregateMode.COMPLETE, renamed, column(8))) == [(HASH, (1,))]


def test_a_layout_is_forgotten_with_its_column() -> None:
    without = Project((B,), Exchange(HASH, 7, (A,), (), scan(A, B)))
    assert exchanges(counted(AggregateMode.COMPLETE, without, B)) == [(HASH, (2,)), (HASH, (1,))]


def test_windows_need_their_partitions_together() -> None:
    def over(*partition_by: Attribute) -> Window:
        call = WindowCall(Call("RowNumber", (), INTEGER), partition_by, (), Frame(True, None, None))
        return Window((Alias(9, "w", call),), scan(A, B))

    assert exchanges(over(A)) == [(HASH, (1,))]
    assert exchanges(over()) == [(SINGLE, ())]


def test_both_sides_of_a_join_move_when_neither_lies_well() -> None:
    assert exchanges(joined(JoinKind.FULL, scan(A), scan(B), (A, B))) == [(HASH, (1,)), (HASH, (2,))]


def test_one_side_follows_the_other_that_lies_well() -> None:
    """The left side is hashed by its second key: the right must be hashed by its second key, and by that alone."""
    left = Exchange(HASH, 5, (B,), (), scan(A, B))
    assert exchanges(joined(JoinKind.INNER, left, scan(C, D), (A, C), (B, D))) == [(HASH, (2,)), (HASH, (4,))]


def test_sides_that_are_laid_out_by_keys_in_another_order_do_not_meet() -> None:
    left = Exchange(HASH, 5, (A, B), (), scan(A, B))
    right = Exchange(HASH, 5, (D, C), (), scan(C, D))
    placed = exchanges(joined(JoinKind.INNER, left, right, (A, C), (B, D)))
    assert placed == [(HASH, (1, 2)), (HASH, (3, 4))]


def test_keys_of_two_types_may_hash_apart() -> None:
    small = column(7, INTEGER)
    assert exchanges(joined(JoinKind.INNER, scan(A), scan(small), (A, small))) == [(SINGLE, ()), (SINGLE, ())]


@pytest.mark.parametrize(
    ("kind", "side", "expected"),
    [
        (JoinKind.INNER, BuildSide.RIGHT, [(BROADCAST, ())]),
        (JoinKind.LEFT, BuildSide.RIGHT, [(BROADCAST, ())]),
        (JoinKind.ANTI, BuildSide.RIGHT, [(BROADCAST, ())]),
        (JoinKind.INNER, BuildSide.LEFT, [(BROADCAST, ())]),
        (JoinKind.RIGHT, BuildSide.LEFT, [(BROADCAST, ())]),
        (JoinKind.RIGHT, BuildSide.RIGHT, [(HASH, (1,)), (HASH, (2,))]),
        (JoinKind.LEFT, BuildSide.LEFT, [(HASH, (1,)), (HASH, (2,))]),
        (JoinKind.FULL, BuildSide.RIGHT, [(HASH, (1,)), (HASH, (2,))]),
    ],
)
def test_a_side_whose_unmatched_rows_are_wanted_is_not_broadcast(
    kind: JoinKind, side: BuildSide, expected: list[tuple[Partitioning, tuple[int, ...]]]
) -> None:
    left, right = scan(A), scan(B)
    if side is BuildSide.RIGHT:
        plan = joined(kind, left, Exchange(BROADCAST, 1, (), (), right), (A, B))
    else:
        plan = joined(kind, Exchange(BROADCAST, 1, (), (), left), right, (A, B))
    assert exchanges(plan) == expected


def test_a_full_join_without_keys_runs_in_one_task() -> None:
    assert exchanges(joined(JoinKind.FULL, scan(A), scan(B))) == [(SINGLE, ()), (SINGLE, ())]


def test_outer_rows_do_not_lie_where_their_missing_keys_would() -> None:
    join = joined(JoinKind.LEFT, scan(A), scan(B), (A, B))
    grouped = counted(AggregateMode.COMPLETE, join, B)
    assert exchanges(grouped) == [(HASH, (2,)), (HASH, (1,)), (HASH, (2,))]
    assert exchanges(counted(AggregateMode.COMPLETE, join, A)) == [(HASH, (1,)), (HASH, (2,))]


def test_rows_of_one_task_in_a_union_are_read_by_one_task() -> None:
    alone = counted(AggregateMode.COMPLETE, scan(A, files=1))
    assert exchanges(Union((C,), (alone, scan(B)))) == [(SINGLE, ())]
    assert exchanges(Union((C,), (Range(0, 3, 1, (A,)), scan(B)))) == [(SINGLE, ())]
    # A single file can be dealt among the tasks like any other.
    assert exchanges(Union((C,), (scan(A, files=1), scan(B)))) == []


def test_top_and_limit_are_taken_in_every_task_first() -> None:
    keys = (SortKey(A, True, True),)
    top = place_exchanges(TopN(3, 2, keys, (A,), scan(A)), 3, DISTRIBUTED)
    assert isinstance(top, TopN)
    assert isinstance(top.child, Exchange)
    assert isinstance(top.child.child, TopN)
    assert (top.child.child.count, top.child.child.offset) == (5, 0)
    limit = place_exchanges(Limit(3, 2, True, scan(A)), 3, DISTRIBUTED)
    assert isinstance(limit, Limit)
    assert isinstance(limit.child, Exchange)
    assert limit.child.child == Limit(5, 0, False, scan(A))


def test_round_robin_spreads_what_one_task_has() -> None:
    assert exchanges(Exchange(ROUND_ROBIN, 9, (), (), scan(A, files=1))) == [(ROUND_ROBIN, ())]
    assert exchanges(Exchange(ROUND_ROBIN, 9, (), (), scan(A, files=4))) == []


@pytest.mark.parametrize(
    "plan",
    [
        counted(AggregateMode.COMPLETE, Exchange(HASH, 9, (A,), (), scan(A)), A),
        joined(
            JoinKind.FULL, Exchange(HASH, 9, (A,), (), scan(A)), Exchange(HASH, 9, (B,), (), scan(B)), (A, B)
        ),
        Exchange(ROUND_ROBIN, 9, (), (), scan(A)),
        Union((C,), (Range(0, 3, 1, (A,)), scan(B))),
    ],
)
def test_one_worker_needs_none(plan: Node) -> None:
    assert exchanges(plan, workers=1) == []
