# SPDX-License-Identifier: Apache-2.0
"""Of two semi joins by the same values, on both sides of an inner join by that column, one is enough."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from pyspark.sql import SparkSession

from helpers.join_plans import columns, count, greater, make_table
from volley.plan.expressions import Attribute, Call, Literal
from volley.plan.nodes import Filter, Join, JoinKind, Node, Project, walk
from volley.plan.types import BOOLEAN, LONG
from volley.stages.implied_semi_joins import drop_implied_semi_joins
from volley.testing.rows import assert_same_rows


def semi_joins(plan: Node) -> int:
    return sum(isinstance(node, Join) and node.kind is JoinKind.SEMI for node in walk(plan))


@st.composite
def plans(draw: st.DrawFn) -> Node:
    """Two tables, each below a few joins, filters, projections and semi joins by one of two sets."""
    ids = iter(range(1, 1000))
    value = st.none() | st.integers(0, 3)

    def table(width: int) -> Node:
        attributes = columns(*(next(ids) for _ in range(width)))
        rows = draw(st.lists(st.tuples(*(value for _ in attributes)), min_size=1, max_size=6))
        return make_table(attributes, rows)

    sets = [table(1), table(1)]

    def side() -> tuple[Node, Attribute]:
        node = table(2)
        key = node.output[0]
        for step in draw(
            st.lists(st.sampled_from(("semi", "semi", "inner", "left", "filter", "project")), max_size=5)
        ):
            match step:
                case "semi":
                    chosen = draw(st.sampled_from(sets))
                    by = draw(st.sampled_from((key, *node.output)))
                    node = Join(JoinKind.SEMI, (by,), chosen.output, None, None, node, chosen)
                case "inner" | "left":
                    other = table(1)
                    kind = JoinKind.INNER if step == "inner" else JoinKind.LEFT
                    by = draw(st.sampled_from(node.output))
                    node = Join(kind, (by,), other.output, None, None, node, other)
                case "filter":
                    node = greater(draw(st.sampled_from(node.output)), 0, node)
                case _:
                    node = Project(node.output, node)
        return node, key

    (left, left_key), (right, right_key) = side(), side()
    kind = draw(st.sampled_from((JoinKind.INNER, JoinKind.LEFT)))
    return Join(kind, (left_key,), (right_key,), None, None, left, right)


def test_random_plans_give_the_same_rows() -> None:
    dropped = 0

    @given(plans())
    @settings(max_examples=150)
    def compare(plan: Node) -> None:
        nonlocal dropped
        changed = drop_implied_semi_joins(plan)
        assert count(changed) == count(plan)
        dropped += semi_joins(plan) - semi_joins(changed)

    compare()
    assert dropped


def make_join(between: Call | None = None, kind: JoinKind = JoinKind.INNER) -> Join:
    (a,), (b,), (c,) = columns(1), columns(2), columns(3)
    right: Node = Join(JoinKind.SEMI, (b,), (c,), None, None, make_table((b,)), make_table((c,)))
    if between is not None:
        right = Filter(between, right)
    left = Join(JoinKind.SEMI, (a,), (c,), None, None, make_table((a,)), make_table((c,)))
    return Join(kind, (a,), (b,), None, None, left, right)


def test_one_of_two_is_dropped() -> None:
    assert semi_joins(drop_implied_semi_joins(make_join())) == 1


def test_both_stay_where_rows_without_a_match_are_kept() -> None:
    plan = make_join(kind=JoinKind.LEFT)
    assert drop_implied_semi_joins(plan) is plan


def test_both_stay_where_more_rows_could_fail() -> None:
    (b,) = columns(2)
    failing = Call("GreaterThan", (Call("Divide", (b, Literal(0, LONG)), LONG), Literal(1, LONG)), BOOLEAN)
    plan = make_join(failing)
    assert drop_implied_semi_joins(plan) is plan


@pytest.mark.parametrize("workers", ["1", "2"])
def test_tables(spark: SparkSession, tmp_path: Path, workers: str) -> None:
    """The shape of TPC-H q18, with NULL among the keys."""
    spark.conf.set("spark.volley.local.workers", workers)
    spark.range(3000).selectExpr("nullif(id % 700, 3) AS o", "id % 11 AS q").coalesce(1).write.parquet(
        f"{tmp_path}/items"
    )
    spark.range(900).selectExpr("nullif(id, 5) AS o", "id % 50 AS c").coalesce(1).write.parquet(
        f"{tmp_path}/orders"
    )
    assert_same_rows(
        spark,
        f"SELECT c, d.o, sum(q) FROM parquet.`{tmp_path}/orders` d JOIN parquet.`{tmp_path}/items` i ON d.o = i.o "
        f"WHERE d.o IN (SELECT o FROM parquet.`{tmp_path}/items` GROUP BY o HAVING sum(q) > 24) "
        "GROUP BY c, d.o ORDER BY 1, 2",
    )
