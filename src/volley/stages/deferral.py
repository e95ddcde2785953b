# SPDX-License-Identifier: Apache-2.0
"""Which stages should not start at once, because another stage may make their exchange unnecessary.

Both sides of a shuffle join could run at the same time. But if one side proves small before the other has started, the
other need not be exchanged at all (`absorb`), or only in part (`runtime_filters`). So a stage waits for the other side
of its join if that side scans less and may keep few of its rows. Meanwhile the other side keeps the workers busy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from volley.identity_cache import once_per_object
from volley.plan.nodes import Node, Partitioning
from volley.stages.graph import Stage, StageGraph
from volley.stages.limits import PlannerLimits
from volley.stages.probe_side import partitioned_inputs, probe_inputs
from volley.stages.runtime_filters import FilterSource, filter_sources
from volley.stages.scans import scanned_bytes, scans_of
from volley.stages.selectivity import count_conditions, drops_rows, may_shrink

_Candidate = tuple[int, frozenset[int]]
"""A stage, and the stages that must prove small to save it work."""


@once_per_object
def defer(graph: StageGraph, limits: PlannerLimits) -> dict[int, frozenset[int]]:
    """For each stage that should wait, the stages to wait for. There are no cycles."""
    if len(graph.stages) == 1:
        return {}
    deferral = _Deferral(graph, limits)
    deferral.accept(candidate for reader in graph.stages for candidate in deferral.near(reader))
    far = list(deferral.far())
    if far:
        deferral.accept(far)
        # Deferred stages will have fewer rows, and may prove small in turn.
        deferral.accept(candidate for reader in graph.stages for candidate in deferral.near(reader))
    return deferral.deferred


class _Deferral:
    def __init__(self, graph: StageGraph, limits: PlannerLimits) -> None:
        self.deferred: dict[int, frozenset[int]] = {}
        self._graph = graph
        self._limits = limits
        self._inputs = {stage.id: frozenset(node.stage for node in stage.inputs) for stage in graph.stages}
        self._asks = {stage.id: stage.subqueries for stage in graph.stages}
        self._readers = Counter(number for inputs in self._inputs.values() for number in inputs)
        self._scanned = {stage.id: scanned_bytes(stage.plan) for stage in graph.stages}
        self._conditions = {stage.id: count_conditions(stage.plan) for stage in graph.stages}
        self._may_shrink = {stage.id: may_shrink(stage.plan) for stage in graph.stages}

    def accept(self, candidates: Iterable[_Candidate]) -> None:
        """Defer candidates, cheapest wait first. Of two that could wait for each other, one does."""
        wanted = [(number, others) for number, others in candidates if self._readers[number] == 1 and others]
        for number, others in sorted(wanted, key=lambda item: (self._expected_bytes(item[1]), item[0])):
            is_before = number in self._before(others, self._waits())
            scanned = self._scanned_upstream(frozenset({number}))
            is_worth_it = 0 < scanned >= self._scanned_upstream(others) // self._limits.deferral_ratio
            if number not in self.deferred and not is_before and is_worth_it:
                self.deferred[number] = others

    def _waits(self) -> dict[int, frozenset[int]]:
        """What stages wait for besides their inputs: deferrals accepted so far, and their subqueries."""
        return {number: asks | self.deferred.get(number, frozenset()) for number, asks in self._asks.items()}

    def near(self, reader: Stage) -> Iterator[_Candidate]:
        """Inputs of a stage that could wait for its other inputs."""
        outputs = {stage.id: stage.output for stage in self._graph.stages if stage.output is not None}
        divided = partitioned_inputs(reader, outputs)
        for number in divided & probe_inputs(reader, outputs):
            others = divided - {number}
            if all(map(self._may_prove_small, others)):
                yield number, others
        for number in divided:
            for partner in filter_sources(reader, number):
                if self._may_help(partner):
                    yield number, partner.inputs

    def far(self) -> Iterator[_Candidate]:
        """Stages that could wait for a broadcast stage that they are joined to further up. Other stages are unlikely to
        be small."""
        sent = {stage.id for stage in self._graph.stages if _is_sent_to_all(stage)}
        sent = set(filter(self._may_prove_small, sent))

        def plan_of(number: int) -> Node | None:
            return None if number in sent else self._graph[number].plan

        for stage in self._graph.stages if sent else ():
            if stage.id not in sent | self.deferred.keys() and scans_of(stage.plan):
                for partner in filter_sources(self._graph.result, stage.id, plan_of):
                    if partner.inputs <= sent - self._inputs[stage.id] and self._may_help(partner):
                        yield stage.id, partner.inputs

    def _may_help(self, partner: FilterSource) -> bool:
        return drops_rows(partner.plan) or any(map(self._may_prove_small, partner.inputs))

    def _may_prove_small(self, number: int) -> bool:
        before = self._before(frozenset({number}), {})
        return any(self._may_shrink[stage] or stage in self.deferred for stage in before)

    def _expected_bytes(self, stages: frozenset[int]) -> float:
        """An estimate of what remains of their scans: every condition may drop most rows."""
        found = sum(self._conditions[stage] for stage in self._before(stages, {}))
        return float(self._scanned_upstream(stages) / 4**found)

    def _scanned_upstream(self, stages: frozenset[int]) -> int:
        return sum(self._scanned[stage] for stage in self._before(stages, {}))

    def _before(self, stages: frozenset[int], waits: dict[int, frozenset[int]]) -> frozenset[int]:
        """The stages and everything that must finish before they can."""
        found: set[int] = set()
        ahead = set(stages)
        while ahead:
            stage = ahead.pop()
            found.add(stage)
            ahead |= (self._inputs[stage] | waits.get(stage, frozenset())) - found
        return frozenset(found)


def _is_sent_to_all(stage: Stage) -> bool:
    return stage.output is not None and stage.output.partitioning is Partitioning.BROADCAST
