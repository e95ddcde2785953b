# SPDX-License-Identifier: Apache-2.0
"""Which input of a stage can be the probe side: its rows may be divided over tasks in any way.

Rows with equal keys meet in one task because the partitions of all inputs are assigned alike. One input may be exempt,
if only joins above it need equal keys together and each task sees all rows that its own could be joined to. Several
tasks can then share a partition of that input while each reads the other side's partition whole, or its rows can stay
in place while every task reads the other side whole.

    Join  left outer          probe side: 0         (not 1: every task would output its unmatched rows)
      StageInput 0
      StageInput 1            read whole by each task that has rows of 0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from volley.plan.nodes import BuildSide, Join, Node, Partitioning, StageInput, walk, with_children
from volley.plan.traits import traits_of
from volley.stages.graph import Output, Stage
from volley.stages.repeatable import gives_same_rows
from volley.stages.scans import scans_of

_DIVIDED = (Partitioning.HASH, Partitioning.ROUND_ROBIN)


def partitioned_inputs(stage: Stage, outputs: Mapping[int, Output]) -> frozenset[int]:
    """The inputs of which each task reads a share."""
    inputs = {node.stage for node in stage.inputs} - stage.whole
    return frozenset(number for number in inputs if outputs[number].partitioning in _DIVIDED)


def probe_inputs(stage: Stage, outputs: Mapping[int, Output]) -> frozenset[int]:
    """The inputs of which any one can be the probe side, if its tasks read the other partitioned inputs whole.

    `outputs` are those of the stages that it reads.
    """
    divided = partitioned_inputs(stage, outputs)
    # A stage of one task may rely on seeing all rows.
    if stage.tasks == 1 or scans_of(stage.plan):
        return frozenset()
    if len({outputs[number].partitions for number in divided}) != 1:
        return frozenset()
    if any(outputs[node.stage].partitioning is Partitioning.SINGLE for node in stage.inputs):
        return frozenset()
    read = Counter(node.stage for node in stage.inputs)
    return frozenset(number for number in _probe_candidates(stage.plan) & divided if read[number] == 1)


def _probe_candidates(node: Node) -> frozenset[int]:
    match node:
        case StageInput():
            return frozenset({node.stage})
        case _:
            # Several tasks compute the other children, and must get the same rows.
            found = (
                _probe_candidates(child)
                for place, child in enumerate(node.children)
                if place in traits_of(node).divisible
                and all(gives_same_rows(other) for other in node.children if other is not child)
            )
            return frozenset[int]().union(*found)


def with_build_sides(plan: Node, probe: int) -> Node:
    """The plan in which joins on the path to input `probe` build the other side in memory."""
    if not isinstance(plan, Join):
        return with_children(plan, tuple(with_build_sides(child, probe) for child in plan.children))
    on_left = any(isinstance(node, StageInput) and node.stage == probe for node in walk(plan.left))
    on_right = any(isinstance(node, StageInput) and node.stage == probe for node in walk(plan.right))
    if not (on_left or on_right):
        return plan
    left, right = (with_build_sides(child, probe) for child in plan.children)
    side = BuildSide.RIGHT if on_left else BuildSide.LEFT
    return replace(plan, left=left, right=right, build=side)
