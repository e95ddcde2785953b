# SPDX-License-Identifier: Apache-2.0
"""What operators may hold in memory, and what they do past it.

All tasks of a worker share one pool, which divides itself among the operators that run: a task alone has all of it.
Sorts and aggregates write what does not fit to disk. A hash join cannot; a task that fails for want of memory is run
again with joins that sort both sides and merge them, which can. DataFusion merges every kind of join, also with a
further condition; only a join without keys has nothing to sort by, and has to hold one side.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from datafusion import RuntimeEnvBuilder

from volley.plan.nodes import Join, Node, walk

# Of DataFusion: kept free in each sorting stream for the merge at its end. It must be there several times over.
_SORT_RESERVE_BYTES = 10 * 2**20
_SORT_RESERVES = 8
# Whoever merges what was spilled holds a batch of each file. Where there is little memory they have to be small.
_LITTLE_BYTES = 128 * 2**20
_SMALL_BATCH_ROWS = "4096"


@dataclass(frozen=True)
class OperatorMemory:
    """For the tasks of a worker together: at most `limit_bytes` at a time, more goes to files in `directories`.

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
        """Options of the session in which a task plans or runs."""
        # What is taken in advance has to be there for the last task, too.
        share_bytes = self.limit_bytes // self.tasks
        reserve = min(_SORT_RESERVE_BYTES, share_bytes // (_SORT_RESERVES * target_partitions))
        found = {"datafusion.execution.sort_spill_reservation_bytes": str(reserve)}
        if share_bytes < _LITTLE_BYTES:
            found["datafusion.execution.batch_size"] = _SMALL_BATCH_ROWS
        if self.merge_joins:
            found["datafusion.optimizer.prefer_hash_join"] = "false"
        return found


def can_merge(plan: Node) -> bool:
    """Whether the plan has joins that may be run by sorting and merging instead."""
    return any(isinstance(node, Join) and node.left_keys for node in walk(plan))
