# SPDX-License-Identifier: Apache-2.0
"""Operators under a budget: they spill, a join that cannot is run as one that can, and the rows stay the same."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest

from volley.lower.memory import OperatorMemory, can_merge
from volley.plan.expressions import Alias, Attribute, Call, Literal, SortKey
from volley.plan.nodes import Join, JoinKind, Node, Partitioning, Project, Range, Sort
from volley.plan.types import BOOLEAN, LONG
from volley.rpc.messages import TaskDone
from volley.shuffle.memory import MemoryStore
from volley.stages.graph import Output
from volley.testing.contracts import result_task, stage_task
from volley.worker.task import run_task

LEFT = Attribute(1, "l", LONG, False)
RIGHT = Attribute(2, "r", LONG, False)
ROWS = 1_500_000
# About both sides at once, so that it cannot be applied to one of them before the join.
FURTHER = Call(
    "Or",
    (
        Call("LessThan", (LEFT, Literal(ROWS * 3 // 4, LONG)), BOOLEAN),
        Call("LessThan", (RIGHT, Literal(0, LONG)), BOOLEAN),
    ),
    BOOLEAN,
)


def rows(attribute: Attribute, start: int, end: int) -> Node:
    return Range(start, end, 1, (attribute,))


def shuffled(attribute: Attribute, start: int, end: int) -> Node:
    """Rows that are in no order, so that they have to be sorted."""
    plain = Attribute(attribute.id + 10, "n", LONG, False)
    mixed = Call("BitwiseXor", (plain, Literal(0b101010101010101, LONG)), LONG)
    return Project((Alias(attribute.id, attribute.name, mixed),), rows(plain, start, end))


def joined(kind: JoinKind) -> Join:
    """Both sides overlap by about half, so that every kind has something to keep and something to drop."""
    left, right = shuffled(LEFT, 0, ROWS), shuffled(RIGHT, ROWS // 2, ROWS + ROWS // 2)
    exists = Attribute(3, "e", BOOLEAN) if kind is JoinKind.EXISTENCE else None
    return Join(kind, (LEFT,), (RIGHT,), None, None, left, right, exists=exists)


def memory(directory: Path, limit_bytes: int) -> OperatorMemory:
    return OperatorMemory(limit_bytes, (directory,))


def result(plan: Node, given: OperatorMemory | None) -> tuple[pa.Table, TaskDone]:
    batches: list[pa.RecordBatch] = []

    async def give(batch: pa.RecordBatch) -> None:
        batches.append(batch)

    done = asyncio.run(run_task(result_task(plan), MemoryStore("here"), 2, give, given))
    return pa.Table.from_batches(batches), done


def stored(plan: Node, given: OperatorMemory | None) -> tuple[pa.Table, TaskDone]:
    """Rows that wait in a store, where a task that has to begin again can take them back."""

    async def nothing(batch: pa.RecordBatch) -> None:
        raise AssertionError

    store = MemoryStore("here")
    task = stage_task(plan, Output(Partitioning.SINGLE), 0)
    done = asyncio.run(run_task(task, store, 2, nothing, given))
    return pa.Table.from_batches(store.read_many(done.blocks)), done


def spilled_bytes(done: TaskDone) -> int:
    return sum(
        value for part in done.metrics.operators for name, value in part.values if name == "spilled_bytes"
    )


def operators(done: TaskDone) -> set[str]:
    return {part.name for part in done.metrics.operators}


def ordered(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names])


@pytest.fixture
def without_collector() -> Iterator[None]:
    """What a task spilled goes with it, and not when Python's collector comes by."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# All of them in the slow suite.
SOME_JOINS = {(JoinKind.INNER, "plain"), (JoinKind.ANTI, "null aware"), (JoinKind.FULL, "condition")}
JOINS = [*product(JoinKind, ("plain", "condition")), (JoinKind.ANTI, "null aware")]


@pytest.mark.parametrize(
    ("kind", "form"),
    [pytest.param(*join, marks=[] if join in SOME_JOINS else [pytest.mark.slow]) for join in JOINS],
)
@pytest.mark.usefixtures("without_collector")
def test_a_join_that_does_not_fit_is_run_as_one_that_spills(
    tmp_path: Path, kind: JoinKind, form: str
) -> None:
    join = replace(
        joined(kind), condition=FURTHER if form == "condition" else None, null_aware=form == "null aware"
    )
    roomy, hashed = stored(join, None)
    # An existence join with a condition is two joins.
    limit_mb = 32 if kind is JoinKind.EXISTENCE and form == "condition" else 26
    # Too little for a hash table, and enough for sorts to merge what they spilled, however busy the machine is.
    tight, merged = stored(join, memory(tmp_path, limit_mb << 20))
    assert "HashJoinExec" in operators(hashed)
    assert "SortMergeJoinExec" in operators(merged), "this budget was meant to be too small for a hash join"
    assert spilled_bytes(merged) > 0
    assert ordered(tight).equals(ordered(roomy))
    # Threads of the engine remove the last of them just after the task has ended.
    deadline = time.monotonic() + 30
    while left := [path for path in tmp_path.rglob("*") if path.is_file()]:
        assert time.monotonic() < deadline, f"spilled files outlived their task: {left}"


