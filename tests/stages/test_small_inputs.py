# SPDX-License-Identifier: Apache-2.0
"""Small inputs: one task reads them, or every task reads them itself, and continues with the next stage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.adaptive_plans import COUNT, WORKERS, absorbed, adapted_run, by, counted, decisions, less, table
from volley.observe.stage_reports import stage_reports
from volley.plan.expressions import (
    AggregateMode,
    Attribute,
    Call,
    references,
)
from volley.plan.nodes import (
    Aggregate,
    DataFile,
    Exchange,
    FileScan,
    Filter,
    Join,
    JoinKind,
    Limit,
    Node,
    Partitioning,
    StageInput,
    WriteFiles,
    walk,
)
from volley.plan.types import BOOLEAN, LONG
from volley.stages.absorb import chain
from volley.stages.cut import make_stages
from volley.stages.graph import Output, Stage
from volley.stages.limits import DEFAULT_LIMITS as LIMITS
from volley.stages.scans import scan_tasks, scans_of
from volley.testing.limits import DISTRIBUTED

K, V = Attribute(1, "k", LONG), Attribute(2, "v", LONG)
FK, FW = Attribute(3, "k", LONG), Attribute(4, "w", LONG)
HASH = Output(Partitioning.HASH, WORKERS, (K,))

BYTES_A_TASK, OPEN_BYTES = LIMITS.scan_task_bytes, LIMITS.open_file_bytes
LIMIT = LIMITS.continued_stage_bytes
# Several small files are worth a task each; all other limits are those that ship.
SHARED = replace(LIMITS, scan_task_bytes=OPEN_BYTES)


def files(*sizes: int) -> FileScan:
    found = tuple(DataFile(f"{n}.parquet", size, 0) for n, size in enumerate(sizes))
    return FileScan("parquet", found, (FK, FW), (), ())


@pytest.mark.parametrize(
    ("scan", "tasks"),
    [
        (files(), 1),
        (files(100, 100, 100), 1),
        (files(*[BYTES_A_TASK] * 2), 2),
        (files(*[BYTES_A_TASK] * 20), 8),
        # Opening many costs, however small they are.
        (files(*[1] * (3 * BYTES_A_TASK // OPEN_BYTES)), 3),
        (files(100 * BYTES_A_TASK), 8),
        # Of wide tables only the columns that are read.
        (replace(files(40 * BYTES_A_TASK), share=0.1), 4),
    ],
)
def test_how_many_tasks_share_a_scan(scan: FileScan, tasks: int) -> None:
    assert scan_tasks(scan, 8, LIMITS) == tasks


# ------------------------------------------------------------------------------------ read by every task


def joined(kind: JoinKind, left: Node, right: Node) -> Join:
    exists = Attribute(9, "e", BOOLEAN) if kind is JoinKind.EXISTENCE else None
    broadcast = Exchange(Partitioning.BROADCAST, 1, (), (), right)
    return Join(kind, (K,), (FK,), None, None, left, broadcast, exists=exists)


# Joins of which every task may see the right side whole.
KEEPS_LEFT = [kind for kind in JoinKind if kind not in (JoinKind.RIGHT, JoinKind.FULL)]
LARGE = FileScan("parquet", (DataFile("l.parquet", 100 * BYTES_A_TASK, 0),), (K, V), (), ())


def test_small_files_are_read_by_every_task() -> None:
    (stage,) = make_stages(joined(JoinKind.INNER, LARGE, files(10, 10)), WORKERS, LIMITS).stages
    assert stage.tasks == WORKERS
    assert [node.whole for node in walk(stage.plan) if isinstance(node, FileScan)] == [False, True]
    assert scans_of(stage.plan) == [LARGE]


@pytest.mark.parametrize(
    "small",
    [
        files(3 * 2**20),
        files(*[1] * 12),
        Limit(5, 0, False, files(10)),
        Limit(1, 0, True, files(10)),
    ],
    ids=["large", "many", "by chance", "single"],
)
def test_others_are_a_stage_of_their_own(small: Node) -> None:
    stages = make_stages(joined(JoinKind.INNER, LARGE, small), WORKERS, LIMITS).stages
    assert len(stages) > 1
    assert not any(n.whole for stage in stages for n in walk(stage.plan) if isinstance(n, FileScan))


@pytest.mark.parametrize("kind", JoinKind)
def test_rows_stay_the_same(tmp_path: Path, kind: JoinKind) -> None:
    many = table(tmp_path, (K, V), 4000, seed=1)
    few = table(tmp_path, (FK, FW), 60, seed=2)
    log = adapted_run(joined(kind, many, few), SHARED)
    if kind in KEEPS_LEFT:
        assert len(stage_reports(log.events)) == 1


# ------------------------------------------------------------------------------------- the task goes on


def test_a_single_task_goes_on_to_the_result(tmp_path: Path) -> None:
    few = table(tmp_path, (K, V), 60, seed=2)
    plan = counted(
        AggregateMode.FINAL, K, by(K, counted(AggregateMode.PARTIAL, K, by(V, Filter(less(V, 500), few))))
    )
    log = adapted_run(plan, LIMITS)
    assert len(stage_reports(log.events)) == 1


def test_what_was_spread_ends_in_one_task(tmp_path: Path) -> None:
    many = table(tmp_path, (K, V), 4000, seed=1)
    halves = counted(AggregateMode.FINAL, K, by(K, counted(AggregateMode.PARTIAL, K, many)))
    log = adapted_run(Limit(100, 0, True, halves), SHARED)
    assert absorbed(log) == 1
    assert any("continues" in said for said in decisions(log))


READ = StageInput(0, (K, V))
READER = Stage(5, Filter(less(K, 3), READ), WORKERS, HASH)
PRODUCER = Stage(0, Filter(less(V, 3), StageInput(1, (K, V))), 1, HASH)


def test_the_work_of_both() -> None:
    stage = chain(READER, PRODUCER, LIMIT, LIMITS)
    assert stage == replace(READER, plan=Filter(less(K, 3), PRODUCER.plan), tasks=1)


@pytest.mark.parametrize(
    ("reader", "producer", "others"),
    [
        (READER, replace(PRODUCER, tasks=2), 0),
        (READER, PRODUCER, LIMIT + 1),
        (READER, replace(PRODUCER, plan=files(LIMIT + 1)), 0),
        (replace(READER, plan=Join(JoinKind.INNER, (K,), (FK,), None, None, READ, files(1))), PRODUCER, 0),
        (
            replace(READER, plan=WriteFiles("d", (K, V), (), False, None, (), (), READ)),
            PRODUCER,
            0,
        ),
    ],
    ids=["several tasks", "much else to read", "much to scan", "reads files of its own", "writes"],
)
def test_where_it_stays_apart(reader: Stage, producer: Stage, others: int) -> None:
    assert chain(reader, producer, others, LIMITS) is None


# ------------------------------------------------------------------------------- seen before it is joined


LOOKS_UP = (JoinKind.SEMI, JoinKind.ANTI, JoinKind.EXISTENCE)


@pytest.mark.parametrize("kind", KEEPS_LEFT)
def test_values_that_are_only_looked_up_are_sent_once(kind: JoinKind) -> None:
    plan = joined(kind, LARGE, files(10 * BYTES_A_TASK))
    sent, _ = make_stages(plan, WORKERS, LIMITS).stages
    assert isinstance(sent.plan, Aggregate) == (kind in LOOKS_UP)
    if kind in LOOKS_UP:
        assert sent.plan.output == (FK,)


@pytest.mark.parametrize(
    "change",
    [{"condition": Call("LessThan", (V, FW), BOOLEAN)}, {"right_keys": (Call("Abs", (FK,), LONG),)}],
    ids=["condition", "computed key"],
)
def test_rows_of_which_more_is_asked_are_all_sent(change: dict[str, Any]) -> None:
    plan = replace(joined(JoinKind.SEMI, LARGE, files(10 * BYTES_A_TASK)), **change)
    sent, _ = make_stages(plan, WORKERS, LIMITS).stages
    assert isinstance(sent.plan, FileScan)


@pytest.mark.parametrize("kind", LOOKS_UP)
def test_their_rows_stay_the_same(tmp_path: Path, kind: JoinKind) -> None:
    few = Filter(less(FW, 300), table(tmp_path, (FK, FW), 60, seed=2))
    adapted_run(joined(kind, table(tmp_path, (K, V), 4000, seed=1), few), DISTRIBUTED)


def test_groups_with_a_condition_are_seen_before_others_are_exchanged() -> None:
    """HAVING may leave few groups, and then little of the other side is wanted."""
    key = Attribute(7, "k", LONG)
    other = replace(LARGE, output=(key,))
    groups = counted(AggregateMode.FINAL, K, by(K, counted(AggregateMode.PARTIAL, K, LARGE)))
    having = Filter(less(COUNT, 2), groups)
    plan = Join(JoinKind.INNER, (key,), (K,), None, None, by(key, other), by(K, having))
    stages = make_stages(plan, WORKERS, LIMITS).stages
    seen = [stage.output for stage in stages if isinstance(stage.plan, Filter)]
    assert [(output.partitioning, [references(key) for key in output.keys]) for output in seen if output] == [
        (Partitioning.HASH, [frozenset({K.id})])
    ]
    without = Join(JoinKind.INNER, (key,), (K,), None, None, by(key, other), by(K, groups))
    assert len(make_stages(without, WORKERS, LIMITS).stages) == len(stages) - 1
