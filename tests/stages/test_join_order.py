# SPDX-License-Identifier: Apache-2.0
"""Joins to small filtered tables move down: the rows stay the same, and later joins see fewer."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from pyspark.sql import SparkSession

from helpers.join_plans import broadcast, columns, count, greater, make_table
from volley.plan.expressions import Attribute, Call, Literal
from volley.plan.nodes import (
    BuildSide,
    Exchange,
    Join,
    JoinKind,
    LocalRows,
    Node,
    Partitioning,
    Project,
    Sort,
    walk,
)
from volley.plan.types import BOOLEAN, LONG
from volley.stages.join_order import join_selective_tables_first
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows

KINDS = (JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI)


@st.composite
def plans(draw: st.DrawFn) -> Node:
    """Join trees over small tables, with exchanges, filters and projections in between."""
    ids = iter(range(1, 1000))

    def table() -> Node:
        columns = tuple(Attribute(next(ids), "k", LONG) for _ in range(draw(st.integers(1, 3))))
        value = st.none() | st.integers(0, 2)
        values = draw(st.lists(st.tuples(*(value for _ in columns)), min_size=1, max_size=5))
        leaf: Node = make_table(columns, values)
        return (
            greater(draw(st.sampled_from(columns)), draw(st.integers(0, 2)), leaf)
            if draw(st.booleans())
            else leaf
        )

    def tree(depth: int) -> Node:
        if depth == 0:
            return table()
        left, right = tree(draw(st.integers(0, depth - 1))), tree(depth - 1)
        if draw(st.booleans()):
            left, right = right, left
        place = draw(st.sampled_from((None, BuildSide.LEFT, BuildSide.RIGHT)))
        kind = draw(st.sampled_from(KINDS))
        pairs = draw(st.integers(1, 2))
        left_keys = tuple(draw(st.sampled_from(left.output)) for _ in range(pairs))
        right_keys = tuple(draw(st.sampled_from(right.output)) for _ in range(pairs))
        if place is None:
            left = Sort((), False, Exchange(Partitioning.HASH, 2, left_keys, (), left))
            right = Exchange(Partitioning.HASH, 2, right_keys, (), right)
        elif place is BuildSide.LEFT and kind is JoinKind.INNER:
            left = broadcast(left)
        else:
            place, right = BuildSide.RIGHT, broadcast(right)
        node: Node = Join(kind, left_keys, right_keys, None, place, left, right)
        if draw(st.booleans()):
            node = Project(tuple(draw(st.permutations(node.output)))[: draw(st.integers(1, 6))], node)
        return greater(draw(st.sampled_from(node.output)), 0, node) if draw(st.booleans()) else node

    rows, small = tree(3), table()
    selective = broadcast(greater(small.output[0], 0, small))
    key = draw(st.sampled_from(rows.output))
    return Join(JoinKind.INNER, (key,), (small.output[0],), None, BuildSide.RIGHT, rows, selective)


@pytest.mark.parametrize("examples", [120, pytest.param(2000, marks=pytest.mark.slow)])
def test_random_joins_give_the_same_rows(examples: int) -> None:
    @given(plans())
    @settings(max_examples=examples)
    def compare(plan: Node) -> None:
        changed = join_selective_tables_first(plan)
        assert [column.id for column in changed.output] == [column.id for column in plan.output]
        assert count(changed) == count(plan)

    compare()


def test_a_filtered_table_is_joined_to_the_table_that_has_its_key() -> None:
    """The shape of TPC-H q21: the filter on nation reaches lineitem, below its semi join and its exchange."""
    (order, supplier), (other,), (key, home), (nation, name) = (
        columns(1, 2),
        columns(3),
        columns(4, 5),
        columns(6, 7),
    )
    items, others = make_table((order, supplier)), make_table((other,))
    semi = Join(
        JoinKind.SEMI,
        (order,),
        (other,),
        None,
        None,
        Exchange(Partitioning.HASH, 2, (order,), (), items),
        Exchange(Partitioning.HASH, 2, (other,), (), others),
    )
    suppliers = broadcast(make_table((key, home)))
    nations = broadcast(greater(name, 1, make_table((nation, name))))
    by_supplier = Join(JoinKind.INNER, (supplier,), (key,), None, BuildSide.RIGHT, semi, suppliers)
    plan = Join(JoinKind.INNER, (home,), (nation,), None, BuildSide.RIGHT, by_supplier, nations)

    changed = join_selective_tables_first(plan)

    assert changed.output == plan.output
    (found,) = (node for node in walk(changed) if isinstance(node, Join) and node.kind is JoinKind.SEMI)
    assert isinstance(found.left, Exchange)
    below = [node for node in walk(found.left.child) if isinstance(node, LocalRows)]
    assert [table.output[0] for table in below] == [order, key, nation]


@pytest.mark.parametrize(
    "condition",
    [
        Call("GreaterThan", (Call("Divide", columns(1, 3), LONG), Literal(1, LONG)), BOOLEAN),
        Call("GreaterThan", (Call("Cast", columns(1), LONG), Literal(1, LONG)), BOOLEAN),
    ],
)
def test_nothing_moves_past_what_may_fail(condition: Call) -> None:
    """Fewer rows could hide an error that Spark raises."""
    (a, b), (c,), (d, e) = columns(1, 2), columns(3), columns(4, 5)
    semi = Join(JoinKind.SEMI, (a,), (c,), condition, None, make_table((a, b)), make_table((c,)))
    small = broadcast(greater(e, 1, make_table((d, e))))
    plan = Join(JoinKind.INNER, (b,), (d,), None, BuildSide.RIGHT, semi, small)
    assert join_selective_tables_first(plan) is plan


@pytest.mark.parametrize("workers", ["1", "3"])
def test_tables(spark: SparkSession, tmp_path: Path, workers: str) -> None:
    spark.conf.set("spark.volley.local.workers", workers)
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "20000")
    for key, value in DISTRIBUTED_SETTINGS.items() if workers != "1" else ():
        spark.conf.set(key, value)
    spark.range(6000).selectExpr("id % 1500 AS o", "nullif(id % 97, 5) AS s", "id % 7 AS v").write.parquet(
        f"{tmp_path}/items"
    )
    spark.range(97).selectExpr("id AS s", "id % 10 AS n").coalesce(1).write.parquet(f"{tmp_path}/suppliers")
    spark.range(10).selectExpr("id AS n", "concat('n', id) AS name").coalesce(1).write.parquet(
        f"{tmp_path}/nations"
    )
    query = (
        f"SELECT s.s, name, count(*) FROM parquet.`{tmp_path}/items` a "
        f"JOIN parquet.`{tmp_path}/suppliers` s ON a.s = s.s "
        f"JOIN parquet.`{tmp_path}/nations` n ON s.n = n.n WHERE name IN ('n3', 'n4') "
        f"AND EXISTS (SELECT 1 FROM parquet.`{tmp_path}/items` b WHERE a.o = b.o AND a.s <> b.s) "
        f"AND NOT EXISTS (SELECT 1 FROM parquet.`{tmp_path}/items` c WHERE a.o = c.o AND a.s <> c.s AND c.v > 5) "
        "GROUP BY s.s, name ORDER BY 1, 2"
    )
    assert_same_rows(spark, query)
