# SPDX-License-Identifier: Apache-2.0
"""Which task reads what: every partition of every producer by exactly one reader, or by all."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from volley.plan.nodes import Partitioning
from volley.stages.graph import Output
from volley.stages.layout import Read, assign_partitions, reads

counts = st.integers(1, 12)


@given(partitions=counts, producers=counts, tasks=counts)
def test_every_partition_is_read_by_one_task(partitions: int, producers: int, tasks: int) -> None:
    output = Output(Partitioning.HASH, partitions)
    read = Counter(read for task in range(tasks) for read in reads(output, producers, task, tasks))
    assert read == Counter(Read(p, n) for p in range(producers) for n in range(partitions))


@given(partitions=counts, tasks=counts, one=counts, other=counts)
def test_inputs_with_as_many_partitions_are_dealt_alike(
    partitions: int, tasks: int, one: int, other: int
) -> None:
    output = Output(Partitioning.HASH, partitions)
    for task in range(tasks):
        mine, theirs = (
            {read.partition for read in reads(output, producers, task, tasks)} for producers in (one, other)
        )
        assert mine == theirs


@given(producers=counts, tasks=counts)
def test_a_broadcast_is_read_whole_by_every_task(producers: int, tasks: int) -> None:
    output = Output(Partitioning.BROADCAST)
    for task in range(tasks):
        assert reads(output, producers, task, tasks) == tuple(Read(p, 0) for p in range(producers))


@given(producers=counts, tasks=counts)
def test_a_single_partition_goes_to_the_first_task_in_the_order_of_the_producers(
    producers: int, tasks: int
) -> None:
    output = Output(Partitioning.SINGLE)
    assert reads(output, producers, 0, tasks) == tuple(Read(p, 0) for p in range(producers))
    assert all(reads(output, producers, task, tasks) == () for task in range(1, tasks))


@given(partitions=counts, tasks=counts)
def test_runs_are_contiguous_and_even(partitions: int, tasks: int) -> None:
    runs = [assign_partitions(partitions, task, tasks) for task in range(tasks)]
    assert [partition for run in runs for partition in run] == list(range(partitions))
    assert max(map(len, runs)) - min(map(len, runs)) <= 1
