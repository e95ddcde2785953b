# SPDX-License-Identifier: Apache-2.0
r"""Which task reads which partitions of which producers. Only this module knows.

    hash, round robin, single          broadcast

    producer 0   [0][1][2][3]          producer 0   [0]
    producer 1   [0][1][2][3]          producer 1   [0]
                  \_____/ \_____/                     |
    reader task      0       1         reader task  0, 1, 2: all of it

    a sliced partition                                     an input that is read whole

    producer 0   [0][1]     producer 2   [0][1]            producer 0   [0][1][2]
    producer 1   [0][1]                   |                producer 1   [0][1][2]
                  |                       |
    reader task   0                       1                reader task  0, 1: all of it

Partitions are assigned to reader tasks in contiguous runs. A reader with fewer tasks than partitions reads neighbours
together, and a single partition goes to task 0. Two inputs of a stage with the same number of partitions are therefore
always assigned alike, so equal keys meet in one task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from volley.plan.nodes import Node, Partitioning, WriteFiles
from volley.stages.graph import Output


@dataclass(frozen=True, order=True)
class Read:
    """One partition of the output of one producer task."""

    producer: int
    partition: int


@dataclass(frozen=True)
class Share:
    """What one task reads: some partitions of every partitioned input, and only some producers of the sliced one."""

    partitions: range
    producers: range | None = None


@dataclass(frozen=True)
class Layout:
    """What each of the `tasks` tasks of a stage reads of its inputs.

    Every task reads the inputs in `whole` completely. `shares`, one per task, replace the default assignment of
    partitions; tasks with the same partitions then divide the producers of input `sliced`.
    """

    tasks: int
    whole: frozenset[int] = frozenset()
    sliced: int | None = None
    shares: tuple[Share, ...] = ()

    def reads(self, number: int, output: Output, producers: int, task: int) -> tuple[Read, ...]:
        """What `task` reads of input `number`, a stage of `producers` tasks, in producer order."""
        if number in self.whole:
            return _reads(range(output.partitions), range(producers))
        if not self.shares or output.partitioning is Partitioning.BROADCAST:
            return reads(output, producers, task, self.tasks)
        share = self.shares[task]
        some = share.producers if number == self.sliced else None
        return _reads(share.partitions, range(producers) if some is None else some)

    def is_same_for_all(self, inputs: Mapping[int, Output]) -> bool:
        """Whether what a task reads of these inputs is independent of the number of tasks."""
        alike = (Partitioning.BROADCAST, Partitioning.SINGLE)
        return not self.shares and all(
            number in self.whole or output.partitioning in alike for number, output in inputs.items()
        )


def reads(output: Output, producers: int, task: int, tasks: int) -> tuple[Read, ...]:
    """What reader `task` of `tasks` reads from a stage of `producers` tasks, in producer order."""
    if output.partitioning is Partitioning.BROADCAST:
        return tuple(Read(producer, 0) for producer in range(producers))
    return _reads(assign_partitions(output.partitions, task, tasks), range(producers))


def _reads(partitions: range, producers: range) -> tuple[Read, ...]:
    return tuple(Read(producer, partition) for partition in partitions for producer in producers)


def assign_partitions(partitions: int, task: int, tasks: int) -> range:
    """The partitions of `task`: a contiguous run. Each partition goes to exactly one task, as evenly as possible."""
    if partitions <= tasks:
        return range(task, task + 1) if task < partitions else range(0)
    return range(partitions * task // tasks, partitions * (task + 1) // tasks)


def share_files(plan: Node, task: int, tasks: int) -> Node:
    """The plan of one task of a write, with its share of the files that the user asked for."""
    if isinstance(plan, WriteFiles) and plan.files is not None and is_shared_write(plan) and tasks > 1:
        return replace(plan, files=max(1, len(assign_partitions(plan.files, task, tasks))))
    return plan


def is_shared_write(plan: Node) -> bool:
    """Whether each task writes some of a number of files. If rows have the numbers of their files, each has these."""
    return isinstance(plan, WriteFiles) and plan.files is not None and not plan.numbered


def split_into_runs(weights: Sequence[int], pieces: int) -> tuple[range, ...]:
    """Split into `pieces` contiguous, non-empty runs of about the same weight. Needs at least `pieces` weights."""
    total = sum(weights)
    bounds = [0]
    weight = 0
    for position, added in enumerate(weights, start=1):
        weight += added
        open_pieces = pieces - len(bounds)
        left = len(weights) - position
        if open_pieces and left >= open_pieces:
            is_heavy = weight * pieces >= total * len(bounds)
            if is_heavy or left == open_pieces:
                bounds.append(position)
    return tuple(range(start, end) for start, end in pairwise([*bounds, len(weights)]))
