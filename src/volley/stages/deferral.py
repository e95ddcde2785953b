# SPDX-License-Identifier: Apache-2.0
"""Which stages had better not begin at once, because another may make their exchange needless.

Both sides of a shuffle join could run at the same time. But when the side with little to scan has proved small, the
other side need not be exchanged at all (`adapt.absorbed`), or only in part (`reduced`), if it has not begun. So a stage
waits for the other side of its join, which keeps the workers busy meanwhile, where that may have few rows left of what
it scans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from volley.plan.nodes import Node, Partitioning
from volley.stages.graph import Stage, StageGraph
from volley.stages.limits import PlannerLimits
from volley.stages.probe_side import partitioned_inputs, probe_inputs
from volley.stages.runtime_filters import FilterSource, partners
from volley.stages.scans import scanned_bytes, scans_of
from volley.stages.selectivity import conditions, leaves_out, may_shrink

_Wish = tuple[int, frozenset[int]]
"""A stage, and those that would have to prove small for it to have less to do."""


def awaited(graph: StageGraph, limits: PlannerLimits) -> dict[int, frozenset[int]]:
    """For each stage that should wait, the stages to wait for. They never wait for it in turn."""
    waits = _Waits(graph, limits)
    waits.grant(wish for reader in graph.stages for wish in waits.near(reader))
    far = list(waits.far())
    if far:
        waits.grant(far)
        # What waits will have fewer rows, and may prove small in turn.
        waits.grant(wish for reader in graph.stages for wish in waits.near(reader))
    return waits.granted


class _Waits:
    def __init__(self, graph: StageGraph, limits: PlannerLimits) -> None:
        self.granted: dict[int, frozenset[int]] = {}
        self._graph = graph
        self._limits = limits
        self._inputs = {stage.id: frozenset(node.stage for node in stage.inputs) for stage in graph.stages}
        self._readers = Counter(number for inputs in self._inputs.values() for number in inputs)
        self._scanned = {stage.id: scanned_bytes(stage.plan) for stage in graph.stages}
        self._conditions = {stage.id: conditions(stage.plan) for stage in graph.stages}
        self._may_shrink = {stage.id: may_shrink(stage.plan) for stage in graph.stages}

    def grant(self, wishes: Iterable[_Wish]) -> None:
        """Let stages wait, those first that wait for the least; of two that could wait for each other, one does."""
        wanted = [wish for wish in wishes if self._readers[wish[0]] == 1 and wish[1]]
        for number, others in sorted(wanted, key=lambda wish: (self._expected_bytes(wish[1]), wish[0])):
            is_before = number in self._before(others, self.granted)
            scanned = self._scanned_upstream(frozenset({number}))
            is_worth_it = 0 < scanned >= self._scanned_upstream(others) // self._limits.deferral_ratio
            if number not in self.granted and not is_before and is_worth_it:
                self.granted[number] = others

    def near(self, reader: Stage) -> Iterator[_Wish]:
        """Of inputs of a stage, for others of them."""
        outputs = {stage.id: stage.output for stage in self._graph.stages if stage.output is not None}
        divided = partitioned_inputs(reader, outputs)
        for number in divided & probe_inputs(reader, outputs):
            others = divided - {number}
            if all(map(self._may_prove_small, others)):
                yield number, others
        for number in divided:
            for partner in partners(reader, number):
                if self._may_help(partner):
                    yield number, partner.inputs

    def far(self) -> Iterator[_Wish]:
        """Of the others, for stages whose rows they meet further up. Only what all tasks read is likely to be small."""
        sent = {stage.id for stage in self._graph.stages if _is_sent_to_all(stage)}
        sent = set(filter(self._may_prove_small, sent))

        def plan_of(number: int) -> Node | None:
            return None if number in sent else self._graph[number].plan

        for stage in self._graph.stages if sent else ():
            if stage.id not in sent | self.granted.keys() and scans_of(stage.plan):
                for partner in partners(self._graph.result, stage.id, plan_of):
                    if partner.inputs <= sent - self._inputs[stage.id] and self._may_help(partner):
                        yield stage.id, partner.inputs

    def _may_help(self, partner: FilterSource) -> bool:
        return leaves_out(partner.plan) or any(map(self._may_prove_small, partner.inputs))

    def _may_prove_small(self, number: int) -> bool:
        before = self._before(frozenset({number}), {})
        return any(self._may_shrink[stage] or stage in self.granted for stage in before)

    def _expected_bytes(self, stages: frozenset[int]) -> float:
        """How much is left of what they scan can only be guessed; every condition may leave little."""
        found = sum(self._conditions[stage] for stage in self._before(stages, {}))
        return float(self._scanned_upstream(stages) / 4**found)

    def _scanned_upstream(self, stages: frozenset[int]) -> int:
        return sum(self._scanned[stage] for stage in self._before(stages, {}))

    def _before(self, stages: frozenset[int], waits: dict[int, frozenset[int]]) -> frozenset[int]:
        """The stages and all that must be finished before they are."""
        found: set[int] = set()
        ahead = set(stages)
        while ahead:
            stage = ahead.pop()
            found.add(stage)
            ahead |= (self._inputs[stage] | waits.get(stage, frozenset())) - found
        return frozenset(found)


def _is_sent_to_all(stage: Stage) -> bool:
    return stage.output is not None and stage.output.partitioning is Partitioning.BROADCAST
