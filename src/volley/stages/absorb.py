# SPDX-License-Identifier: Apache-2.0
"""Stages that do the work of another one that they read, so that its rows are not exchanged.

absorb    a join whose one side proved small: every task reads that side whole and computes its share of the other
chain     a stage with a single task goes on with the work of its reader, when that reads little else
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from volley.plan.expressions import Alias
from volley.plan.nodes import Node, Project, StageInput, WriteFiles, transform
from volley.stages.graph import Output, Stage
from volley.stages.limits import PlannerLimits, within
from volley.stages.probe_side import partitioned_inputs, probe_inputs, with_build_sides
from volley.stages.scans import scanned_bytes, scans_of


def absorb(
    reader: Stage,
    probe: Stage,
    outputs: Mapping[int, Output],
    sizes: Mapping[int, int],
    limits: PlannerLimits,
) -> Stage | None:
    """`reader` with the work of `probe`, which has not begun, in it; None if that is not allowed or not worth it.

    It then reads its other inputs whole, so these must have proved small: `sizes` are the bytes of those that are
    finished, `outputs` the outputs of all that it reads. Nobody else may read `probe`.
    """
    others = partitioned_inputs(reader, outputs) - {probe.id}
    if probe.id not in probe_inputs(reader, outputs) or not others or not others <= sizes.keys():
        return None
    small = sum(sizes[number] for number in others)
    if not within(small, limits.broadcast_bytes) or probe.tasks < reader.tasks:
        return None
    # What both read would have to be read in two ways.
    if {node.stage for node in reader.inputs} & {node.stage for node in probe.inputs}:
        return None

    held = replace(reader, plan=with_build_sides(reader.plan, probe.id), whole=reader.whole | others)
    return _with_work_of(probe, held)


def chain(reader: Stage, producer: Stage, other_bytes: int, limits: PlannerLimits) -> Stage | None:
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
        if isinstance(node, StageInput) and node.stage == producer.id:
            return _read_as(node, producer.plan)
        return node

    plan = transform(reader.plan, put_in)
    return replace(reader, plan=plan, tasks=producer.tasks, whole=reader.whole | producer.whole)


def _read_as(node: StageInput, plan: Node) -> Node:
    """The plan under the ids that its reader knows the columns by: merged stages have several readers."""
    pairs = list(zip(node.output, plan.output, strict=True))
    if all(new.id == old.id for new, old in pairs):
        return plan
    return Project(tuple(Alias(new.id, new.name, old) for new, old in pairs), plan)


def describe_small(sizes: Mapping[int, int]) -> str:
    """For the report: the inputs that proved small; files that every task reads itself are small from the start."""
    if not sizes:
        return "small files tell which rows are wanted"
    stages = " and ".join(f"stage {number}" for number in sorted(sizes))
    return f"{stages} proved small ({sum(sizes.values()):,} bytes)"
