# SPDX-License-Identifier: Apache-2.0
"""Queries whose stages change while they run: the rows of one task that does everything, whatever was decided."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.adaptive_plans import WORKERS, absorbed, adapted_run, by, counted, decisions, table
from helpers.sampling import every
from volley.events import EventLog
from volley.observe.report import StageReport
from volley.observe.stage_reports import stage_reports
from volley.plan.expressions import (
    AggregateMode,
    Attribute,
    Call,
    Expression,
    Literal,
)
from volley.plan.nodes import (
    BuildSide,
    Exchange,
    FileScan,
    Filter,
    Join,
    JoinKind,
    LocalRows,
    Partitioning,
    Union,
)
from volley.plan.types import BOOLEAN, LONG
from volley.stages.cut import make_stages
from volley.testing.limits import UNMERGED

K, V = Attribute(1, "k", LONG), Attribute(2, "v", LONG)
RK, RW = Attribute(3, "k", LONG), Attribute(4, "w", LONG)
EXISTS = Attribute(5, "e", BOOLEAN)
FURTHER = Call("LessThan", (V, RW), BOOLEAN)
CONDITIONS: list[Expression | None] = [None, FURTHER]


# No side counts as small.
NO_BROADCAST = replace(UNMERGED, broadcast_bytes=0)
SEPARATE = replace(NO_BROADCAST, runtime_filter_bytes=0)


def joined(
    directory: Path, kind: JoinKind, condition: Expression | None, *, hot: float = 0.0, right: int = 60
) -> Join:
    positive = Call("GreaterThanOrEqual", (RW, Literal(100, LONG)), BOOLEAN)
    few = Filter(positive, table(directory, (RK, RW), right, seed=2))
    many = table(directory, (K, V), 4000, seed=1, hot=hot)
    exists = EXISTS if kind is JoinKind.EXISTENCE else None
    return Join(kind, (K,), (RK,), condition, None, by(K, many), by(RK, few), exists=exists)


def skewed(directory: Path, kind: JoinKind, condition: Expression | None) -> Join:
    """A join of which most rows of the large side have one key, and every producer has as many of them as any other:
    that side comes in batches, which are distributed in turn."""
    plan = joined(directory, kind, condition, hot=0.8)
    assert isinstance(plan.left, Exchange)
    assert isinstance(plan.left.child, FileScan)
    batches = [
        batch.rename_columns(["k", "v"])
        for file in plan.left.child.files
        for batch in pq.read_table(file.path).to_batches()
    ]
    rows = Union((K, V), tuple(LocalRows((K, V), _ipc(batch)) for batch in batches))
    positive = Call("GreaterThanOrEqual", (V, Literal(0, LONG)), BOOLEAN)
    dealt = Filter(positive, Exchange(Partitioning.ROUND_ROBIN, WORKERS, (), (), rows))
    return replace(plan, left=by(K, dealt))


def _ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def last_stage(log: EventLog) -> StageReport:
    return stage_reports(log.events)[-1]


MAY_HOLD_RIGHT = (JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI, JoinKind.EXISTENCE)


@pytest.mark.parametrize("condition", CONDITIONS, ids=["plain", "condition"])
@pytest.mark.parametrize("kind", every(2, JoinKind, name=lambda kind: kind.name))
def test_a_large_side_is_not_exchanged_when_the_other_proved_small(
    tmp_path: Path, kind: JoinKind, condition: Expression | None
) -> None:
    log = adapted_run(joined(tmp_path, kind, condition))
    expected = kind in MAY_HOLD_RIGHT
    assert absorbed(log) == expected
    assert any("without an exchange" in said for said in decisions(log)) == expected


@pytest.mark.parametrize("build", [None, BuildSide.RIGHT])
@pytest.mark.parametrize("kind", every(2, JoinKind, name=lambda kind: kind.name))
def test_a_side_that_proves_small_too_late_is_still_read_whole(
    tmp_path: Path, kind: JoinKind, build: BuildSide | None
) -> None:
    # Both sides run at the same time, so both are exchanged before their sizes are known.
    log = adapted_run(replace(joined(tmp_path, kind, None), build=build), deferred={})
    assert absorbed(log) == 0
    assert any("by producer" in said for said in decisions(log)) == (kind in MAY_HOLD_RIGHT)


@pytest.mark.parametrize("condition", CONDITIONS, ids=["plain", "condition"])
@pytest.mark.parametrize("kind", every(2, JoinKind, name=lambda kind: kind.name))
def test_a_skewed_partition_is_sliced(tmp_path: Path, kind: JoinKind, condition: Expression | None) -> None:
    log = adapted_run(skewed(tmp_path, kind, condition), SEPARATE)
    sliced = any("slices" in said for said in decisions(log))
    assert sliced == (kind in MAY_HOLD_RIGHT)
    assert (last_stage(log).tasks > WORKERS) == sliced
    assert last_stage(log).planned_tasks == WORKERS


@pytest.mark.parametrize("hot", [0.0, 0.8])
def test_groups_above_a_join_stay_whole(tmp_path: Path, hot: float) -> None:
    """The aggregate groups by the join's keys without another exchange: it lives on how these lie."""
    groups = counted(AggregateMode.COMPLETE, K, joined(tmp_path, JoinKind.INNER, None, hot=hot))
    log = adapted_run(groups, NO_BROADCAST if hot else UNMERGED)
    assert all("with a match" in said for said in decisions(log))
    assert absorbed(log) == 0


@pytest.mark.parametrize("hot", [0.0, 0.8])
def test_partial_aggregates_need_not_stay_whole(tmp_path: Path, hot: float) -> None:
    half = counted(AggregateMode.PARTIAL, V, joined(tmp_path, JoinKind.INNER, None, hot=hot))
    log = adapted_run(counted(AggregateMode.FINAL, V, by(V, half)), NO_BROADCAST if hot else UNMERGED)
    assert len(decisions(log)) == 1 or hot


def test_a_stage_is_absorbed_with_what_it_absorbed_itself(tmp_path: Path) -> None:
    """Two joins in a row: the large side of the first is made in the tasks of the second."""
    first = joined(tmp_path, JoinKind.INNER, None)
    other_key, other = Attribute(6, "k", LONG), Attribute(7, "x", LONG)
    third = Filter(
        Call("GreaterThanOrEqual", (other, Literal(0, LONG)), BOOLEAN),
        table(tmp_path, (other_key, other), 30, seed=3),
    )
    second = Join(JoinKind.LEFT, (V,), (other_key,), None, None, by(V, first), by(other_key, third))
    log = adapted_run(second)
    assert absorbed(log) == 2
    assert len(decisions(log)) == 2
    assert [report.stage for report in stage_reports(log.events)] == [1, 3, 4]


def test_a_stage_with_two_readers_is_exchanged_for_both(tmp_path: Path) -> None:
    first = joined(tmp_path, JoinKind.INNER, None)
    again_key, again = Attribute(6, "k", LONG), Attribute(7, "v", LONG)
    assert isinstance(first.left, Exchange)
    scan = first.left.child
    assert isinstance(scan, FileScan)
    many = replace(scan, output=(again_key, again))
    plan = Join(JoinKind.INNER, (V,), (again_key,), None, None, by(V, first), by(again_key, many))
    graph = make_stages(plan, WORKERS, UNMERGED)
    assert [[node.stage for node in stage.inputs] for stage in graph.stages] == [[], [], [0, 1], [2, 0]]
    log = adapted_run(plan, deferred={0: frozenset({1})})
    assert 0 in [report.stage for report in stage_reports(log.events)]
