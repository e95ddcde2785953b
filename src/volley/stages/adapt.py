"""What the real sizes of finished stages change about the next one.

A stage is planned for all workers before anybody knows how much it will read. When its producers are done, their
partitions are merged until a task has something to do: a task costs a message, a plan and a hash table each, which for
a few kilobytes is more than the work itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from volley.plan.nodes import Partitioning
from volley.stages.graph import Stage
from volley.stages.scans import scans_of

# What one task should at least have to read; a second worker saves less than it costs below that.
BYTES_A_TASK = 4 * 2**20


def adapted_tasks(stage: Stage, producers: Mapping[int, Stage], input_bytes: Mapping[int, int]) -> int:
    """How many tasks the stage gets, given the bytes that each of its producers made.

    Never more than planned, and just what was planned where a scan is read: its feed sees to that.
    Partitions are merged in runs, the same for every input (`layout.dealt`), so equal keys still meet in one task.
    """
    if scans_of(stage.plan):
        return stage.tasks
    shared = sum(size for number, size in input_bytes.items() if _is_divided(producers[number]))
    return max(1, min(stage.tasks, -(-shared // BYTES_A_TASK)))


def _is_divided(producer: Stage) -> bool:
    """Whether each reader takes a share; what every task reads whole says nothing about their number."""
    return producer.output is not None and producer.output.partitioning in (
        Partitioning.HASH,
        Partitioning.ROUND_ROBIN,
    )
