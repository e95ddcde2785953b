# SPDX-License-Identifier: Apache-2.0
"""Adaptive planning as a pure pass: whichever stage finishes first, and however large it is, every stage runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from volley.plan.expressions import (
    AggregateCall,
    AggregateMode,
    Attribute,
    Call,
    Expression,
    Literal,
    ScalarSubquery,
)
from volley.plan.nodes import (
    Aggregate,
    DataFile,
    Exchange,
    FileScan,
    Filter,
    Join,
    JoinKind,
    MaterializedInput,
    Node,
    Partitioning,
    StageInput,
    walk,
)
from volley.plan.types import BOOLEAN, LONG
from volley.stages.adaptive import AdaptivePlan, adapt, answer
from volley.stages.cut import make_stages
from volley.stages.deferral import defer
from volley.stages.graph import Output, Stage, StageGraph
from volley.stages.resize import Produced
from volley.testing.limits import DISTRIBUTED

MIB = 2**20
LIMITS = replace(DISTRIBUTED, continued_stage_bytes=4 * MIB)
WORKERS = 3


def column(id: int) -> Attribute:
    return Attribute(id, f"c{id}", LONG)


def scan(key: Attribute, mebibytes: int) -> FileScan:
    files = tuple(DataFile(f"{key.name}-{number}", mebibytes * MIB // 4, 1) for number in range(4))
    return FileScan("parquet", files, (key,), (), ())


def some(key: Attribute, child: Node) -> Filter:
    return Filter(Call("LessThan", (key, Literal(3, LONG)), BOOLEAN), child)


def by(key: Attribute, child: Node) -> Exchange:
    return Exchange(Partitioning.HASH, WORKERS, (key,), (), child)


def joined(
    left: Attribute, right: Attribute, on_left: Node, on_right: Node, kind: JoinKind = JoinKind.INNER
) -> Join:
    return Join(kind, (left,), (right,), None, None, by(left, on_left), by(right, on_right))


A, B, C, D = map(column, (1, 2, 3, 4))
TOTAL = column(9)


def counted(key: Attribute, child: Node) -> Aggregate:
    call = AggregateCall(Call("Count", (key,), LONG), AggregateMode.COMPLETE, False, None, TOTAL.id)
    return Aggregate((key,), (call,), (TOTAL,), (key, TOTAL), by(key, child))


TWO = joined(A, B, scan(A, 400), some(B, scan(B, 40)))
PLANS = {
    "two sides": TWO,
    "three sides": joined(A, C, TWO, some(C, scan(C, 20))),
    "groups": counted(A, TWO),
    "bushy": joined(A, C, TWO, joined(C, D, some(C, scan(C, 90)), some(D, scan(D, 9)), JoinKind.SEMI)),
    "handed over": joined(A, B, MaterializedInput(0, 3, WORKERS, (A,)), some(B, scan(B, 40))),
}


@dataclass
class Query:
    """Stages run one after the other, as chosen, without anybody to run them."""

    graph: StageGraph
    plan: AdaptivePlan = field(init=False)
    finished: dict[int, Produced] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plan = AdaptivePlan.start(self.graph, defer(self.graph, LIMITS))
        self.adapt()

    def adapt(self) -> None:
        before, self.plan = self.plan, adapt(self.plan, self.finished, LIMITS)
        assert adapt(self.plan, self.finished, LIMITS) == self.plan
        # What may run does not change any more, and what was absorbed stays so.
        for number, layout in before.layouts.items():
            assert self.plan.layouts[number] == layout
            assert self.plan[number] == before[number]
        assert before.absorbed.items() <= self.plan.absorbed.items()
        assert not self.plan.layouts.keys() & self.plan.absorbed.keys()
        for number in self.plan.layouts:
            assert {node.stage for node in self.plan[number].inputs} <= self.finished.keys()

    @property
    def running(self) -> list[int]:
        return [number for number in self.plan.layouts if number not in self.finished]

    def finish(self, number: int, size_bytes: int) -> None:
        stage = self.plan[number]
        output = stage.output or self.graph[0].output
        assert output is not None
        share = size_bytes // (stage.tasks * output.partitions)
        self.finished[number] = Produced(output, ((share,) * output.partitions,) * stage.tasks)
        self.adapt()


def leaves(plan: Node) -> list[str]:
    return sorted(node.files[0].path for node in walk(plan) if isinstance(node, FileScan))


def work_of(plan: AdaptivePlan, stage: Stage) -> list[str]:
    """The scans whose rows reach a stage."""
    below = (work_of(plan, plan[node.stage]) for node in stage.inputs)
    return sorted({path for paths in [leaves(stage.plan), *below] for path in paths})


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@settings(max_examples=60)
@given(data=st.data())
def test_whatever_finishes_first_every_stage_runs_or_is_absorbed(plan: Node, data: st.DataObject) -> None:
    graph = make_stages(plan, WORKERS, LIMITS)
    query = Query(graph)
    while graph.result.id not in query.finished:
        assert query.running, "nothing runs, and the result is not there"
        number = data.draw(st.sampled_from(query.running))
        query.finish(number, data.draw(st.sampled_from([0, 1000, MIB, 30 * MIB, 900 * MIB])))
    assert len(query.finished) + len(query.plan.absorbed) == len(graph.stages)
    assert work_of(query.plan, query.plan[graph.result.id]) == work_of(
        AdaptivePlan.start(graph, {}), graph.result
    )


def test_a_side_that_waits_is_absorbed_when_the_other_proved_small() -> None:
    query = Query(make_stages(TWO, WORKERS, LIMITS))
    assert query.running == [1]
    query.finish(1, 1000)
    assert dict(query.plan.absorbed) == {0: 2}
    assert query.running == [2]
    (decision,) = query.plan[2].decisions
    assert "does the work of stage 0" in decision


def test_a_side_that_waits_is_exchanged_when_the_other_did_not() -> None:
    query = Query(make_stages(TWO, WORKERS, LIMITS))
    query.finish(1, 900 * MIB)
    assert query.running == [0]
    assert not query.plan.absorbed


def test_stages_that_wait_for_each_other_do_not_wait_for_ever() -> None:
    graph = make_stages(TWO, WORKERS, LIMITS)
    plan = adapt(AdaptivePlan.start(graph, {0: frozenset({1}), 1: frozenset({0})}), {}, LIMITS)
    assert list(plan.layouts) == [0]


def test_a_stage_does_not_wait_for_one_whose_subquery_needs_it() -> None:
    """Stage 0 could wait for stage 2. But that asks for the result of stage 1, which comes from stage 0."""
    output = Output(Partitioning.HASH, WORKERS, (A,))
    asks = Call("LessThan", (B, ScalarSubquery(77, StageInput(1, (A,)), LONG)), BOOLEAN)
    join = Join(JoinKind.INNER, (A,), (B,), None, None, StageInput(0, (A,)), StageInput(2, (B,)))
    stages = (
        Stage(0, scan(A, 400), WORKERS, output),
        Stage(1, StageInput(0, (A,)), 1, Output(Partitioning.SINGLE)),
        Stage(2, Filter(asks, scan(B, 40)), WORKERS, output),
        Stage(3, join, WORKERS),
    )
    assert defer(StageGraph(stages, frozenset({1})), LIMITS).get(0) is None


def test_a_plan_waits_for_the_subqueries_it_asks() -> None:
    wanted: Expression = ScalarSubquery(77, counted(C, scan(C, 20)), LONG)
    plan = some(A, Filter(Call("LessThan", (A, wanted), BOOLEAN), scan(A, 400)))
    graph = make_stages(plan, WORKERS, LIMITS)
    (subquery,) = graph.subqueries
    query = Query(graph)
    while subquery not in query.finished:
        assert graph.result.id not in query.running
        query.finish(query.running[0], 1000)
    assert query.running == []
    query.plan = answer(query.plan, subquery, pa.table({"0": pa.array([5], pa.int64())}))
    query.adapt()
    assert query.running == [graph.result.id]
    assert not [node for node in walk(query.plan[graph.result.id].plan) if isinstance(node, StageInput)]
