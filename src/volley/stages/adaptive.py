# SPDX-License-Identifier: Apache-2.0
"""Adaptive planning: replans stages that have not started, from the sizes of finished ones.

A query starts with a plan for every stage. Whenever a stage finishes, `adapt` takes each stage whose inputs are all
finished and settles how it runs:

    absorbed          its reader does its work, because the other side of the reader's join proved small
    filtered          rows without a match in a small finished stage are dropped before the exchange
    resized           partitions are merged, a skewed one is sliced, a small side is read whole
    chained           it has one task, which continues with the work of its reader

Everything here is plain data: nothing runs, and the same plan and sizes always give the same decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from volley.lru_cache import LruCache
from volley.plan.nodes import MaterializedInput, Node
from volley.stages.absorb import absorb, chain, describe_small
from volley.stages.graph import Answered, Stage, StageGraph
from volley.stages.layout import Layout
from volley.stages.limits import PlannerLimits
from volley.stages.partition_pruning import prune_partitions
from volley.stages.resize import Produced, resize
from volley.stages.runtime_filters import Finished, apply_runtime_filter, limit_bytes
from volley.stages.selectivity import may_shrink
from volley.stages.subqueries import to_bytes, with_results

Sizes = Mapping[int, Produced]
"""The output of each finished stage."""


@dataclass(frozen=True)
class AdaptivePlan:
    """The stages of a running query, as currently planned.

    Stages in `layouts` are settled: they may run, and their plans no longer change. `absorbed` maps a stage to the
    stage that does its work. A stage in `deferred` waits for stages that it does not read.
    """

    stages: tuple[Stage, ...]
    deferred: Mapping[int, frozenset[int]] = field(default_factory=dict)
    layouts: Mapping[int, Layout] = field(default_factory=dict)
    absorbed: Mapping[int, int] = field(default_factory=dict)
    answered: LruCache[tuple[int, int, bytes], Answered] = field(
        default_factory=lambda: LruCache(1), compare=False, repr=False
    )

    @classmethod
    def start(cls, graph: StageGraph, deferred: Mapping[int, frozenset[int]]) -> AdaptivePlan:
        return cls(graph.stages, deferred, answered=graph.answered)

    def __getitem__(self, number: int) -> Stage:
        return self.stages[number]

    def only_reader(self, number: int) -> Stage | None:
        """The reader of this stage; None unless there is exactly one."""
        readers = [
            stage
            for stage in self.stages
            if stage.id not in self.absorbed and any(node.stage == number for node in stage.inputs)
        ]
        return readers[0] if len(readers) == 1 else None

    def upstream(self, number: int) -> frozenset[int]:
        """All stages whose rows reach this one, excluding itself."""
        found: set[int] = set()
        ahead = [number]
        while ahead:
            new = {node.stage for node in self[ahead.pop()].inputs} - found
            found |= new
            ahead += new
        return frozenset(found)

    def with_stages(self, *stages: Stage) -> AdaptivePlan:
        changed = list(self.stages)
        for stage in stages:
            changed[stage.id] = stage
        return replace(self, stages=tuple(changed))


def adapt(plan: AdaptivePlan, finished: Sizes, limits: PlannerLimits) -> AdaptivePlan:
    """Settle every stage whose inputs are `finished`."""
    while (stage := _next_ready(plan, finished)) is not None:
        plan = _settle(plan, stage, finished, limits)
    return plan


def _next_ready(plan: AdaptivePlan, finished: Sizes) -> Stage | None:
    stage = next(_ready_stages(plan, finished), None)
    if stage is None and plan.layouts.keys() <= finished.keys():
        # Nothing runs that a deferred stage could wait for. Ending a deferral only costs time, never rows.
        return next(_ready_stages(replace(plan, deferred={}), finished), None)
    return stage


def answer(plan: AdaptivePlan, subquery: int, result: pa.Table) -> AdaptivePlan:
    """Insert the result of a subquery into the plans that use it. Raises DataError if it is not a valid value."""

    # Bytes, because equal values may not be the same: 0.0 and -0.0.
    text = to_bytes(result)

    def insert(stage: Stage) -> Stage:
        key = (id(stage), subquery, text)
        if (found := plan.answered.get(key)) is None:
            pruned = prune_partitions(stage.plan, {subquery: result})
            decisions = (*stage.decisions, *pruned.decisions)
            new = replace(
                stage,
                plan=with_results(pruned.plan, {subquery: result}),
                decisions=decisions,
                pruned_files=stage.pruned_files + pruned.files,
            )
            plan.answered.put(key, found := (stage, new))
        return found[1]

    return plan.with_stages(*(insert(stage) for stage in plan.stages if subquery in stage.subqueries))


def _ready_stages(plan: AdaptivePlan, finished: Sizes) -> Iterator[Stage]:
    for stage in plan.stages:
        if stage.id in plan.layouts or stage.id in plan.absorbed:
            continue
        over = finished.keys() | plan.absorbed.keys()
        inputs = {node.stage for node in stage.inputs}
        waits = plan.deferred.get(stage.id, frozenset())
        if inputs <= finished.keys() and waits <= over and not stage.subqueries:
            yield stage


def _settle(plan: AdaptivePlan, stage: Stage, finished: Sizes, limits: PlannerLimits) -> AdaptivePlan:
    if isinstance(stage.plan, MaterializedInput):
        return _with_layout(plan, stage, Layout(stage.tasks, stage.whole))
    reader = plan.only_reader(stage.id)
    if reader is not None:
        merged = _absorb(plan, stage, reader, finished, limits)
        if merged is not None:
            return merged
        stage = _filter(plan, stage, reader, finished, limits)
    resized = resize(stage, {node.stage: finished[node.stage] for node in stage.inputs}, limits)
    stage = replace(resized.stage, decisions=(*stage.decisions, *resized.decisions))
    if reader is not None:
        merged = _chain(plan, stage, reader, finished, limits)
        if merged is not None:
            return merged
    return _with_layout(plan, stage, resized.layout)


def _with_layout(plan: AdaptivePlan, stage: Stage, layout: Layout) -> AdaptivePlan:
    return replace(plan.with_stages(stage), layouts={**plan.layouts, stage.id: layout})


def _absorb(
    plan: AdaptivePlan, stage: Stage, reader: Stage, finished: Sizes, limits: PlannerLimits
) -> AdaptivePlan | None:
    """The plan with `stage` merged into its reader; None if its output must be exchanged."""
    read = {node.stage for node in reader.inputs}
    outputs = {number: output for number in read if (output := plan[number].output)}
    sizes = {number: finished[number].size_bytes for number in read & finished.keys() - {stage.id}}
    merged = absorb(reader, stage, outputs, sizes, limits)
    if merged is None:
        return None
    small = {number: sizes[number] for number in merged.whole & sizes.keys()}
    decision = (
        f"{describe_small(small)}: every task reads it whole and does the work of stage {stage.id} "
        "itself, without an exchange"
    )
    return _merge(plan, stage, merged, decision)


def _chain(
    plan: AdaptivePlan, stage: Stage, reader: Stage, finished: Sizes, limits: PlannerLimits
) -> AdaptivePlan | None:
    """The plan in which the single task of `stage` continues with its reader; None if that is not worth it."""
    others = {node.stage for node in reader.inputs} - {stage.id}
    if not others <= finished.keys():
        return None
    merged = chain(reader, stage, sum(finished[number].size_bytes for number in others), limits)
    if merged is None:
        return None
    decision = f"the only task of stage {stage.id} continues with this stage"
    return _merge(plan, stage, merged, decision)


def _merge(plan: AdaptivePlan, stage: Stage, reader: Stage, decision: str) -> AdaptivePlan:
    """Let `reader` do the work of `stage` too."""
    reader = replace(reader, decisions=(*reader.decisions, *stage.decisions, decision))
    return replace(plan.with_stages(reader), absorbed={**plan.absorbed, stage.id: reader.id})


def _filter(plan: AdaptivePlan, stage: Stage, reader: Stage, finished: Sizes, limits: PlannerLimits) -> Stage:
    """The stage without rows that its readers do not need, if finished stages can tell which."""
    near = {node.stage for node in reader.inputs} & finished.keys()
    found = apply_runtime_filter(stage, reader, _measure(plan, near, finished), limits)
    if found is None:
        top = _last_reader(plan, reader)
        upstream = plan.upstream(top.id)
        limit = limit_bytes(stage, limits)

        def plan_of(number: int) -> Node | None:
            """The plan of a stage below `top`; None for one that is finished and small."""
            is_small = number in finished and finished[number].size_bytes <= limit
            work = plan[number].plan
            return None if is_small or isinstance(work, MaterializedInput) else work

        found = apply_runtime_filter(
            stage, top, _measure(plan, upstream & finished.keys(), finished), limits, plan_of
        )
    if found is None:
        return stage
    filtered, sources = found
    small = describe_small({number: finished[number].size_bytes for number in sources})
    decision = f"{small}: only rows with a match there are exchanged"
    return replace(filtered, decisions=(*stage.decisions, decision))


def _last_reader(plan: AdaptivePlan, stage: Stage) -> Stage:
    """Follow the chain of only readers to its end."""
    while (reader := plan.only_reader(stage.id)) is not None:
        stage = reader
    return stage


def _measure(plan: AdaptivePlan, numbers: frozenset[int] | set[int], finished: Sizes) -> dict[int, Finished]:
    return {
        number: Finished(finished[number].size_bytes, _may_have_shrunk(plan, number)) for number in numbers
    }


def _may_have_shrunk(plan: AdaptivePlan, number: int) -> bool:
    return any(may_shrink(plan[stage].plan) for stage in {number, *plan.upstream(number)})
