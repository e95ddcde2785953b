# SPDX-License-Identifier: Apache-2.0
"""A fragment that is planned again uses the frame of before, with the rows of this run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pyarrow as pa
import pytest
from datafusion import DataFrame, ExecutionPlan, SessionContext

from volley.lower.operators import lower
from volley.lower.plan_cache import drop_plans
from volley.lower.scope import Streamed, arrow_schema
from volley.lower.streams import StreamTable
from volley.plan.expressions import Alias, Call, Literal
from volley.plan.nodes import FeedInput, Node, Project, Range, StageInput, Union
from volley.plan.types import LONG
from volley.testing.contracts import NUMBER

SCHEMA = arrow_schema((NUMBER,))


@pytest.fixture(autouse=True)
def without_frames() -> Iterator[None]:
    drop_plans()
    yield
    drop_plans()


def table_of(*partitions: list[int]) -> StreamTable:
    def read(values: list[int]) -> Iterator[pa.RecordBatch]:
        return iter([pa.record_batch([pa.array(values, pa.int64())], SCHEMA)])

    return StreamTable(SCHEMA, [lambda values=values: read(values) for values in partitions])  # type: ignore[misc]


def lowered(
    node: Node, context: SessionContext, resources: ExitStack, *partitions: list[int]
) -> tuple[DataFrame, ExecutionPlan]:
    def inputs(read: Streamed) -> StreamTable:
        return table_of(*partitions)

    frame = lower(node, context, inputs, resources)
    return frame, frame.execution_plan()


def rows(context: SessionContext, plan: ExecutionPlan) -> list[int]:
    return sorted(
        value
        for partition in range(plan.partition_count)
        for batch in context.execute(plan, partition)
        for value in batch.to_pyarrow().column(0).to_pylist()
    )


def plus_one(child: Node) -> Node:
    return Project((Alias(2, "m", Call("Add", (NUMBER, Literal(1, LONG)), LONG)),), child)


def test_a_frame_reads_the_rows_of_each_run() -> None:
    context = SessionContext()
    node = plus_one(StageInput(0, (NUMBER,)))
    with ExitStack() as first:
        frame, one = lowered(node, context, first, [1, 2])
    with ExitStack() as second:
        again, two = lowered(node, context, second, [10], [20], [30])
        assert again is frame
        # A plan has the rows of the time when it was made, however long that is ago.
        assert rows(context, two) == [11, 21, 31]
        assert rows(context, one) == [2, 3]
    with ExitStack() as third:
        again, three = lowered(node, context, third)
        assert again is frame
        assert rows(context, three) == []


def test_two_inputs_of_one_fragment_keep_their_own_rows() -> None:
    context = SessionContext()
    node = Union((NUMBER,), (StageInput(0, (NUMBER,)), StageInput(1, (NUMBER,))))
    for run in range(3):
        with ExitStack() as resources:
            tables = {0: table_of([run]), 1: table_of([10 * run], [20 * run])}

            def inputs(read: Streamed, tables: dict[int, StreamTable] = tables) -> StreamTable:
                assert isinstance(read, StageInput)
                return tables[read.stage]

            frame = lower(node, context, inputs, resources)
            assert rows(context, frame.execution_plan()) == sorted([run, 10 * run, 20 * run])


def test_a_frame_in_use_is_not_shared() -> None:
    context = SessionContext()
    node = plus_one(StageInput(0, (NUMBER,)))
    with ExitStack() as before:
        kept, _ = lowered(node, context, before, [0])
    with ExitStack() as first, ExitStack() as second:
        frame, one = lowered(node, context, first, [1])
        other, two = lowered(node, context, second, [2])
        assert frame is kept
        assert other is not kept
        assert (rows(context, one), rows(context, two)) == ([2], [3])
    with ExitStack() as third:
        again, three = lowered(node, context, third, [3])
        assert again in (frame, other)
        assert rows(context, three) == [4]


def test_a_frame_that_is_kept_holds_no_rows() -> None:
    context = SessionContext()
    node = plus_one(StageInput(0, (NUMBER,)))
    with ExitStack() as resources:
        frame, _ = lowered(node, context, resources, [1])
    assert rows(context, frame.execution_plan()) == []


def test_an_equal_plan_is_another_plan() -> None:
    context = SessionContext()
    with ExitStack() as resources:
        frame, _ = lowered(plus_one(StageInput(0, (NUMBER,))), context, resources, [1])
    with ExitStack() as resources:
        assert lowered(plus_one(StageInput(0, (NUMBER,))), context, resources, [1])[0] is not frame


def test_a_fed_scan_is_lowered_anew() -> None:
    context = SessionContext()
    node = FeedInput(0, Range(0, 1, 1, (NUMBER,)))
    with ExitStack() as resources:
        frame, _ = lowered(node, context, resources, [1])
    with ExitStack() as resources:
        assert lowered(node, context, resources, [1])[0] is not frame