@pytest.mark.parametrize("kind", [JoinKind.LEFT, JoinKind.FULL])
def test_partitions_are_the_same_whichever_join_made_them(tmp_path: Path, kind: JoinKind) -> None:
    """A merging join is sorted and laid out by the keys already: the exchange above must not be fooled by that."""

    async def nothing(batch: pa.RecordBatch) -> None:
        raise AssertionError

    def partitions(given: OperatorMemory | None) -> tuple[list[pa.Table], TaskDone]:
        store = MemoryStore("here")
        task = stage_task(joined(kind), Output(Partitioning.HASH, 4, (LEFT,)), 0)
        done = asyncio.run(run_task(task, store, 2, nothing, given))
        return [ordered(pa.Table.from_batches(store.read(block))) for block in done.blocks], done

    hashed, _ = partitions(None)
    merged, done = partitions(OperatorMemory(1 << 30, (tmp_path,), merge_joins=True))
    assert "SortMergeJoinExec" in operators(done)
    assert all(table.num_rows for table in hashed)
    assert all(one.equals(other) for one, other in zip(merged, hashed, strict=True))


def test_a_sort_spills(tmp_path: Path) -> None:
    backwards = Sort((SortKey(LEFT, False, False),), True, rows(LEFT, 0, 2_000_000))
    table, done = result(backwards, memory(tmp_path, 8 << 20))
    assert spilled_bytes(done) > 0
    assert table.column(0).equals(pa.chunked_array([pa.array(range(1_999_999, -1, -1), pa.int64())]))


def test_a_join_with_little_memory_needs_no_array_for_sparse_keys(tmp_path: Path) -> None:
    """An array for these keys would take 12 MB."""
    left, right = (Range(0, 3_000_000, 25, (attribute,)) for attribute in (LEFT, RIGHT))
    join = Join(JoinKind.INNER, (LEFT,), (RIGHT,), None, None, left, right)
    table, done = stored(join, memory(tmp_path, 10 << 20))
    assert "HashJoinExec" in operators(done)
    assert table.num_rows == 120_000


def test_a_task_that_runs_alone_has_the_memory_of_all(tmp_path: Path) -> None:
    backwards = Sort((SortKey(LEFT, False, False),), True, rows(LEFT, 0, 2_000_000))
    _, done = stored(backwards, OperatorMemory(256 << 20, (tmp_path,), tasks=16))
    assert spilled_bytes(done) == 0


def test_tasks_that_run_together_share_one_limit(tmp_path: Path) -> None:
    """A hash table fits, and two do not: the second task sorts and merges while the first holds its own."""
    shared = OperatorMemory(58 << 20, (tmp_path,), tasks=2)
    join = joined(JoinKind.INNER)
    alone, done = stored(join, shared)
    assert "HashJoinExec" in operators(done)

    async def story() -> tuple[pa.Table, TaskDone]:
        holding, go_on = asyncio.Event(), asyncio.Event()

        async def give(batch: pa.RecordBatch) -> None:
            holding.set()
            await go_on.wait()

        async def nothing(batch: pa.RecordBatch) -> None:
            raise AssertionError

        first = asyncio.create_task(run_task(result_task(join), MemoryStore("first"), 2, give, shared))
        await holding.wait()
        store = MemoryStore("second")
        task = stage_task(join, Output(Partitioning.SINGLE), 1)
        second = await run_task(task, store, 2, nothing, shared)
        go_on.set()
        await first
        return pa.Table.from_batches(store.read_many(second.blocks)), second

    together, done = asyncio.run(asyncio.wait_for(story(), 120))
    assert "SortMergeJoinExec" in operators(done)
    assert ordered(together).equals(ordered(alone))


def test_joins_without_keys_are_not_tried_again() -> None:
    without_keys = replace(joined(JoinKind.INNER), left_keys=(), right_keys=(), condition=FURTHER)
    assert can_merge(joined(JoinKind.INNER))
    assert not can_merge(without_keys)
    assert not can_merge(rows(LEFT, 0, 1))
