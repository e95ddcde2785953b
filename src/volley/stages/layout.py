# SPDX-License-Identifier: Apache-2.0
r"""Which task reads which partitions of which producers: the only place that knows.

    hash, round robin, single          broadcast

    producer 0   [0][1][2][3]          producer 0   [0]
    producer 1   [0][1][2][3]          producer 1   [0]
                  \_____/ \_____/                     |
    reader task      0       1         reader task  0, 1, 2: all of it

    a partition in slices                                  an input that is read whole

    producer 0   [0][1]     producer 2   [0][1]            producer 0   [0][1][2]
    producer 1   [0][1]                   |                producer 1   [0][1][2]
                  |                       |
    reader task   0                       1                reader task  0, 1: all of it

Partitions are dealt to reader tasks in contiguous runs, so a reader with fewer tasks than partitions reads neighbours
together, and a single partition goes to task 0 alone. Two inputs of one stage with the same number of partitions are
therefore always dealt alike: equal keys meet in one task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from volley.plan.nodes import Partitioning
from volley.stages.graph import Output


@dataclass(frozen=True, order=True)
class Read:
    """One partition of the output of one producer task."""

    producer: int
    partition: int


@dataclass(frozen=True)
class Share:
    """What one task takes: some partitions of every divided input, but of the sliced one from some producers only."""

    partitions: range
    producers: range | None = None


@dataclass(frozen=True)
class Layout:
    """Who reads what of the inputs of a stage of `tasks` tasks.

    Inputs in `whole` are read whole by every task. `shares` are set, one a task, when partitions are not simply dealt;
    tasks with the same partitions then divide the producers of input `sliced` among them.
    """

    tasks: int
    whole: frozenset[int] = frozenset()
    sliced: int | None = None
    shares: tuple[Share, ...] = ()

    def reads(self, number: int, output: Output, producers: int, task: int) -> tuple[Read, ...]:
        """What `task` takes of input `number`, a stage of `producers` tasks, in the producers' order."""
        if number in self.whole:
            return _reads(range(output.partitions), range(producers))
        if not self.shares or output.partitioning is Partitioning.BROADCAST:
            return reads(output, producers, task, self.tasks)
        share = self.shares[task]
        some = share.producers if number == self.sliced else None
        return _reads(share.partitions, range(producers) if some is None else some)

    def is_same_for_all(self, inputs: Mapping[int, Output]) -> bool:
        """Whether what a task reads of these inputs does not depend on how many tasks there are."""
        alike = (Partitioning.BROADCAST, Partitioning.SINGLE)
        return not self.shares and all(
            number in self.whole or output.partitioning in alike for number, output in inputs.items()
        )


def reads(output: Output, producers: int, task: int, tasks: int) -> tuple[Read, ...]:
    """What reader `task` of `tasks` takes from a stage of `producers` tasks, in the producers' order."""
    if output.partitioning is Partitioning.BROADCAST:
        return tuple(Read(producer, 0) for producer in range(producers))
    return _reads(dealt(output.partitions, task, tasks), range(producers))


def _reads(partitions: range, producers: range) -> tuple[Read, ...]:
    return tuple(Read(producer, partition) for partition in partitions for producer in producers)


def dealt(partitions: int, task: int, tasks: int) -> range:
    """The run of partitions that falls to `task`: all are dealt, each once, as evenly as can be."""
    if partitions <= tasks:
        return range(task, task + 1) if task < partitions else range(0)
    return range(partitions * task // tasks, partitions * (task + 1) // tasks)


def runs(weights: Sequence[int], pieces: int) -> tuple[range, ...]:
    """Neighbours together: `pieces` runs, none empty, that weigh about the same. There are at least as many weights."""
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
