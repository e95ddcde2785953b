r"""Which task reads which partitions of which producers: the only place that knows.

    hash, round robin, single          broadcast

    producer 0   [0][1][2][3]          producer 0   [0]
    producer 1   [0][1][2][3]          producer 1   [0]
                  \_____/ \_____/                     |
    reader task      0       1         reader task  0, 1, 2: all of it

Partitions are dealt to reader tasks in contiguous runs, so a reader with fewer tasks than partitions reads neighbours
together, and a single partition goes to task 0 alone. Two inputs of one stage with the same number of partitions are
therefore always dealt alike: equal keys meet in one task.
"""

from __future__ import annotations

from dataclasses import dataclass

from volley.plan.nodes import Partitioning
from volley.stages.graph import Output


@dataclass(frozen=True, order=True)
class Read:
    """One partition of the output of one producer task."""

    producer: int
    partition: int


def reads(output: Output, producers: int, task: int, tasks: int) -> tuple[Read, ...]:
    """What reader `task` of `tasks` takes from a stage of `producers` tasks, in the producers' order."""
    if output.partitioning is Partitioning.BROADCAST:
        return tuple(Read(producer, 0) for producer in range(producers))
    mine = dealt(output.partitions, task, tasks)
    return tuple(Read(producer, partition) for partition in mine for producer in range(producers))


def dealt(partitions: int, task: int, tasks: int) -> range:
    """The run of partitions that falls to `task`: all are dealt, each once, as evenly as can be."""
    if partitions <= tasks:
        return range(task, task + 1) if task < partitions else range(0)
    return range(partitions * task // tasks, partitions * (task + 1) // tasks)
