# SPDX-License-Identifier: Apache-2.0
"""The order of rows through plans: what is known of it, and how it is made explicit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from volley.plan.carried_order import OrderCarrier
from volley.plan.expressions import (
    AggregateCall,
    AggregateMode,
    Alias,
    Attribute,
    Call,
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
    Node,
    Partitioning,
    Project,
    Sort,
    TopN,
    Union,
    Window,
    walk,
)
from volley.plan.order import is_ordered, make_order_explicit, missing_order, needs_input_order, order_of
from volley.plan.types import BOOLEAN, INTEGER, LONG, STRING

ID, K, V = Attribute(1, "id", LONG), Attribute(2, "k", LONG, False), Attribute(3, "v", LONG)
S = Attribute(4, "s", STRING)
BY_K, BY_V, BY_S = (SortKey(column, True, True) for column in (K, V, S))
LARGE = FileScan("parquet", (DataFile("/t", 2**30, 0),), (ID, K, V, S), (), ())
ROWS = Frame(True, None, Literal(0, INTEGER))
RANGE = replace(ROWS, rows=False)


def row_number(partition: tuple[Attribute, ...] = (K,), order: tuple[SortKey, ...] = ()) -> WindowCall:
    return WindowCall(Call("RowNumber", (), INTEGER), partition, order, ROWS)


def window(child: Node, *calls: WindowCall) -> Window:
    return Window(
        tuple(Alias(100 + place, "w", call) for place, call in enumerate(calls or (row_number(),))), child
    )


def hashed(child: Node) -> Exchange:
    return Exchange(Partitioning.HASH, 4, (K,), (), child)


def by_v(child: Node = LARGE) -> Sort:
    return Sort((BY_V,), True, Exchange(Partitioning.RANGE, 4, (), (BY_V,), child))


def call_of(plan: Node) -> WindowCall:
    (alias,) = next(node.calls for node in walk(plan) if isinstance(node, Window))
    assert isinstance(alias.child, WindowCall)
    return alias.child


def test_the_order_of_a_sort_reaches_a_window_behind_an_exchange() -> None:
    plan = window(Sort((BY_K,), False, hashed(Project((ID, K), by_v()))))
    found = make_order_explicit(plan)
    assert call_of(found).order_by == (BY_V,)
    assert found.output == plan.output
    assert not missing_order(plan)


def test_an_own_order_comes_first() -> None:
    plan = window(Sort((BY_K, BY_S), False, hashed(by_v())), row_number(order=(BY_S,)))
    assert call_of(make_order_explicit(plan)).order_by == (BY_S, BY_V)


def test_rank_sees_the_rows_that_its_order_leaves_equal() -> None:
    rank = WindowCall(Call("Rank", (BY_S,), INTEGER), (K,), (BY_S,), ROWS)
    plan = window(Sort((BY_K, BY_S), False, hashed(by_v())), rank)
    assert not needs_input_order(plan)
    assert make_order_explicit(plan) == plan


def test_the_last_of_equal_rows() -> None:
    last = AggregateCall(Call("Last", (ID,), LONG), AggregateMode.COMPLETE, False, None, 9)
    call = WindowCall(last, (K,), (BY_S,), RANGE)
    found = call_of(make_order_explicit(window(Sort((BY_K, BY_S), False, hashed(by_v())), call)))
    assert found.partition_by == (K, S)
    assert found.order_by == (BY_V,)


def test_a_sort_by_one_number_with_nulls_is_not_stable() -> None:
    by_nullable = SortKey(replace(K, nullable=True), True, True)
    sort = Sort((by_nullable,), False, hashed(by_v()))
    assert missing_order(window(sort))
    not_null = Filter(Call("IsNotNull", (K,), BOOLEAN), sort.child)
    assert not missing_order(window(replace(sort, child=not_null)))


def test_an_exchange_by_other_keys_loses_the_order() -> None:
    moved = Exchange(Partitioning.HASH, 4, (S,), (), by_v())
    assert missing_order(window(Sort((BY_K,), False, hashed(moved))))


@pytest.mark.parametrize(
    ("kind", "build", "kept"),
    [
        (JoinKind.INNER, BuildSide.RIGHT, True),
        (JoinKind.INNER, BuildSide.LEFT, False),
        (JoinKind.LEFT, BuildSide.RIGHT, True),
        (JoinKind.SEMI, BuildSide.RIGHT, True),
        (JoinKind.FULL, BuildSide.RIGHT, False),
        (JoinKind.INNER, None, True),
    ],
)
def test_a_join_keeps_the_order_of_the_side_that_it_streams(
    kind: JoinKind, build: BuildSide | None, kept: bool
) -> None:
    other = Attribute(10, "k", LONG)
    right = FileScan("parquet", LARGE.files, (other,), (), ())
    join = Join(kind, (K,), (other,), None, build, by_v(), right)
    assert any(item.key == BY_V for item in order_of(join).keys) == kept


def test_a_limit_behind_a_join_sorts_again() -> None:
    other = Attribute(10, "k", LONG)
    right = FileScan("parquet", LARGE.files, (other,), (), ())
    top = TopN(9, 0, (BY_V,), (ID, K), LARGE)
    plan = Limit(5, 0, True, Join(JoinKind.INNER, (K,), (other,), None, BuildSide.RIGHT, top, right))
    found = make_order_explicit(plan)
    assert found.output == plan.output
    assert isinstance(found, Project)
    assert is_ordered(found)
    assert not is_ordered(plan)


def test_a_limit_over_a_sort_stays_as_it_is() -> None:
    plan = Limit(5, 0, True, Project((ID,), by_v()))
    assert make_order_explicit(plan) == plan


def test_branches_of_a_union_come_one_after_the_other() -> None:
    branches = (TopN(5, 0, (BY_V,), (ID,), LARGE), TopN(5, 0, (BY_S,), (ID,), LARGE))
    plan = Limit(7, 0, True, Union((ID,), branches))
    found = make_order_explicit(plan)
    assert found.output == plan.output
    (sort,) = (node for node in walk(found) if isinstance(node, Sort))
    assert [key.type for key in sort.keys] == [INTEGER, LONG, STRING]


def test_groups_have_no_order_of_their_input() -> None:
    assert not order_of(Aggregate((K,), (), (), (K,), by_v())).requested


def test_small_files_are_read_in_the_order_of_spark_by_one_task() -> None:
    files = tuple(DataFile(f"/{size}", size, 0) for size in (10, 30, 20))
    plan = window(hashed(replace(LARGE, files=files)))
    found = make_order_explicit(plan, OrderCarrier(max_files=16))
    scans = [node for node in walk(found) if isinstance(node, FileScan)]
    assert [scan.files[0].size_bytes for scan in scans] == [30, 20, 10]
    assert found.output == plan.output
    assert make_order_explicit(plan) == plan


def test_large_files_are_left_as_they_are() -> None:
    plan = window(hashed(LARGE))
    assert make_order_explicit(plan, OrderCarrier(max_files=16)) == plan
