# SPDX-License-Identifier: Apache-2.0
"""What the real sizes of finished stages change about the next one.

A stage is planned for all workers before anybody knows how much it will read. When its producers are done,

    partitions are merged        until a task has something to do: it costs a message, a plan and a hash table each,
                                 which for a few kilobytes is more than the work itself
    a partition is sliced        when it is far larger than the others, and the operators allow it
    a join becomes a broadcast   when one side proved small: every task reads it whole, and the rows of the other side
                                 stay where they are, in their stage's outputs or, if it has not begun, in its tasks
    a task goes on               with the work of its stage's reader, when it is the only one and that reads little else

Every decision is also said in words, for the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from volley.plan.nodes import Node, StageInput, WriteFiles, transform
from volley.stages.graph import Output, Stage
from volley.stages.layout import Layout, Share, dealt, runs
from volley.stages.limits import PlannerLimits, within
from volley.stages.probe_side import partitioned_inputs, probe_inputs, with_build_sides
from volley.stages.scans import scanned_bytes, scans_of


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
class Adapted:
    stage: Stage
    layout: Layout
    decisions: tuple[str, ...] = ()


def adapted(stage: Stage, inputs: Mapping[int, Produced], limits: PlannerLimits) -> Adapted:
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
    return Adapted(replace(stage, tasks=tasks), Layout(tasks, stage.whole))


def absorbed(
    reader: Stage,
    streamed: Stage,
    outputs: Mapping[int, Output],
    sizes: Mapping[int, int],
    limits: PlannerLimits,
) -> Stage | None:
    """`reader` with all of `streamed`, which has not begun, in it; None where that is not allowed or not worth it.

    It then reads its other inputs whole, so these must have proved small: `sizes` are the bytes of those that are
    finished, `outputs` the outputs of all that it reads. Nobody else may read `streamed`.
    """
    others = partitioned_inputs(reader, outputs) - {streamed.id}
    if streamed.id not in probe_inputs(reader, outputs) or not others or not others <= sizes.keys():
        return None
    small = sum(sizes[number] for number in others)
    if not within(small, limits.broadcast_bytes) or streamed.tasks < reader.tasks:
        return None
    # What both read would have to be read in two ways.
    if {node.stage for node in reader.inputs} & {node.stage for node in streamed.inputs}:
        return None

    held = replace(reader, plan=with_build_sides(reader.plan, streamed.id), whole=reader.whole | others)
    return _with_work_of(streamed, held)


def continued(reader: Stage, producer: Stage, other_bytes: int, limits: PlannerLimits) -> Stage | None:
    """`reader` as one task that does the work of `producer` first; None where several would be quicker.

    `producer` has not begun and nobody else reads it; all else that `reader` reads is finished, and has `other_bytes`.
    """
    if producer.tasks > 1 or scans_of(reader.plan) or isinstance(reader.plan, WriteFiles):
        return None
    if not within(other_bytes + scanned_bytes(producer.plan), limits.continued_stage_bytes):
        return None
    return _with_work_of(producer, reader)


def _with_work_of(producer: Stage, reader: Stage) -> Stage:
    def put_in(node: Node) -> Node:
        return producer.plan if isinstance(node, StageInput) and node.stage == producer.id else node

    plan = transform(reader.plan, put_in)
    return replace(reader, plan=plan, tasks=producer.tasks, whole=reader.whole | producer.whole)


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
) -> Adapted | None:
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
        f"{small_inputs(others)}: every task reads it whole, and stage {number} where it lies "
        f"instead of by partition"
    )
    return Adapted(_over(stage, number, tasks), layout, (said,))


def _sliced(
    stage: Stage, number: int, produced: Produced, tasks: int, limits: PlannerLimits
) -> Adapted | None:
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
    return Adapted(_over(stage, number, len(shares)), layout, tuple(decisions))


def _over(stage: Stage, streamed: int, tasks: int) -> Stage:
    return replace(stage, plan=with_build_sides(stage.plan, streamed), tasks=tasks)


def small_inputs(sizes: Mapping[int, int]) -> str:
    """For the report: the inputs that proved small; files that every task reads itself are small from the start."""
    if not sizes:
        return "small files tell which rows are wanted"
    stages = " and ".join(f"stage {number}" for number in sorted(sizes))
    return f"{stages} proved small ({sum(sizes.values()):,} bytes)"


def _named(partitions: range) -> str:
    first, last = partitions[0], partitions[-1]
    return f"partition {first}" if first == last else f"partitions {first} to {last}"
