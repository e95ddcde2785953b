"""Which stages had better not begin at once, because another may make their exchange needless.

Both sides of a shuffle join could run at the same time. But when the side with little to scan has proved small, the
other side need not be exchanged at all (`adapt.absorbed`), or only in part (`reduced`), if it has not begun. So a stage
waits for the other side of its join, which keeps the workers busy meanwhile, where that may have few rows left of what
it scans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from volley.stages.graph import Stage, StageGraph
from volley.stages.reduced import partners
from volley.stages.scans import scanned_bytes
from volley.stages.shrinking import conditions, may_shrink
from volley.stages.streamed import divided_inputs, streamed_inputs

# A stage that has far less to scan than the others is done before they are, and saves little.
SCAN_RATIO = 8


def awaited(graph: StageGraph) -> dict[int, frozenset[int]]:
    """For each stage that should wait, the stages to wait for. They never wait for it in turn."""
    read = Counter(number for stage in graph.stages for number in {node.stage for node in stage.inputs})
    scanned = {stage.id: _scanned_upstream(graph, frozenset({stage.id})) for stage in graph.stages}
    wishes = [
        (_expected_bytes(graph, others), number, others)
        for reader in graph.stages
        for number, others in _wishes(graph, reader)
        if read[number] == 1 and others
    ]
    found: dict[int, frozenset[int]] = {}
    # Those that wait for the least come first; of two that could wait for each other, only one does.
    for _, number, others in sorted(wishes, key=lambda wish: wish[:2]):
        is_before = number in _before(graph, others, found)
        is_worth_it = 0 < scanned[number] >= _scanned_upstream(graph, others) // SCAN_RATIO
        if number not in found and not is_before and is_worth_it:
            found[number] = others
    return found


def _expected_bytes(graph: StageGraph, stages: frozenset[int]) -> float:
    """How much is left of what they scan can only be guessed; every condition may leave little."""
    found = sum(conditions(graph[stage].plan) for stage in _before(graph, stages, {}))
    return float(_scanned_upstream(graph, stages) / 4**found)


def _wishes(graph: StageGraph, reader: Stage) -> Iterator[tuple[int, frozenset[int]]]:
    """Inputs of a stage that could do with less, and what would have to prove small for that."""
    outputs = {stage.id: stage.output for stage in graph.stages if stage.output is not None}
    divided = divided_inputs(reader, outputs)
    for number in divided & streamed_inputs(reader, outputs):
        others = divided - {number}
        if all(_may_shrink(graph, other) for other in others):
            yield number, others
    for number in divided:
        for partner in partners(reader, number):
            if may_shrink(partner.plan) or any(_may_shrink(graph, other) for other in partner.inputs):
                yield number, partner.inputs


def _may_shrink(graph: StageGraph, number: int) -> bool:
    return any(may_shrink(graph[stage].plan) for stage in _before(graph, frozenset({number}), {}))


def _scanned_upstream(graph: StageGraph, stages: frozenset[int]) -> int:
    return sum(scanned_bytes(graph[stage].plan) for stage in _before(graph, stages, {}))


def _before(graph: StageGraph, stages: frozenset[int], waits: dict[int, frozenset[int]]) -> frozenset[int]:
    """The stages and all that must be finished before they are."""
    found: set[int] = set()
    ahead = set(stages)
    while ahead:
        stage = ahead.pop()
        found.add(stage)
        ahead |= ({node.stage for node in graph[stage].inputs} | waits.get(stage, frozenset())) - found
    return frozenset(found)
