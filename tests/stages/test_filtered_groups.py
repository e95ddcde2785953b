# SPDX-License-Identifier: Apache-2.0
"""An aggregate that is joined to a small filtered table computes only the groups that the table has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from helpers.join_plans import columns, greater
from volley.plan.expressions import Attribute
from volley.plan.nodes import (
    Aggregate,
    BuildSide,
    DataFile,
    FileScan,
    Join,
    JoinKind,
    Node,
    Project,
    walk,
)
from volley.stages.filtered_groups import filter_groups
from volley.testing.rows import assert_same_rows

ITEM, VALUE = columns(1, 2)
PART, SIZE = columns(3, 4)
GROUP, OTHER = columns(5, 6)


def scan(size_bytes: int, *output: Attribute) -> FileScan:
    return FileScan("parquet", (DataFile(f"/data/{output[0].id}", size_bytes, 0),), output, (), ())


PARTS = Project((PART,), greater(SIZE, 10, scan(100, PART, SIZE)))
GROUPS = Aggregate((GROUP,), (), (), (GROUP,), scan(1000, GROUP, OTHER))


def join_groups(parts: Node = PARTS, groups: Node = GROUPS, kind: JoinKind = JoinKind.INNER) -> Join:
    """The shape of TPC-H q17."""
    items = Join(JoinKind.INNER, (ITEM,), (PART,), None, BuildSide.RIGHT, scan(1000, ITEM, VALUE), parts)
    return Join(kind, (PART,), (GROUP,), None, None, items, groups)


def test_groups_are_filtered_by_the_table() -> None:
    plan = join_groups()
    changed = filter_groups(plan)
    assert changed.output == plan.output
    (aggregate,) = (node for node in walk(changed) if isinstance(node, Aggregate))
    assert aggregate.child == Join(
        JoinKind.SEMI, (GROUP,), (PART,), None, BuildSide.RIGHT, GROUPS.child, Project((PART,), PARTS)
    )


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(join_groups(kind=JoinKind.RIGHT), id="groups without a match are kept"),
        pytest.param(join_groups(Project((PART,), scan(100, PART, SIZE))), id="the table is not filtered"),
        pytest.param(join_groups(groups=replace(GROUPS, child=scan(100, GROUP))), id="few rows"),
        pytest.param(join_groups(groups=replace(GROUPS, grouping=(OTHER,))), id="not a group key"),
    ],
)
def test_other_groups_stay(plan: Join) -> None:
    assert filter_groups(plan) is plan


@pytest.mark.parametrize("build", [BuildSide.LEFT, None])
def test_only_a_table_in_memory_is_read_twice(build: BuildSide | None) -> None:
    plan = join_groups()
    assert isinstance(plan.left, Join)
    plan = replace(plan, left=replace(plan.left, build=build))
    assert filter_groups(plan) is plan


def test_rows(spark: SparkSession, tmp_path: Path) -> None:
    """NULL among the keys of all tables, and a group key that is not in the table."""
    spark.range(4000).selectExpr("nullif(id % 300, 7) AS p", "cast(id % 13 AS decimal(15,2)) AS q").coalesce(
        1
    ).write.parquet(f"{tmp_path}/items")
    spark.range(290).selectExpr("nullif(id, 11) AS p", "id % 20 AS size").coalesce(1).write.parquet(
        f"{tmp_path}/parts"
    )
    items, parts = (f"parquet.`{tmp_path}/{name}`" for name in ("items", "parts"))
    assert_same_rows(
        spark,
        f"SELECT sum(q), count(*) FROM {items} i JOIN {parts} t ON i.p = t.p WHERE size = 4 "
        f"AND q < (SELECT 0.9 * avg(q) FROM {items} j WHERE j.p = t.p)",
    )
