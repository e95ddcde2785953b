# SPDX-License-Identifier: Apache-2.0
"""Operator memory: how much operators may hold, and what happens beyond that.

All tasks of a worker share one pool, divided among the running operators: a single task gets all of it. Sorts and
aggregates spill to disk. A hash join cannot, so a task that runs out of memory is retried with sort-merge joins, which
can. DataFusion has them for every kind of join, also with further conditions. Only a join without keys cannot be
sorted, and must hold one side.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from datafusion import RuntimeEnvBuilder

from volley.plan.nodes import Join, Node, walk

# DataFusion reserves this in each sorting stream for the final merge. The pool must cover it several times.
_SORT_RESERVE_BYTES = 10 * 2**20
_SORT_RESERVES = 8
# A merge of spilled files holds one batch of each, and an exchange one of each output. With little memory, batches must
# be small: a row has some 50 bytes, and all outputs of a plan should fit many times.
_LITTLE_BYTES = 128 * 2**20
_SMALL_BATCH_ROWS = 4096
_SMALLEST_BATCH_ROWS = 256
_SHARE_PER_ROW_BYTES = 512
# The array of a join by integers takes much more than a hash table if few keys of its range are used. A task with less
# memory than this makes only those that are as dense as DataFusion wants them by default.
_ARRAYS_BYTES = 2**30
_DENSE = "0.15"


@dataclass(frozen=True)
class OperatorMemory:
    """The memory of all tasks of a worker: at most `limit_bytes` at a time; more is spilled to `directories`.

    Up to `tasks` of them run at the same time.
    """

    limit_bytes: int
    directories: tuple[Path, ...]
    tasks: int = 1
    merge_joins: bool = False

    def runtime(self) -> RuntimeEnvBuilder:
        paths = [str(directory) for directory in self.directories]
        return RuntimeEnvBuilder().with_fair_spill_pool(self.limit_bytes).with_disk_manager_specified(*paths)

    def settings(self, target_partitions: int) -> dict[str, str]:
        """The options of a session in which a task plans or runs."""
        # The reservation must be available to the last task, too.
        share_bytes = self.limit_bytes // self.tasks
        reserve = min(_SORT_RESERVE_BYTES, share_bytes // (_SORT_RESERVES * target_partitions))
        found = {"datafusion.execution.sort_spill_reservation_bytes": str(reserve)}
        if share_bytes < _LITTLE_BYTES:
            rows = share_bytes // (target_partitions * _SHARE_PER_ROW_BYTES)
            found["datafusion.execution.batch_size"] = str(
                min(max(rows, _SMALLEST_BATCH_ROWS), _SMALL_BATCH_ROWS)
            )
        if share_bytes < _ARRAYS_BYTES:
            found["datafusion.execution.perfect_hash_join_min_key_density"] = _DENSE
        if self.merge_joins:
            found["datafusion.optimizer.prefer_hash_join"] = "false"
        return found


def can_merge(plan: Node) -> bool:
    """Whether the plan has joins that can run as sort-merge joins."""
    return any(isinstance(node, Join) and node.left_keys for node in walk(plan))
