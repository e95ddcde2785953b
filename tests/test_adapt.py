"""Task counts that follow the real sizes of what a stage reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volley.plan.expressions import Attribute
from volley.plan.nodes import DataFile, FileScan, Join, JoinKind, Node, Partitioning, Range, StageInput, Union
from volley.plan.types import LONG
from volley.stages.adapt import BYTES_A_TASK, adapted_tasks
from volley.stages.graph import Output, Stage
from volley.stages.layout import reads

NUMBER = Attribute(1, "n", LONG, False)
OTHER = Attribute(2, "m", LONG, False)


def producer(number: int, partitioning: Partitioning, partitions: int = 4) -> Stage:
    return Stage(number, Range(0, 1, 1, (NUMBER,)), 2, Output(partitioning, partitions, ()))


def reader(plan: Node, tasks: int = 4) -> Stage:
    return Stage(9, plan, tasks, None)


JOIN = Join(
    JoinKind.INNER, (NUMBER,), (OTHER,), None, None, StageInput(0, (NUMBER,)), StageInput(1, (OTHER,))
)


@pytest.mark.parametrize(
    ("sizes", "tasks"),
    [
        ({0: 0, 1: 0}, 1),
        ({0: 100, 1: 100}, 1),
        ({0: BYTES_A_TASK, 1: 1}, 2),
        ({0: 10 * BYTES_A_TASK, 1: 10 * BYTES_A_TASK}, 4),
    ],
)
def test_partitions_merge_until_a_task_has_something_to_do(sizes: dict[int, int], tasks: int) -> None:
    producers = {0: producer(0, Partitioning.HASH), 1: producer(1, Partitioning.HASH)}
    assert adapted_tasks(reader(JOIN), producers, sizes) == tasks


def test_what_every_task_reads_whole_does_not_count() -> None:
    producers = {0: producer(0, Partitioning.HASH), 1: producer(1, Partitioning.BROADCAST, 1)}
    assert adapted_tasks(reader(JOIN), producers, {0: 10, 1: 100 * BYTES_A_TASK}) == 1


def test_files_keep_their_tasks() -> None:
    scan = FileScan("parquet", (DataFile("a", 1, 1),), (NUMBER,), (), ())
    plan = Union((NUMBER,), (scan, StageInput(0, (NUMBER,))))
    assert adapted_tasks(reader(plan), {0: producer(0, Partitioning.HASH)}, {0: 0}) == 4


@given(partitions=st.integers(1, 12), planned=st.integers(1, 12), size=st.integers(0, 100 * BYTES_A_TASK))
def test_merged_tasks_still_read_everything_once_and_alike(partitions: int, planned: int, size: int) -> None:
    left = producer(0, Partitioning.HASH, partitions)
    right = producer(1, Partitioning.HASH, partitions)
    tasks = adapted_tasks(reader(JOIN, planned), {0: left, 1: right}, {0: size, 1: 0})
    assert 1 <= tasks <= planned
    assert left.output is not None
    assert right.output is not None
    dealt = [reads(left.output, left.tasks, task, tasks) for task in range(tasks)]
    everything = [read for share in dealt for read in share]
    assert len(everything) == len(set(everything)) == left.tasks * partitions
    for task, share in enumerate(dealt):
        others = reads(right.output, right.tasks, task, tasks)
        assert {read.partition for read in share} == {read.partition for read in others}
