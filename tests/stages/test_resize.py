# SPDX-License-Identifier: Apache-2.0
"""What the real sizes of finished stages change: task counts, slices, broadcasts; and what they may not change."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volley.plan.expressions import (
    AggregateCall,
    AggregateMode,
    Attribute,
    Call,
    Literal,
    SortKey,
)
from volley.plan.nodes import (
    Aggregate,
    BuildSide,
    DataFile,
    FileScan,
    Filter,
    Join,
    JoinKind,
    Limit,
    Node,
    Partitioning,
    Project,
    Range,
    Sort,
    StageInput,
    TopN,
    Union,
)
from volley.plan.types import BOOLEAN, LONG
from volley.stages.absorb import absorb, chain
from volley.stages.deferral import defer
from volley.stages.graph import Output, Stage, StageGraph
from volley.stages.layout import Read, split_into_runs
from volley.stages.limits import DEFAULT_LIMITS as LIMITS
from volley.stages.probe_side import probe_inputs, with_build_sides
from volley.stages.resize import Produced, resize

A = Attribute(1, "a", LONG)
B = Attribute(2, "b", LONG)
C = Attribute(3, "c", LONG)
LEFT, RIGHT, THIRD = StageInput(0, (A,)), StageInput(1, (B,)), StageInput(2, (C,))
TRUE = Literal(True, BOOLEAN)
NOT_NULL = Call("And", (Call("IsNotNull", (B,), BOOLEAN), TRUE), BOOLEAN)
SOME = Call("And", (NOT_NULL, Call("LessThan", (B, Literal(3, LONG)), BOOLEAN)), BOOLEAN)
HASH = Output(Partitioning.HASH, 4, (A,))
LARGE = 40 * LIMITS.broadcast_bytes


def join(kind: JoinKind = JoinKind.INNER, left: Node = LEFT, right: Node = RIGHT) -> Join:
    exists = Attribute(9, "e", BOOLEAN) if kind is JoinKind.EXISTENCE else None
    return Join(kind, (A,), (B,), None, None, left, right, exists=exists)


def reader(plan: Node, tasks: int = 4) -> Stage:
    return Stage(9, plan, tasks, None)


def produced(size_bytes: int, producers: int = 4, output: Output = HASH) -> Produced:
    """The bytes spread evenly."""
    share = size_bytes // (producers * output.partitions)
    return Produced(output, ((share,) * output.partitions,) * producers)


def outputs(*numbers: int) -> dict[int, Output]:
    return dict.fromkeys(numbers, HASH)


def scan(size_bytes: int, files: int = 4, column: Attribute = A) -> FileScan:
    return FileScan("parquet", (DataFile("f", size_bytes // files, 1),) * files, (column,), (), ())


# ------------------------------------------------------------------------------------------------- task counts


@pytest.mark.parametrize(
    ("left", "right", "tasks"),
    [
        (0, 0, 1),
        (160, 160, 1),
        (LIMITS.shuffle_task_bytes, 160, 2),
        (10 * LIMITS.shuffle_task_bytes, 10 * LIMITS.shuffle_task_bytes, 4),
    ],
)
def test_partitions_merge_until_a_task_has_something_to_do(left: int, right: int, tasks: int) -> None:
    full = reader(join(JoinKind.FULL))
    assert resize(full, {0: produced(left), 1: produced(right)}, LIMITS).stage.tasks == tasks


def test_what_every_task_reads_whole_does_not_count() -> None:
    broadcast = produced(100 * LIMITS.shuffle_task_bytes, output=Output(Partitioning.BROADCAST))
    assert resize(reader(join()), {0: produced(160), 1: broadcast}, LIMITS).stage.tasks == 1
    whole = replace(reader(join()), whole=frozenset({1}))
    assert (
        resize(whole, {0: produced(160), 1: produced(100 * LIMITS.shuffle_task_bytes)}, LIMITS).stage.tasks
        == 1
    )


def test_files_keep_their_tasks() -> None:
    plan = Union((A,), (scan(4), LEFT))
    assert resize(reader(plan), {0: produced(0)}, LIMITS).stage.tasks == 4


# ---------------------------------------------------------------------------------------- what may be dealt at will


@pytest.mark.parametrize(
    ("kind", "streamed"),
    [
        (JoinKind.INNER, {0, 1}),
        (JoinKind.LEFT, {0}),
        (JoinKind.RIGHT, {1}),
        (JoinKind.FULL, set()),
        (JoinKind.SEMI, {0}),
        (JoinKind.ANTI, {0}),
        (JoinKind.EXISTENCE, {0}),
    ],
)
def test_the_side_whose_unmatched_rows_are_kept_is_never_read_twice(
    kind: JoinKind, streamed: set[int]
) -> None:
    assert probe_inputs(reader(join(kind)), outputs(0, 1)) == streamed


def count(mode: AggregateMode) -> AggregateCall:
    return AggregateCall(Call("Count", (A,), LONG), mode, False, None, 20)


def grouped(mode: AggregateMode, child: Node) -> Aggregate:
    return Aggregate((A,), (count(mode),), (Attribute(21, "n", LONG),), (A,), child)


@pytest.mark.parametrize(
    ("plan", "streamed"),
    [
        (Project((A,), Filter(TRUE, join())), {0, 1}),
        (Sort((SortKey(A, True, True),), False, join()), {0, 1}),
        (TopN(3, 0, (SortKey(A, True, True),), (A, B), join()), {0, 1}),
        (Limit(3, 0, False, join()), {0, 1}),
        (Limit(3, 0, True, join()), set()),
        (grouped(AggregateMode.PARTIAL, join()), {0, 1}),
        # These need equal keys in one task.
        (grouped(AggregateMode.FINAL, join()), set()),
        (grouped(AggregateMode.COMPLETE, join()), set()),
        (join(left=grouped(AggregateMode.FINAL, LEFT)), {1}),
        # Read by every slice, the limit would keep other rows in each.
        (join(left=Limit(3, 0, False, LEFT)), {0}),
        (join(right=Limit(3, 0, False, RIGHT)), {1}),
        # The other branch of a union would be read once a slice.
        (Union((A,), (join(), THIRD)), set()),
        # Two joins: what is dealt at will must be so in both.
        (join(JoinKind.LEFT, left=join(), right=THIRD), {0, 1}),
        (join(JoinKind.RIGHT, left=join(), right=THIRD), {2}),
        # One output cannot be read in two ways.
        (join(right=LEFT), set()),
    ],
)
def test_what_needs_equal_keys_together_keeps_them_so(plan: Node, streamed: set[int]) -> None:
    assert probe_inputs(reader(plan), outputs(0, 1, 2)) == streamed


def test_a_single_partition_or_different_counts_are_left_alone() -> None:
    single = outputs(0, 1) | {1: Output(Partitioning.SINGLE)}
    assert probe_inputs(reader(join()), single) == set()
    assert probe_inputs(reader(join()), outputs(0) | {1: replace(HASH, partitions=5)}) == set()
    assert probe_inputs(reader(join(), tasks=1), outputs(0, 1)) == set()
    assert probe_inputs(reader(join(right=scan(4, column=B))), outputs(0)) == set()


def test_the_side_that_is_read_whole_is_held() -> None:
    assert isinstance(held := with_build_sides(join(), 0), Join)
    assert held.build is BuildSide.RIGHT
    assert isinstance(held := with_build_sides(Filter(TRUE, join()), 1), Filter)
    assert isinstance(held.child, Join)
    assert held.child.build is BuildSide.LEFT
    other = join(left=THIRD)
    assert with_build_sides(other, 0) == other


# ----------------------------------------------------------------------------------------------------- broadcasts


def test_a_join_whose_side_proved_small_reads_it_whole() -> None:
    new = resize(reader(join()), {0: produced(LARGE), 1: produced(LIMITS.broadcast_bytes)}, LIMITS)
    assert (new.stage.tasks, new.layout.sliced) == (4, 0)
    for task in range(4):
        assert set(new.layout.reads(1, HASH, 4, task)) == {Read(p, n) for p in range(4) for n in range(4)}
        # Where they lie: task n of this stage runs where task n of that stage did.
        assert set(new.layout.reads(0, HASH, 4, task)) == {Read(task, n) for n in range(4)}
    assert new.decisions == (
        f"stage 1 proved small ({LIMITS.broadcast_bytes:,} bytes): every task reads it whole, "
        "and stage 0 by producer instead of by partition",
    )


@pytest.mark.parametrize(
    ("kind", "left", "right"),
    [
        (JoinKind.INNER, LARGE, LIMITS.broadcast_bytes + 16),
        (JoinKind.INNER, LIMITS.broadcast_bytes * (LIMITS.broadcast_ratio - 1), LIMITS.broadcast_bytes),
        (JoinKind.RIGHT, LARGE, 160),
        (JoinKind.FULL, LARGE, 160),
        (JoinKind.LEFT, 160, LARGE),
    ],
)
def test_a_join_stays_as_it_is_when_it_must_or_had_better(kind: JoinKind, left: int, right: int) -> None:
    new = resize(reader(join(kind)), {0: produced(left), 1: produced(right)}, LIMITS)
    assert (new.layout.sliced, new.layout.shares, new.decisions) == (None, (), ())


def test_rows_that_lie_in_fewer_tasks_than_there_could_be_are_not_read_where_they_lie() -> None:
    new = resize(reader(join()), {0: produced(LARGE, producers=3), 1: produced(160)}, LIMITS)
    assert new.layout.shares == ()
    assert new.stage.tasks == 4


# ------------------------------------------------------------------------------------------------------- slices


def skewed(*partition_bytes: int, producers: int = 4) -> Produced:
    output = replace(HASH, partitions=len(partition_bytes))
    return Produced(output, (tuple(size // producers for size in partition_bytes),) * producers)


def test_a_partition_that_is_far_larger_is_sliced() -> None:
    big, small = 40 * LIMITS.shuffle_task_bytes, 4 * LIMITS.shuffle_task_bytes
    other = skewed(*[LIMITS.broadcast_bytes] * 4)
    new = resize(reader(join()), {0: skewed(small, big, small, small), 1: other}, LIMITS)
    assert new.layout.sliced == 0
    assert new.stage.tasks == 7 == new.layout.tasks
    assert [share.partitions for share in new.layout.shares] == [
        range(n, n + 1) for n in (0, 1, 1, 1, 1, 2, 3)
    ]
    (said,) = new.decisions
    assert "partition 1: read in 4 slices" in said
    assert isinstance(plan := new.stage.plan, Join)
    assert plan.build is BuildSide.RIGHT


@pytest.mark.parametrize(
    ("kind", "sizes", "producers"),
    [
        (JoinKind.FULL, (4, 40, 4, 4), 4),
        (JoinKind.RIGHT, (4, 40, 4, 4), 4),
        (JoinKind.INNER, (10, 12, 10, 10), 4),
        (JoinKind.INNER, (4, 40, 4, 4), 1),
    ],
)
def test_what_may_not_or_need_not_be_sliced(kind: JoinKind, sizes: tuple[int, ...], producers: int) -> None:
    input = skewed(*(size * LIMITS.shuffle_task_bytes for size in sizes), producers=producers)
    new = resize(reader(join(kind)), {0: input, 1: skewed(*[LIMITS.broadcast_bytes] * 4)}, LIMITS)
    assert (new.stage.tasks, new.layout.shares, new.decisions) == (4, (), ())


THREE = join(left=join(), right=THIRD)
ALL = {Read(producer, partition) for producer in range(4) for partition in range(4)}


@pytest.mark.parametrize("third", ["whole", "broadcast"])
@pytest.mark.parametrize("right", [160, 4 * LIMITS.broadcast_bytes], ids=["small", "sliced"])
def test_what_is_read_whole_stays_so(third: str, right: int) -> None:
    one = Output(Partitioning.BROADCAST)
    stage = replace(reader(THREE), whole=frozenset({2} if third == "whole" else ()))
    hot = skewed(
        LIMITS.shuffle_task_bytes,
        40 * LIMITS.shuffle_task_bytes,
        LIMITS.shuffle_task_bytes,
        LIMITS.shuffle_task_bytes,
    )
    inputs = {0: hot, 1: produced(right), 2: produced(160, output=HASH if third == "whole" else one)}
    new = resize(stage, inputs, LIMITS)
    assert new.decisions
    for task in range(new.stage.tasks):
        read = new.layout.reads(2, inputs[2].output, 4, task)
        assert set(read) == (ALL if third == "whole" else {Read(producer, 0) for producer in range(4)})


def test_what_a_stage_reads_whole_it_still_does_after_another_absorption() -> None:
    before = replace(reader(THREE), whole=frozenset({2}))
    new = absorb(before, HEAVY, outputs(0, 1, 2), {1: 160, 2: 160}, LIMITS)
    assert new is not None
    assert new.whole == {1, 2}


megabytes = st.integers(0, 60).map(lambda size: size << 20)


@given(
    kind=st.sampled_from(JoinKind),
    left=st.lists(st.lists(megabytes, min_size=4, max_size=4), min_size=1, max_size=5),
    right=st.lists(st.lists(megabytes, min_size=4, max_size=4), min_size=1, max_size=5),
    planned=st.integers(1, 6),
)
def test_whatever_is_decided_every_pair_of_rows_meets_exactly_once(
    kind: JoinKind, left: list[list[int]], right: list[list[int]], planned: int
) -> None:
    """Of the pairs of blocks that can join, those of one partition, each is together in one task and no other."""
    inputs = {n: Produced(HASH, tuple(map(tuple, sizes))) for n, sizes in ((0, left), (1, right))}
    new = resize(reader(join(kind), planned), inputs, LIMITS)
    pairs: Counter[tuple[Read, Read]] = Counter()
    read: dict[int, Counter[Read]] = {0: Counter(), 1: Counter()}
    for task in range(new.stage.tasks):
        mine = {n: new.layout.reads(n, HASH, len(inputs[n].sizes), task) for n in (0, 1)}
        for number, blocks in mine.items():
            assert len(set(blocks)) == len(blocks)
            read[number].update(blocks)
        pairs.update((a, b) for a in mine[0] for b in mine[1] if a.partition == b.partition)
    expected = [
        (Read(a, partition), Read(b, partition))
        for a in range(len(left))
        for b in range(len(right))
        for partition in range(4)
    ]
    assert pairs == Counter(expected)
    kept_once = {
        JoinKind.INNER: (),
        JoinKind.RIGHT: (1,),
        JoinKind.FULL: (0, 1),
    }.get(kind, (0,))
    for number in kept_once:
        assert set(read[number].values()) == {1}


@given(weights=st.lists(st.integers(0, 100), min_size=1, max_size=12), data=st.data())
def test_runs_take_every_neighbour_once(weights: list[int], data: st.DataObject) -> None:
    pieces = data.draw(st.integers(1, len(weights)))
    found = split_into_runs(weights, pieces)
    assert len(found) == pieces
    assert all(found)
    assert [position for run in found for position in run] == list(range(len(weights)))


def test_runs_weigh_about_the_same() -> None:
    assert split_into_runs([1, 1, 1, 9, 1, 1, 1, 1], 3) == (range(4), range(4, 5), range(5, 8))
    assert split_into_runs([5, 5, 5, 5], 2) == (range(2), range(2, 4))


# --------------------------------------------------------------------------------------------------- absorption

HEAVY = Stage(0, Filter(TRUE, scan(1000)), 4, HASH)


def test_a_stage_that_has_not_begun_is_put_into_its_reader() -> None:
    new = absorb(reader(join()), HEAVY, outputs(0, 1), {1: LIMITS.broadcast_bytes}, LIMITS)
    assert new is not None
    assert new.plan == replace(join(), left=HEAVY.plan, build=BuildSide.RIGHT)
    assert (new.tasks, new.whole) == (4, frozenset({1}))
    # The next adaptation treats what is read whole as what it is.
    again = resize(new, {1: produced(160)}, LIMITS)
    assert again.stage == new
    assert again.layout.reads(1, HASH, 4, 3) == again.layout.reads(1, HASH, 4, 0)
    assert len(again.layout.reads(1, HASH, 4, 0)) == 16


@pytest.mark.parametrize(
    ("stage", "heavy", "sizes"),
    [
        (reader(join()), HEAVY, {1: LIMITS.broadcast_bytes + 1}),
        (reader(join()), HEAVY, {}),
        (reader(join(JoinKind.RIGHT)), HEAVY, {1: 1}),
        (reader(join(JoinKind.FULL)), HEAVY, {1: 1}),
        (reader(grouped(AggregateMode.FINAL, join())), HEAVY, {1: 1}),
        (reader(join(left=join(), right=THIRD)), HEAVY, {1: 1}),
        # It would have fewer tasks than the reader.
        (reader(join()), replace(HEAVY, tasks=3), {1: 1}),
        # The reader would have to read stage 1 whole for itself, and in shares for the other.
        (reader(join()), replace(HEAVY, plan=join(left=THIRD)), {1: 1}),
        # Nothing is joined: the exchange was asked for.
        (reader(Filter(TRUE, LEFT)), HEAVY, {}),
    ],
)
def test_it_is_not_when_it_may_not_or_had_better_not_be(
    stage: Stage, heavy: Stage, sizes: dict[int, int]
) -> None:
    assert absorb(stage, heavy, outputs(0, 1, 2), sizes, LIMITS) is None


def graph(heavy_bytes: int, light: Node, *more: Stage) -> StageGraph:
    heavy = Stage(0, Filter(SOME, scan(heavy_bytes)), 4, HASH)
    return StageGraph((heavy, Stage(1, light, 4, HASH), *more, Stage(2 + len(more), join(), 4)))


@pytest.mark.parametrize(
    ("heavy_bytes", "light", "waits"),
    [
        (2000, Filter(SOME, scan(1000, column=B)), {0: {1}}),
        (500, Filter(SOME, scan(1000, column=B)), {1: {0}}),
        # What it leaves out would have been little.
        (2000, scan(2000 * LIMITS.deferral_ratio + LIMITS.deferral_ratio, column=B), {1: {0}}),
        # All of what it scans is known to be large.
        (2000, scan(1000, column=B), {1: {0}}),
        (2000, Filter(NOT_NULL, scan(1000, column=B)), {1: {0}}),
    ],
)
def test_a_stage_waits_for_one_that_may_prove_small(
    heavy_bytes: int, light: Node, waits: dict[int, set[int]]
) -> None:
    assert defer(graph(heavy_bytes, light), LIMITS) == waits


def test_a_stage_that_others_read_does_not_wait() -> None:
    other = Stage(2, Filter(TRUE, LEFT), 4, HASH)
    assert defer(graph(2000, Filter(SOME, scan(1000, column=B)), other), LIMITS) == {1: {0}}


def test_what_is_scanned_before_counts_too() -> None:
    behind = Stage(0, Range(0, 1, 1, (A,)), 1, HASH)
    stages = (
        Stage(0, Filter(TRUE, scan(LIMITS.deferral_ratio * 2000 + LIMITS.deferral_ratio, column=C)), 4, HASH),
        Stage(1, Filter(SOME, StageInput(0, (B,))), 4, HASH),
        Stage(2, Filter(TRUE, scan(2000)), 4, HASH),
        Stage(3, join(left=StageInput(2, (A,)), right=StageInput(1, (B,))), 4),
    )
    assert defer(StageGraph(stages), LIMITS) == {}
    assert defer(StageGraph((behind, *stages[1:])), LIMITS) == {2: {1}}


def test_a_stage_that_is_read_twice_is_known_by_the_ids_of_each_reader() -> None:
    """Stages that are equal up to ids are merged, so that two inputs may name one stage's columns differently."""
    producer = Stage(0, Filter(TRUE, Range(0, 9, 1, (A,))), 1, HASH)
    reader = Stage(1, Union((A,), (StageInput(0, (A,)), StageInput(0, (B,)))), 1)
    whole = chain(reader, producer, 0, LIMITS)
    assert whole is not None
    assert isinstance(whole.plan, Union)
    assert [branch.output for branch in whole.plan.inputs] == [(A,), (B,)]
