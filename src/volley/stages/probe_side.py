# SPDX-License-Identifier: Apache-2.0
"""Which input of a stage may be dealt to its tasks at will.

Rows with equal keys meet in one task because partitions of all inputs are dealt alike. For one input that may be
given up: when nothing above it needs equal keys together but joins, and when each task sees all that its rows could be
joined to. Then a partition of that input can be shared by several tasks that each read the other side's partition
whole, or its rows can stay where they are while every task reads the other side whole.

    Join  left outer          dealt at will: 0         (1 would give its unmatched rows once a task: never)
      StageInput 0
      StageInput 1            read whole by each task that has some of 0
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
    """The inputs of which each task takes a share."""
    inputs = {node.stage for node in stage.inputs} - stage.whole
    return frozenset(number for number in inputs if outputs[number].partitioning in _DIVIDED)


def probe_inputs(stage: Stage, outputs: Mapping[int, Output]) -> frozenset[int]:
    """The inputs of which any one may be dealt at will, if the other divided ones are read whole where it is.

    `outputs` are those of the stages that it reads.
    """
    divided = partitioned_inputs(stage, outputs)
    # A stage of one task may rely on seeing everything, in ways that a share of the rows would not show.
    if stage.tasks == 1 or scans_of(stage.plan):
        return frozenset()
    if len({outputs[number].partitions for number in divided}) != 1:
        return frozenset()
    if any(outputs[node.stage].partitioning is Partitioning.SINGLE for node in stage.inputs):
        return frozenset()
    read = Counter(node.stage for node in stage.inputs)
    return frozenset(number for number in _streamed(stage.plan) & divided if read[number] == 1)


def _streamed(node: Node) -> frozenset[int]:
    match node:
        case StageInput():
            return frozenset({node.stage})
        case _:
            # Several tasks compute the other children: they must not come to different rows.
            found = (
                _streamed(child)
                for place, child in enumerate(node.children)
                if place in traits_of(node).divisible
                and all(gives_same_rows(other) for other in node.children if other is not child)
            )
            return frozenset[int]().union(*found)


def with_build_sides(plan: Node, streamed: int) -> Node:
    """The plan, with joins on the way to input `streamed` told to hold the other side in memory."""
    if not isinstance(plan, Join):
        return with_children(plan, tuple(with_build_sides(child, streamed) for child in plan.children))
    on_left = any(isinstance(node, StageInput) and node.stage == streamed for node in walk(plan.left))
    on_right = any(isinstance(node, StageInput) and node.stage == streamed for node in walk(plan.right))
    if not (on_left or on_right):
        return plan
    left, right = (with_build_sides(child, streamed) for child in plan.children)
    side = BuildSide.RIGHT if on_left else BuildSide.LEFT
    return replace(plan, left=left, right=right, build=side)
