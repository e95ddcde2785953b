# SPDX-License-Identifier: Apache-2.0
"""Small inputs of joins that come from other stages are collected, and no bound of theirs costs a row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pyarrow as pa
import pytest
from datafusion import ExecutionPlan

from volley.lower.operators import lower
from volley.lower.partition import partitioned_plan
from volley.lower.plan_cache import drop_plans
from volley.lower.row_bounds import bound_of
from volley.lower.scope import Streamed, arrow_schema
from volley.lower.sessions import hashing_context, planning_context
from volley.lower.streams import StreamTable
from volley.plan.expressions import Attribute
from volley.plan.nodes import BuildSide, Join, JoinKind, Range, StageInput
from volley.plan.types import LONG

SMALL = Attribute(1, "n", LONG)
LARGE = Attribute(2, "m", LONG)
WIDTH = 2
ROWS = 300_000


@pytest.fixture(autouse=True)
def without_frames() -> Iterator[None]:
    drop_plans()
    yield
    drop_plans()


def table_of(rows: int) -> StreamTable:
    schema = arrow_schema((SMALL,))
    whole = pa.record_batch([pa.array(range(rows), pa.int64())], schema)
    half = rows // 2
    parts = [whole.slice(0, half), whole.slice(half)]
    streams = [lambda part=part: iter([part]) for part in parts]
    return StreamTable(schema, streams, bound_of(rows, whole.nbytes))


def join(kind: JoinKind = JoinKind.INNER) -> Join:
    """A small table with each row of a large one that has the same number."""
    large, small = Range(0, ROWS, 1, (LARGE,)), StageInput(0, (SMALL,))
    return Join(kind, (LARGE,), (SMALL,), None, BuildSide.RIGHT, large, small)


def hashed_plan(node: Join, rows: int) -> ExecutionPlan:
    def inputs(read: Streamed) -> StreamTable:
        return table_of(rows)

    with ExitStack() as resources:
        frame = lower(node, planning_context(WIDTH), inputs, resources, WIDTH)
        plan = partitioned_plan(frame, hashing_context(WIDTH), (LARGE,), WIDTH)
        assert plan is not None
        return plan


def count_rows(plan: ExecutionPlan) -> int:
    context = planning_context(WIDTH)
    batches = [context.execute(plan, number) for number in range(plan.partition_count)]
    return sum(batch.to_pyarrow().num_rows for stream in batches for batch in stream)


@pytest.mark.parametrize("kind", [JoinKind.INNER, JoinKind.SEMI, JoinKind.LEFT])
def test_rows_are_hashed_after_a_join_to_a_small_table(kind: JoinKind) -> None:
    lines = [line.strip() for line in hashed_plan(join(kind), 1000).display_indent().splitlines()]
    assert lines[0].startswith("RepartitionExec: partitioning=Hash")
    assert "mode=CollectLeft" in next(line for line in lines if line.startswith("HashJoinExec"))
    assert len([line for line in lines if line.startswith("RepartitionExec")]) == 1


def test_a_large_table_is_not_collected() -> None:
    assert "mode=Partitioned" in hashed_plan(join(), 200_000).display_indent()


@pytest.mark.parametrize("rows", [0, 1, 2, 1023, 1024, 1025, 65_536, 131_070, 131_071, 131_072])
def test_no_row_is_lost(rows: int) -> None:
    assert count_rows(hashed_plan(join(JoinKind.SEMI), rows)) == rows


def test_a_frame_is_not_used_for_more_rows_than_it_was_made_for() -> None:
    node = join(JoinKind.SEMI)
    for rows in (3, 1000, 600, 100_000, 5, 200_000, 7):
        assert count_rows(hashed_plan(node, rows)) == rows


def test_wide_rows_are_not_small() -> None:
    assert bound_of(1000, 1 << 20) is not None
    assert bound_of(1000, 1 << 30) is None
