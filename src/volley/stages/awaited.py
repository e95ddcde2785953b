"""Which stages had better not begin at once, because another may make their exchange needless.

Both sides of a shuffle join could run at the same time. But when the side with little to scan has proved small, the
other side need not be exchanged at all (`adapt.absorbed`), if it has not begun. So a stage with much to scan waits for
the other side of its join, which keeps the workers busy meanwhile, where that may have few rows left of what it scans.
"""

from __future__ import annotations

from collections import Counter

from volley.plan.nodes import Aggregate, FileScan, Filter, Join, Limit, SourceScan, TopN, walk
from volley.stages.graph import Stage, StageGraph
from volley.stages.scans import scans_of
from volley.stages.streamed import divided_inputs, streamed_inputs

# How much more a stage must scan than those that it waits for.
SCAN_RATIO = 2
_UNKNOWN_BYTES = 2**50


def awaited(graph: StageGraph) -> dict[int, frozenset[int]]:
    """For each stage that should wait, the stages to wait for. They never wait for it in turn."""
    outputs = {stage.id: stage.output for stage in graph.stages if stage.output is not None}
    read = Counter(number for stage in graph.stages for number in {node.stage for node in stage.inputs})
    found: dict[int, frozenset[int]] = {}
    for reader in graph.stages:
        divided = divided_inputs(reader, outputs)
        for number in streamed_inputs(reader, outputs):
            others = divided - {number}
            if others and read[number] == 1 and _is_worth_it(graph, number, others):
                found[number] = others
    return found


def _is_worth_it(graph: StageGraph, number: int, others: frozenset[int]) -> bool:
    if not all(_may_shrink(stage) for other in others for stage in [graph[other]]):
        return False
    before = frozenset().union(*(_upstream(graph, other) for other in others))
    light = sum(_scanned_bytes(graph[stage]) for stage in before)
    heavy = sum(_scanned_bytes(graph[stage]) for stage in _upstream(graph, number))
    return light * SCAN_RATIO <= heavy


def _may_shrink(stage: Stage) -> bool:
    return any(isinstance(node, Filter | Join | Aggregate | Limit | TopN) for node in walk(stage.plan))


def _upstream(graph: StageGraph, number: int) -> frozenset[int]:
    """The stage and all that it reads, directly or not."""
    found = {number}
    for node in graph[number].inputs:
        found |= _upstream(graph, node.stage)
    return frozenset(found)


def _scanned_bytes(stage: Stage) -> int:
    """What a source will find is not known, so nobody waits for it."""
    scans = scans_of(stage.plan)
    if any(isinstance(scan, SourceScan) for scan in scans):
        return _UNKNOWN_BYTES
    return sum(file.size_bytes for scan in scans if isinstance(scan, FileScan) for file in scan.files)
