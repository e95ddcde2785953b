# SPDX-License-Identifier: Apache-2.0
"""Rows without a partner are left out before they are exchanged; what the query gives stays the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from helpers.adaptive_plans import COUNT, WORKERS, adapted_run, by, counted, decisions, less, table
from helpers.sampling import every
from volley.events import EventLog
from volley.observe.stage_reports import stage_reports
from volley.plan.expressions import AggregateMode, Alias, Attribute, Call
from volley.plan.nodes import (
    Aggregate,
    BuildSide,
    DataFile,
    Exchange,
    FileScan,
    Filter,
    Join,
    JoinKind,
    Limit,
    Node,
    Partitioning,
    Project,
    StageInput,
    Union,
    walk,
)
from volley.plan.types import BOOLEAN, LONG
from volley.stages.cut import make_stages
from volley.stages.deferral import defer
from volley.stages.graph import Output, Stage
from volley.stages.runtime_filters import Finished, apply_runtime_filter, filter_sources
from volley.testing.limits import UNMERGED

K, V = Attribute(1, "k", LONG), Attribute(2, "v", LONG)
FK, FW = Attribute(3, "k", LONG), Attribute(4, "w", LONG)
ROWS = 4000


# No side is small enough to be read whole instead of being exchanged.
LIMITS = replace(UNMERGED, broadcast_bytes=0)
NO_FILTERS = replace(LIMITS, runtime_filter_bytes=0)


def few(directory: Path) -> Node:
    """A tenth of the keys, some of them twice, and a NULL."""
    return by(
        FK, Filter(Call("Or", (less(FK, 4), less(FW, 100)), BOOLEAN), table(directory, (FK, FW), 60, seed=2))
    )


def many(directory: Path) -> Node:
    """Nearly all keys, and NULLs."""
    kept = Call("Or", (Call("IsNull", (K,), BOOLEAN), Call("Not", (less(K, 2),), BOOLEAN)), BOOLEAN)
    return Filter(kept, table(directory, (K, V), ROWS, seed=1))


def plain(directory: Path) -> Node:
    return by(K, many(directory))


def renamed(directory: Path) -> Node:
    swapped = Project((V, Alias(K.id, "key", K)), by(K, Filter(less(V, 900), many(directory))))
    return Filter(less(V, 800), swapped)


def grouped(directory: Path) -> Node:
    return counted(AggregateMode.FINAL, K, by(K, counted(AggregateMode.PARTIAL, K, many(directory))))


def joined_before(directory: Path) -> Node:
    """The large side is itself joined to something that every task has whole."""
    key, x = Attribute(6, "k", LONG), Attribute(7, "x", LONG)
    small = Exchange(Partitioning.BROADCAST, 1, (), (), table(directory, (key, x), 40, seed=3))
    return by(K, Join(JoinKind.LEFT, (K,), (key,), None, None, many(directory), small))


SHAPES = {shape.__name__: shape for shape in (plain, renamed, grouped, joined_before)}
DROPS_LEFT = {JoinKind.INNER, JoinKind.RIGHT, JoinKind.SEMI}
DROPS_RIGHT = {JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI, JoinKind.EXISTENCE}


def join(kind: JoinKind, left: Node, right: Node, keys: tuple[Attribute, Attribute]) -> Join:
    exists = Attribute(9, "e", BOOLEAN) if kind is JoinKind.EXISTENCE else None
    return Join(kind, keys[:1], keys[1:], None, None, left, right, exists=exists)


def was_reduced(log: EventLog) -> bool:
    return any("with a match" in said for said in decisions(log))


def exchanged_rows(log: EventLog, stage: int) -> int:
    return next(report.rows for report in stage_reports(log.events) if report.stage == stage)


@pytest.mark.parametrize(("kind", "shape"), every(3, product(JoinKind, SHAPES)))
def test_on_the_left(tmp_path: Path, kind: JoinKind, shape: str) -> None:
    log = adapted_run(join(kind, SHAPES[shape](tmp_path), few(tmp_path), (K, FK)), LIMITS)
    assert was_reduced(log) == (kind in DROPS_LEFT)


@pytest.mark.parametrize(("kind", "shape"), every(3, product(JoinKind, SHAPES)))
def test_on_the_right(tmp_path: Path, kind: JoinKind, shape: str) -> None:
    log = adapted_run(join(kind, few(tmp_path), SHAPES[shape](tmp_path), (FK, K)), LIMITS)
    assert was_reduced(log) == (kind in DROPS_RIGHT)


def test_fewer_rows_are_exchanged(tmp_path: Path) -> None:
    plan = join(JoinKind.INNER, plain(tmp_path), few(tmp_path), (K, FK))
    before = exchanged_rows(adapted_run(plan, LIMITS), 0)
    log = adapted_run(plan, NO_FILTERS)
    assert not was_reduced(log)
    assert exchanged_rows(log, 0) > ROWS // 2 > before > 0


ONLY_LEFT = (JoinKind.SEMI, JoinKind.ANTI, JoinKind.EXISTENCE)


@pytest.mark.parametrize(
    ("kind", "large_left"),
    every(2, [(kind, left) for left in (True, False) for kind in JoinKind if left or kind not in ONLY_LEFT]),
)
def test_through_another_join_of_the_reader(tmp_path: Path, kind: JoinKind, large_left: bool) -> None:
    """The small side is joined to what a join of the large side and a third gives."""
    key, x = Attribute(6, "k", LONG), Attribute(7, "x", LONG)
    third = by(key, table(tmp_path, (key, x), ROWS, seed=3))
    large = plain(tmp_path)
    inner = join(kind, large, third, (K, key)) if large_left else join(kind, third, large, (key, K))
    adapted_run(join(JoinKind.INNER, inner, few(tmp_path), (K, FK)), LIMITS, may_be_empty=True)


# ------------------------------------------------------------------------- what may be left out, and where


LARGE, SMALL, OTHER = (
    StageInput(0, (K, V)),
    StageInput(1, (FK, FW)),
    StageInput(2, (Attribute(8, "o", LONG),)),
)
HASH = Output(Partitioning.HASH, WORKERS, (K,))
FILE = DataFile("a.parquet", 40 * WORKERS, 0)
SCAN = FileScan("parquet", (FILE,), (K, V), (), ())
STAGE = Stage(0, SCAN, WORKERS, HASH)
LIMIT = 40
TINY = Finished(0, True)


def reader(plan: Node) -> Stage:
    return Stage(9, plan, WORKERS, None)


def on_key(kind: JoinKind = JoinKind.INNER, left: Node = LARGE, right: Node = SMALL) -> Join:
    return join(kind, left, right, (K, FK))


@pytest.mark.parametrize(
    "plan",
    [
        replace(join(JoinKind.ANTI, SMALL, LARGE, (FK, K)), null_aware=True),
        replace(on_key(), left_keys=(), right_keys=()),
        on_key(left=Limit(5, 0, False, LARGE)),
        on_key(left=Union((K, V), (LARGE, StageInput(3, (K, V))))),
        on_key(left=counted(AggregateMode.COMPLETE, V, LARGE)),
        on_key(left=Aggregate((), (), (), (), LARGE)),
        on_key(right=Filter(less(FK, 3), replace(SCAN, output=(FK, FW)))),
        on_key(right=Limit(5, 0, False, SMALL)),
        on_key(left=join(JoinKind.FULL, LARGE, OTHER, (K, OTHER.output[0]))),
        on_key(left=join(JoinKind.RIGHT, LARGE, OTHER, (K, OTHER.output[0]))),
        on_key(right=on_key(left=LARGE)),
    ],
    ids=[
        "not in",
        "no keys",
        "limit",
        "union",
        "other groups",
        "no groups",
        "scan as partner",
        "partner by chance",
        "full",
        "right",
        "read twice",
    ],
)
def test_what_must_not_be_left_out(plan: Node) -> None:
    assert not [partner for partner in filter_sources(reader(plan), 0) if 1 in partner.inputs]


def test_below_the_groups_and_joins_and_above_the_scan() -> None:
    key = Attribute(6, "k", LONG)
    read = Filter(less(V, 3), SCAN)
    inner = join(JoinKind.INNER, read, OTHER, (K, OTHER.output[0]))
    stage = Stage(0, counted(AggregateMode.PARTIAL, K, Project((Alias(key.id, "k", K), K), inner)), 3, HASH)
    found = apply_runtime_filter(stage, reader(on_key()), {1: Finished(LIMIT, True)}, LIMITS)
    assert found is not None
    new, inputs = found
    assert inputs == new.whole == {1}
    semi = next(node for node in walk(new.plan) if isinstance(node, Join) and node.kind is JoinKind.SEMI)
    assert semi.left == read
    assert semi.right == SMALL
    assert new.plan.output == stage.plan.output


def test_columns_correspond_by_place() -> None:
    """The stage calls its columns otherwise than the reader."""
    a, b = Attribute(50, "a", LONG), Attribute(51, "b", LONG)
    stage = Stage(0, replace(SCAN, output=(a, b)), WORKERS, HASH)
    found = apply_runtime_filter(
        stage, reader(join(JoinKind.INNER, LARGE, SMALL, (V, FK))), {1: TINY}, LIMITS
    )
    assert found is not None
    assert isinstance(found[0].plan, Join)
    assert found[0].plan.left_keys == (b,)


@pytest.mark.parametrize("finished", [{}, {1: Finished(LIMIT + 1, True)}, {1: Finished(0, False)}, {2: TINY}])
def test_not_by_what_is_unfinished_or_large_or_all_there_is(finished: dict[int, Finished]) -> None:
    assert apply_runtime_filter(STAGE, reader(on_key()), finished, LIMITS) is None


def test_not_by_what_the_stage_reads_already() -> None:
    stage = replace(STAGE, plan=on_key(left=SCAN), whole=frozenset({1}))
    assert apply_runtime_filter(stage, reader(on_key()), {1: TINY}, LIMITS) is None


def test_the_smallest_partner_is_taken() -> None:
    plan = on_key(left=join(JoinKind.INNER, LARGE, OTHER, (K, OTHER.output[0])))
    for sizes, smallest in (((10, 20), 1), ((20, 10), 2)):
        finished = {number: Finished(size, True) for number, size in enumerate(sizes, start=1)}
        found = apply_runtime_filter(STAGE, reader(plan), finished, LIMITS)
        assert found is not None
        assert found[1] == {smallest}


def test_a_partner_that_needs_a_partner_itself() -> None:
    """The small side is all there is, but a third leaves little of it."""
    third = Filter(less(OTHER.output[0], 3), OTHER)
    plan = Join(JoinKind.INNER, (FW,), OTHER.output, None, None, on_key(), third)
    found = apply_runtime_filter(STAGE, reader(plan), {1: Finished(9, False), 2: Finished(9, False)}, LIMITS)
    assert found is not None
    assert found[1] == {1, 2}
    outer = found[0].plan
    assert isinstance(outer, Join)
    assert outer.right == Join(JoinKind.SEMI, (FW,), OTHER.output, None, BuildSide.RIGHT, SMALL, third)


def test_a_partner_of_which_only_a_part_is_finished() -> None:
    plan = on_key(right=join(JoinKind.SEMI, SMALL, OTHER, (FK, OTHER.output[0])))
    found = apply_runtime_filter(STAGE, reader(plan), {1: TINY}, LIMITS)
    assert found is not None
    assert found[1] == {1}


def test_a_stage_waits_for_what_may_reduce_it(tmp_path: Path) -> None:
    plan = counted(AggregateMode.COMPLETE, K, join(JoinKind.INNER, plain(tmp_path), few(tmp_path), (K, FK)))
    assert defer(make_stages(plan, WORKERS, LIMITS), LIMITS) == {0: {1}}


# ------------------------------------------------------------------------------- partners beyond the reader


def sent(child: Node) -> Exchange:
    return Exchange(Partitioning.BROADCAST, 1, (), (), child)


X, Y = Attribute(6, "k", LONG), Attribute(7, "x", LONG)


def grouped_then_joined(directory: Path) -> Node:
    """Groups of the large side are joined by their counts first, and to the small side by their keys after that."""
    counts = Exchange(Partitioning.HASH, WORKERS, (COUNT,), (), grouped(directory))
    third = by(Y, table(directory, (X, Y), ROWS, seed=3))
    few_keys = Filter(less(FK, 4), table(directory, (FK, FW), 60, seed=2))
    first = join(JoinKind.INNER, counts, third, (COUNT, Y))
    return join(JoinKind.INNER, first, sent(few_keys), (K, FK))


def by_two_keys(directory: Path) -> Node:
    """Of the large side only few keys are left; the other is not worth waiting for it, but has these keys, too."""
    few_keys = Filter(less(FK, 4), table(directory, (FK, FW), 60, seed=2))
    left = join(JoinKind.INNER, table(directory, (K, V), 20 * ROWS, seed=1), sent(few_keys), (K, FK))
    right = table(directory, (X, Y), 400, seed=3)
    first, second = (
        Exchange(Partitioning.HASH, WORKERS, keys, (), child)
        for keys, child in (((V, K), left), ((Y, X), right))
    )
    return Join(JoinKind.INNER, (V, K), (Y, X), None, None, first, second)


@pytest.mark.parametrize("plan", [grouped_then_joined, by_two_keys])
def test_the_partner_may_be_met_further_up(tmp_path: Path, plan: Callable[[Path], Node]) -> None:
    graph = make_stages(plan(tmp_path), WORKERS, LIMITS)
    (small,) = (stage.id for stage in graph.stages if stage.output and stage.output.partitions == 1)
    waiting = defer(graph, LIMITS)
    assert any(others == {small} for others in waiting.values())
    log = adapted_run(plan(tmp_path), LIMITS)
    assert was_reduced(log)
    rows = sum(exchanged_rows(log, stage) for stage in waiting)
    whole = adapted_run(plan(tmp_path), NO_FILTERS)
    assert not was_reduced(whole)
    assert rows < sum(exchanged_rows(whole, stage) for stage in waiting)


def behind(plan: Node) -> dict[int, Node]:
    """Stage 1 is `plan`; stages 2 and 5 cannot be looked into."""
    return {1: plan, 3: StageInput(0, (K, V))}


@pytest.mark.parametrize(
    ("plan", "found"),
    [
        (Filter(less(FK, 3), StageInput(2, (FK, FW))), True),
        (join(JoinKind.INNER, StageInput(5, (FK, FW)), StageInput(2, (X,)), (FK, X)), True),
        (join(JoinKind.SEMI, StageInput(5, (FK, FW)), StageInput(2, (X,)), (FK, X)), True),
        (join(JoinKind.INNER, StageInput(2, (X, Y)), StageInput(5, (FK, FW)), (X, FK)), True),
        (counted(AggregateMode.PARTIAL, FK, StageInput(2, (FK, FW))), True),
        (join(JoinKind.LEFT, StageInput(5, (FK, FW)), StageInput(2, (X,)), (FK, X)), False),
        (join(JoinKind.ANTI, StageInput(5, (FK, FW)), StageInput(2, (X,)), (FK, X)), False),
        (join(JoinKind.INNER, StageInput(5, (FK, FW)), StageInput(2, (X,)), (FW, X)), False),
        (Union((FK, FW), (StageInput(2, (FK, FW)), StageInput(5, (FK, FW)))), False),
    ],
)
def test_parts_of_the_other_side_that_have_all_its_keys(plan: Node, found: bool) -> None:
    """Looked into: what stage 1, with which the rows are joined, is made of."""
    there = filter_sources(reader(on_key()), 0, behind(Project((FK, plan.output[1]), plan)).get)
    assert any(partner.inputs == {2} for partner in there) == found
    assert all(partner.keys == (replace(K, id=0),) for partner in there)


def test_rows_that_are_read_in_two_places_further_up_are_all_of_use() -> None:
    twice = on_key(right=join(JoinKind.INNER, SMALL, StageInput(3, (X, Y)), (FK, X)))
    assert filter_sources(reader(twice), 0)
    assert not filter_sources(reader(twice), 0, behind(StageInput(2, (FK, FW))).get)


def test_columns_of_another_stage_are_not_those_that_have_the_same_ids_here() -> None:
    """Inside stage 1, which gives X and Y, FW is a column that the reader never sees."""
    inside = Project((X, Y), StageInput(2, (X, Y, FW)))
    further = join(JoinKind.INNER, on_key(), StageInput(5, (OTHER.output[0],)), (FW, OTHER.output[0]))
    found = filter_sources(reader(further), 0, behind(inside).get)
    assert {1, 5} in [partner.inputs for partner in found]
    assert {2} in [partner.inputs for partner in found]
    assert {2, 5} not in [partner.inputs for partner in found]


def test_not_by_a_partner_whose_columns_have_ids_of_the_stage() -> None:
    clash = on_key(right=StageInput(1, (FK, V)))
    assert filter_sources(reader(clash), 0)
    assert apply_runtime_filter(STAGE, reader(clash), {1: TINY}, LIMITS) is None
