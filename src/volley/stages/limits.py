# SPDX-License-Identifier: Apache-2.0
"""The thresholds of the planner as one value: read from the configuration once, passed to every pass that decides.

A pass never looks a threshold up, so a plan depends on its inputs alone, and a test states the limits it plans with.
"""

from __future__ import annotations

from dataclasses import dataclass

from volley.config import Config

_MIB = 2**20


@dataclass(frozen=True)
class PlannerLimits:
    """When work is divided, replicated, merged or put off. Sizes are bytes; a size of 0 turns its decision off.

    The first block can be set by users (see `config.OPTIONS`), the others are measured trade-offs.
    """

    single_task_bytes: int = 32 * _MIB
    """A query that reads no more than this is one task on one worker."""
    scan_task_bytes: int = 2 * _MIB
    """What a scan must cost to be worth another task."""
    shuffle_task_bytes: int = 12 * _MIB
    """What a task should at least read of exchanged data: merging partitions stops there."""
    replicated_scan_bytes: int = 3 * _MIB
    """A broadcast side that scans no more than this is computed by every task: a stage costs more than to read it."""
    continued_stage_bytes: int = 12 * _MIB
    """What a single task may read, beside its own output, to go on with the work of its stage's reader."""
    broadcast_bytes: int = 10 * _MIB
    """A finished side of a join that proved no larger than this is read whole by every task."""
    runtime_filter_bytes: int = 64 * _MIB
    """What a task may read whole to drop rows that no join will want. Files are compressed, exchanged rows are not."""

    open_file_bytes: int = 256 * 2**10
    """Opening a file costs as much as reading this."""
    min_split_bytes: int = 8 * _MIB
    """A smaller split costs more than it holds."""
    max_split_bytes: int = 128 * _MIB
    """One larger split would be all that a slow task does."""
    splits_per_task: int = 6
    """Tasks that finish at different times even out when each takes several splits."""
    files_per_split: int = 64
    """No split holds more files than this."""
    file_imbalance: float = 1.1
    """Whole files are assigned to tasks before they start if the busiest gets at most this multiple of its share."""
    broadcast_ratio: int = 8
    """Once both sides of a join are exchanged, reading one whole pays only if the other is so many times larger."""
    skew_ratio: float = 1.5
    """A task with more than this multiple of its fair share is divided."""
    deferral_ratio: int = 8
    """A stage that scans less than this fraction of what it could wait for does not wait: it saves little."""

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


DEFAULT_LIMITS = PlannerLimits()


def within(size_bytes: float, limit_bytes: int) -> bool:
    """Whether a size keeps to a limit; nothing keeps to a limit of 0, which turns a decision off."""
    return limit_bytes > 0 and size_bytes <= limit_bytes
