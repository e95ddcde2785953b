# SPDX-License-Identifier: Apache-2.0
"""Merges a stage into its reader, so that its rows are not exchanged.

absorb    one side of a join proved small: every task reads that side whole and computes its share of the other
chain     a stage with a single task continues with the work of its reader, if that reads little else
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
    """`reader` merged with `probe`, which has not started; None if that is not allowed or not worth it.

    The result reads its other inputs whole, so these must be small. `sizes` are the bytes of the finished inputs,
    `outputs` the outputs of all inputs. `reader` must be the only reader of `probe`.
    """
    others = partitioned_inputs(reader, outputs) - {probe.id}
    if probe.id not in probe_inputs(reader, outputs) or not others or not others <= sizes.keys():
        return None
    small = sum(sizes[number] for number in others)
    if not within(small, limits.broadcast_bytes) or probe.tasks < reader.tasks:
        return None
    # An input of both would have to be read in two ways.
    if {node.stage for node in reader.inputs} & {node.stage for node in probe.inputs}:
        return None

    held = replace(reader, plan=with_build_sides(reader.plan, probe.id), whole=reader.whole | others)
    return _merge_into(held, probe)


def chain(reader: Stage, producer: Stage, other_bytes: int, limits: PlannerLimits) -> Stage | None:
    """`reader` as one task that does the work of `producer` first; None if several tasks would be faster.

    `producer` has not started and has no other reader. All other inputs of `reader` are finished; they have
    `other_bytes`.
    """
    if producer.tasks > 1 or scans_of(reader.plan) or isinstance(reader.plan, WriteFiles):
        return None
    if not within(other_bytes + scanned_bytes(producer.plan), limits.continued_stage_bytes):
        return None
    return _merge_into(reader, producer)


def _merge_into(reader: Stage, producer: Stage) -> Stage:
    def inline(node: Node) -> Node:
        if isinstance(node, StageInput) and node.stage == producer.id:
            return _rename_output(producer.plan, node)
        return node

    plan = transform(reader.plan, inline)
    return replace(reader, plan=plan, tasks=producer.tasks, whole=reader.whole | producer.whole)


def _rename_output(plan: Node, node: StageInput) -> Node:
    """The plan with the column ids of its reader, which may differ: a stage can have several readers."""
    pairs = list(zip(node.output, plan.output, strict=True))
    if all(new.id == old.id for new, old in pairs):
        return plan
    return Project(tuple(Alias(new.id, new.name, old) for new, old in pairs), plan)


def describe_small(sizes: Mapping[int, int]) -> str:
    """Describe the inputs that proved small, for the report. No sizes: small files that every task reads itself."""
    if not sizes:
        return "small files decide which rows are needed"
    stages = " and ".join(f"stage {number}" for number in sorted(sizes))
    return f"{stages} proved small ({sum(sizes.values()):,} bytes)"
