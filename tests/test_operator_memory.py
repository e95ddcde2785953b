"""Operators under a budget: they spill, a join that cannot is run as one that can, and the rows stay the same."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from volley.lower.memory import OperatorMemory, can_merge
from volley.plan.expressions import Alias, Attribute, Call, Literal, SortKey
from volley.plan.nodes import Join, JoinKind, Node, Partitioning, Project, Range, Sort
from volley.plan.types import BOOLEAN, LONG
from volley.shuffle.memory import MemoryStore
from volley.stages.graph import Output
from volley.testing.contracts import result_task, stage_task
from volley.transport.messages import TaskDone
from volley.worker.task import run_task

LEFT = Attribute(1, "l", LONG, False)
RIGHT = Attribute(2, "r", LONG, False)
ROWS = 1_000_000
KINDS = [kind for kind in JoinKind if kind is not JoinKind.EXISTENCE]


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
    return Join(kind, (LEFT,), (RIGHT,), None, None, left, right)


def memory(directory: Path, limit_bytes: int) -> OperatorMemory:
    return OperatorMemory(limit_bytes, (directory,))


def result(plan: Node, given: OperatorMemory | None) -> tuple[pa.Table, TaskDone]:
    batches: list[pa.RecordBatch] = []

    async def give(batch: pa.RecordBatch) -> None:
        batches.append(batch)

    done = asyncio.run(run_task(result_task(plan), MemoryStore("here"), 2, give, given))
    return pa.Table.from_batches(batches), done


def spilled_bytes(done: TaskDone) -> int:
    return sum(value for part in done.operators for name, value in part.values if name == "spilled_bytes")


def operators(done: TaskDone) -> set[str]:
    return {part.name for part in done.operators}


def ordered(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names])


@pytest.mark.parametrize("kind", KINDS)
def test_a_join_that_does_not_fit_is_run_as_one_that_spills(tmp_path: Path, kind: JoinKind) -> None:
    roomy, hashed = result(joined(kind), None)
    tight, merged = result(joined(kind), memory(tmp_path, 18 << 20))
    assert "HashJoinExec" in operators(hashed)
    assert "SortMergeJoinExec" in operators(merged), "this budget was meant to be too small for a hash join"
    assert spilled_bytes(merged) > 0
    assert ordered(tight).equals(ordered(roomy))
    assert list(tmp_path.rglob("*.*")) == [], "a spilled file outlived its task"


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


def test_joins_with_further_conditions_are_not_tried_again(tmp_path: Path) -> None:
    further = replace(joined(JoinKind.INNER), condition=Call("LessThan", (LEFT, RIGHT), BOOLEAN))
    assert can_merge(joined(JoinKind.INNER))
    assert not can_merge(further)
    assert not can_merge(rows(LEFT, 0, 1))
    with pytest.raises(Exception, match="Resources exhausted"):
        result(further, memory(tmp_path, 18 << 20))
