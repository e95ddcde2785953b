# SPDX-License-Identifier: Apache-2.0
"""The planner's thresholds as one value: read from the configuration once, passed to every pass that decides.

A pass never looks up a threshold, so a plan depends only on its inputs, and a test states the limits it uses.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from volley.config import Config

_MIB = 2**20


@dataclass(frozen=True)
class PlannerLimits:
    """When work is divided, replicated, merged or deferred. Sizes are in bytes; 0 disables the decision.

    Users can set the first block (see `config.OPTIONS`); the others are measured trade-offs.
    """

    single_task_bytes: int = 32 * _MIB
    """A query that reads at most this runs as one task on one worker."""
    scan_task_bytes: int = 2 * _MIB
    """The scan cost that justifies another task."""
    shuffle_task_bytes: int = 12 * _MIB
    """The exchanged data a task should read at least: partitions are merged up to this size."""
    replicated_scan_bytes: int = 3 * _MIB
    """A broadcast side that scans at most this is computed by every task: a stage would cost more."""
    continued_stage_bytes: int = 12 * _MIB
    """What a single task may read, besides its own output, to continue with the work of its stage's reader."""
    broadcast_bytes: int = 10 * _MIB
    """A finished side of a join of at most this size is read whole by every task."""
    runtime_filter_bytes: int = 64 * _MIB
    """What a task may read to drop rows that no join needs. Files are compressed, exchanged rows are not."""

    pruned_scan_bytes: int = 4 * _MIB
    """A smaller scan is not pruned by the keys of a join: it is read before they are known."""
    open_file_bytes: int = 256 * 2**10
    """Opening a file costs as much as reading this many bytes."""
    min_split_bytes: int = 8 * _MIB
    """Smaller splits cost more to handle than to read."""
    max_split_bytes: int = 128 * _MIB
    """Larger splits would let a single slow task delay the stage."""
    splits_per_task: int = 6
    """Several splits per task even out tasks of different speed."""
    files_per_split: int = 64
    """The most files in a split."""
    file_imbalance: float = 1.1
    """Whole files are assigned to tasks in advance if the busiest task gets at most this multiple of its fair share."""
    broadcast_ratio: int = 8
    """Once both sides of a join are exchanged, reading one whole pays only if the other is this many times larger."""
    skew_ratio: float = 1.5
    """A task with more than this multiple of its fair share is divided."""
    ordered_files: int = 16
    """The most files of which Spark's row order is reproduced where a query depends on it."""
    ordered_bytes: int = 4 * _MIB
    """The most bytes of such files. Spark does not split files this small, so it reads them one after the other."""
    deferral_ratio: int = 8
    """A stage that scans less than one over this of what it could wait for does not wait: it would save little."""

    @classmethod
    def of(cls, config: Config) -> PlannerLimits:
        return cls(
            single_task_bytes=config.single_task_size,
            scan_task_bytes=config.planner_scan_task_size,
            shuffle_task_bytes=config.planner_shuffle_task_size,
            replicated_scan_bytes=config.planner_replicated_scan_size,
            continued_stage_bytes=config.planner_continued_stage_size,
            broadcast_bytes=config.planner_broadcast_size,
            runtime_filter_bytes=config.planner_runtime_filter_size,
        )

    def divide(self, tasks: int) -> PlannerLimits:
        """The limits of a query of which every task is to hold one of `tasks` parts.

        The tasks of a worker run one after the other here, so the first one would take all splits. Whole files are
        assigned in advance instead, unless a stage has more tasks than files: then they are handed out, uncut.
        """
        return replace(
            self,
            single_task_bytes=0,
            shuffle_task_bytes=max(1, self.shuffle_task_bytes // tasks),
            replicated_scan_bytes=self.replicated_scan_bytes // tasks,
            continued_stage_bytes=self.continued_stage_bytes // tasks,
            broadcast_bytes=self.broadcast_bytes // tasks,
            runtime_filter_bytes=self.runtime_filter_bytes // tasks,
            min_split_bytes=sys.maxsize,
            # Not infinite: a scan without files has a total of 0.
            file_imbalance=sys.float_info.max,
        )


DEFAULT_LIMITS = PlannerLimits()


def within(size_bytes: float, limit_bytes: int) -> bool:
    """Whether a size is within a limit. A limit of 0 disables the decision: nothing is within it."""
    return limit_bytes > 0 and size_bytes <= limit_bytes
