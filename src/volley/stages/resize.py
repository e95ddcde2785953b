# SPDX-License-Identifier: Apache-2.0
"""Decides how many tasks a stage gets and what each reads, once the sizes of its inputs are known.

A stage is planned for all workers before its input sizes are known. When its producers have finished,

    partitions are merged        until a task has enough to do: a task costs a message, a plan and a hash table, more
                                 than processing a few kilobytes
    a partition is sliced        if it is far larger than the others and the operators allow it
    a join becomes a broadcast   if one side proved small: every task reads it whole, and the rows of the other side
                                 stay in place

Every decision is also described for the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from volley.stages.absorb import describe_small
from volley.stages.graph import Output, Stage
from volley.stages.layout import Layout, Share, assign_partitions, split_into_runs
from volley.stages.limits import PlannerLimits, within
from volley.stages.probe_side import partitioned_inputs, probe_inputs, with_build_sides
from volley.stages.scans import scans_of


@dataclass(frozen=True)
class Produced:
    """The output of a finished stage, in bytes by task and partition; empty for a task that was not needed."""

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
    """The stage and the layout of its inputs, now that these are finished."""
    outputs = {number: produced.output for number, produced in inputs.items()}
    divided = partitioned_inputs(stage, outputs)
    tasks = _tasks(stage, sum(inputs[number].size_bytes for number in divided), limits)
    if tasks > 1:
        streamed = probe_inputs(stage, outputs)
        for number in sorted(streamed, key=lambda number: -inputs[number].size_bytes):
            other = {number: inputs[number].size_bytes for number in divided - {number}}
            found = _broadcast(stage, number, inputs[number], other, tasks, limits) or _slice_skewed(
                stage, number, inputs[number], tasks, limits
            )
            if found:
                return found
    return Resized(replace(stage, tasks=tasks), Layout(tasks, stage.whole))


def _tasks(stage: Stage, shared_bytes: int, limits: PlannerLimits) -> int:
    """The number of tasks worth starting for this much partitioned input.

    Never more than planned. A stage with a scan keeps its planned tasks: its feed balances them. Partitions are merged
    in the same runs for every input (`layout.assign_partitions`), so equal keys still meet in one task.
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
    shares = tuple(Share(everything, producers) for producers in split_into_runs(weights, tasks))
    layout = Layout(tasks, stage.whole, number, shares)
    decision = (
        f"{describe_small(others)}: every task reads it whole, and stage {number} by producer "
        f"instead of by partition"
    )
    return Resized(_with_probe(stage, number, tasks), layout, (decision,))


def _slice_skewed(
    stage: Stage, number: int, produced: Produced, tasks: int, limits: PlannerLimits
) -> Resized | None:
    fair = max(limits.shuffle_task_bytes, produced.size_bytes / tasks)
    shares: list[Share] = []
    decisions = []
    for task in range(tasks):
        partitions = assign_partitions(produced.output.partitions, task, tasks)
        weights = produced.by_producer(partitions)
        size_bytes = sum(weights)
        pieces = min(-int(-size_bytes // fair), sum(weight > 0 for weight in weights))
        if size_bytes <= limits.skew_ratio * fair or pieces < 2:
            shares.append(Share(partitions))
            continue
        shares += [Share(partitions, producers) for producers in split_into_runs(weights, pieces)]
        decisions.append(
            f"{size_bytes:,} of {produced.size_bytes:,} bytes of stage {number} are in "
            f"{_describe_partitions(partitions)}: read in {pieces} slices"
        )
    if not decisions:
        return None
    layout = Layout(len(shares), stage.whole, number, tuple(shares))
    return Resized(_with_probe(stage, number, len(shares)), layout, tuple(decisions))


def _with_probe(stage: Stage, probe: int, tasks: int) -> Stage:
    return replace(stage, plan=with_build_sides(stage.plan, probe), tasks=tasks)


def _describe_partitions(partitions: range) -> str:
    first, last = partitions[0], partitions[-1]
    return f"partition {first}" if first == last else f"partitions {first} to {last}"
