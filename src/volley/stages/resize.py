# SPDX-License-Identifier: Apache-2.0
"""How many tasks a stage gets and what each reads, once the sizes of its inputs are known.

A stage is planned for all workers before anybody knows how much it will read. When its producers are done,

    partitions are merged        until a task has enough to do: each costs a message, a plan and a hash table, which is
                                 more than the work itself for a few kilobytes
    a partition is sliced        when it is far larger than the others, and the operators allow it
    a join becomes a broadcast   when one side proved small: every task reads it whole, and the rows of the other side
                                 stay where they are

Every decision is also put into words, for the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from volley.stages.absorb import describe_small
from volley.stages.graph import Output, Stage
from volley.stages.layout import Layout, Share, dealt, runs
from volley.stages.limits import PlannerLimits, within
from volley.stages.probe_side import partitioned_inputs, probe_inputs, with_build_sides
from volley.stages.scans import scans_of


@dataclass(frozen=True)
class Produced:
    """The output of a finished stage, in bytes by task and partition; a task that was not needed has none."""

    output: Output
    sizes: tuple[tuple[int, ...], ...]

    @property
    def size_bytes(self) -> int:
        return sum(map(sum, self.sizes))

    def by_producer(self, partitions: range) -> list[int]:
        return [sum(sizes[p] for p in partitions) if sizes else 0 for sizes in self.sizes]


@dataclass(frozen=True)
class Resized:
    stage: Stage
    layout: Layout
    decisions: tuple[str, ...] = ()


def resize(stage: Stage, inputs: Mapping[int, Produced], limits: PlannerLimits) -> Resized:
    """The stage and who reads what of its inputs, now that these are finished."""
    outputs = {number: produced.output for number, produced in inputs.items()}
    divided = partitioned_inputs(stage, outputs)
    tasks = _tasks(stage, sum(inputs[number].size_bytes for number in divided), limits)
    if tasks > 1:
        streamed = probe_inputs(stage, outputs)
        for number in sorted(streamed, key=lambda number: -inputs[number].size_bytes):
            other = {number: inputs[number].size_bytes for number in divided - {number}}
            found = _broadcast(stage, number, inputs[number], other, tasks, limits) or _sliced(
                stage, number, inputs[number], tasks, limits
            )
            if found:
                return found
    return Resized(replace(stage, tasks=tasks), Layout(tasks, stage.whole))


def _tasks(stage: Stage, shared_bytes: int, limits: PlannerLimits) -> int:
    """How many tasks have something to do with so much that is divided among them.

    Never more than planned, and just what was planned where a scan is read: its feed sees to that.
    Partitions are merged in runs, the same for every input (`layout.dealt`), so equal keys still meet in one task.
    """
    if scans_of(stage.plan):
        return stage.tasks
    return max(1, min(stage.tasks, -(-shared_bytes // limits.shuffle_task_bytes)))


def _broadcast(
    stage: Stage,
    number: int,
    produced: Produced,
    others: Mapping[int, int],
    tasks: int,
    limits: PlannerLimits,
) -> Resized | None:
    small = sum(others.values())
    if not others or not within(small, limits.broadcast_bytes):
        return None
    if produced.size_bytes < limits.broadcast_ratio * small:
        return None
    everything = range(produced.output.partitions)
    weights = produced.by_producer(everything)
    if len(weights) < tasks:
        return None
    shares = tuple(Share(everything, producers) for producers in runs(weights, tasks))
    layout = Layout(tasks, stage.whole, number, shares)
    said = (
        f"{describe_small(others)}: every task reads it whole, and stage {number} where it lies "
        f"instead of by partition"
    )
    return Resized(_over(stage, number, tasks), layout, (said,))


def _sliced(
    stage: Stage, number: int, produced: Produced, tasks: int, limits: PlannerLimits
) -> Resized | None:
    fair = max(limits.shuffle_task_bytes, produced.size_bytes / tasks)
    shares: list[Share] = []
    decisions = []
    for task in range(tasks):
        partitions = dealt(produced.output.partitions, task, tasks)
        weights = produced.by_producer(partitions)
        size_bytes = sum(weights)
        pieces = min(-int(-size_bytes // fair), sum(weight > 0 for weight in weights))
        if size_bytes <= limits.skew_ratio * fair or pieces < 2:
            shares.append(Share(partitions))
            continue
        shares += [Share(partitions, producers) for producers in runs(weights, pieces)]
        decisions.append(
            f"{size_bytes:,} of {produced.size_bytes:,} bytes of stage {number} are in {_named(partitions)}: "
            f"read in {pieces} slices"
        )
    if not decisions:
        return None
    layout = Layout(len(shares), stage.whole, number, tuple(shares))
    return Resized(_over(stage, number, len(shares)), layout, tuple(decisions))


def _over(stage: Stage, streamed: int, tasks: int) -> Stage:
    return replace(stage, plan=with_build_sides(stage.plan, streamed), tasks=tasks)


def _named(partitions: range) -> str:
    first, last = partitions[0], partitions[-1]
    return f"partition {first}" if first == last else f"partitions {first} to {last}"
