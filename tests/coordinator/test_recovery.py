# SPDX-License-Identifier: Apache-2.0
"""Lost exchanged data is recomputed, and nothing else is; no reader sees two versions of one output."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.recovery import (
    NUMBER,
    WORKERS,
    Losses,
    LossyFolder,
    LossyStore,
    exchanged,
    finished,
    numbers,
    run,
    three_stages,
)
from volley.cancellation import CancellationToken
from volley.coordinator.attempts import Attempts
from volley.coordinator.options import RunOptions
from volley.coordinator.run import execute
from volley.errors import BlockMissing, QueryError, ResultInterrupted
from volley.events import (
    Event,
    EventLog,
    StageAbsorbed,
    StageRolledBack,
    StageStarted,
    TaskFailed,
    TaskFinished,
    TaskStarted,
)
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.plan.expressions import AggregateCall, AggregateMode, Attribute, Call, SortKey
from volley.plan.nodes import (
    Aggregate,
    DataFile,
    Exchange,
    FileScan,
    Join,
    JoinKind,
    Limit,
    Node,
    Partitioning,
    Range,
    TopN,
    Window,
)
from volley.plan.types import DOUBLE, LONG
from volley.process.loop import shared_loop
from volley.rpc.messages import Failure, TaskDone, TaskFailure, TaskSpec
from volley.shuffle.base import Block
from volley.shuffle.memory import MemoryStore
from volley.stages.cut import cut
from volley.stages.graph import Output, Stage
from volley.stages.repeatable import is_repeatable
from volley.testing.limits import UNMERGED
from volley.transport.base import RunningTask
from volley.transport.local import LocalTransport


@pytest.mark.parametrize("damaged", [False, True])
def test_a_lost_output_is_computed_again_and_nothing_else(damaged: bool) -> None:
    losses = Losses(stage=1, count=1, damaged=damaged)
    rows, log = run(three_stages(), losses)
    assert rows == list(range(3000))
    (lost,) = losses.lost
    expected = Counter({(0, 0): 1, (1, 0): 1, (1, 1): 1, (1, 2): 1, (2, 0): 1})
    expected[(1, lost.task.task)] += 1
    assert finished(log) == expected


def test_of_outputs_that_outlive_their_worker_only_the_lost_one_is_computed_again(tmp_path: Path) -> None:
    losses = Losses(stage=1, count=1)
    log = EventLog()
    store = LossyFolder(tmp_path, losses)
    # One worker makes all outputs: if they were its own, all would be given up.
    stream = execute(
        cut(three_stages(), WORKERS, UNMERGED),
        LocalTransport(1, 1, MemoryStore, shared=store),
        RunOptions(
            query=QueryId.new(),
            token=CancellationToken(),
            timeout_seconds=60,
            attempts=3,
            events=log,
            limits=UNMERGED,
        ),
    )
    assert sorted(value for batch in stream for value in batch.column(0).to_pylist()) == list(range(3000))
    (lost,) = losses.lost
    expected = Counter({(0, 0): 1, (1, 0): 1, (1, 1): 1, (1, 2): 1, (2, 0): 1})
    expected[(1, lost.task.task)] += 1
    assert finished(log) == expected
    assert list(tmp_path.iterdir()) == []


class StuckFolder(LossyFolder):
    """One from which nothing can be removed."""

    def release(self, query: QueryId) -> None:
        super().release(query)
        raise OSError("the store does not answer")


def test_a_query_whose_data_cannot_be_removed_still_has_its_rows(tmp_path: Path) -> None:
    stream = execute(
        cut(three_stages(), WORKERS, UNMERGED),
        LocalTransport(1, 1, MemoryStore, shared=StuckFolder(tmp_path, Losses(stage=9, count=0))),
        RunOptions(
            query=QueryId.new(),
            token=CancellationToken(),
            timeout_seconds=60,
            attempts=1,
            events=EventLog(),
            limits=UNMERGED,
        ),
    )
    assert sorted(value for batch in stream for value in batch.column(0).to_pylist()) == list(range(3000))


def test_what_a_lost_output_was_made_of_is_not_computed_again_while_it_is_there() -> None:
    losses = Losses(stage=1, count=WORKERS)
    rows, log = run(three_stages(), losses, attempts=WORKERS + 1)
    assert rows == list(range(3000))
    assert finished(log)[(0, 0)] == 1


def test_the_first_stage_is_computed_again_for_its_readers() -> None:
    rows, log = run(three_stages(), Losses(stage=0, count=1))
    assert rows == list(range(3000))
    assert finished(log)[(0, 0)] == 2
    assert not [event for event in log.events if isinstance(event, StageRolledBack)]


def test_attempts_are_limited_and_the_cause_is_named() -> None:
    with pytest.raises(BlockMissing, match="is gone"):
        run(three_stages(), Losses(stage=1, count=100), attempts=2)


def test_lost_input_does_not_use_up_the_attempts_of_its_reader() -> None:
    attempts = Attempts(TaskId(StageId(QueryId("q"), 1), 0), limit=2)

    def may_retry(failure: Failure) -> bool:
        attempt = attempts.next()
        return attempts.may_retry(TaskFailure(attempt, failure, "code", "message", lost=attempt))

    assert may_retry(Failure.LOST_INPUT)
    assert may_retry(Failure.WORKER)
    assert not may_retry(Failure.WORKER)


def test_readers_of_what_cannot_be_repeated_begin_again() -> None:
    """Round robin deals by arrival: an output that is made again may hold other rows in each partition."""
    rows, log = run(three_stages(Partitioning.ROUND_ROBIN), Losses(stage=0, count=1))
    assert rows == list(range(3000))
    assert rolled_back(log) == [(1, 1)]
    last = [event.attempt.task.stage for event in log.events if isinstance(event, TaskFinished)]
    assert {stage.epoch for stage in last if stage.stage == 1} >= {1}
    assert [event for event in log.events if isinstance(event, TaskFailed)]


def four_stages(first: Partitioning) -> Node:
    """What is read with losses has no rows with the client yet."""
    distinct = Aggregate((NUMBER,), (), (), (NUMBER,), three_stages(first))
    return exchanged(Partitioning.SINGLE, distinct)


@pytest.mark.parametrize(("damaged", "again"), [(False, WORKERS), (True, 1)])
def test_a_lost_block_is_held_against_its_worker_and_a_damaged_one_is_not(damaged: bool, again: int) -> None:
    """All outputs are on one worker. When one is gone, the others are given up before somebody stumbles over them."""
    losses = Losses(stage=1, count=1, damaged=damaged)
    rows, log = run(four_stages(Partitioning.HASH), losses, workers=1)
    assert rows == list(range(3000))
    assert sum(count for (stage, _), count in finished(log).items() if stage == 1) == WORKERS + again


def test_epochs_are_limited() -> None:
    with pytest.raises(QueryError, match="lost and recomputed 2 times"):
        run(three_stages(Partitioning.ROUND_ROBIN), Losses(stage=0, count=100), attempts=2)


@dataclass
class FirstOneThenTheOther(Losses):
    """An output of `stage`, and then one that it was made of, when that is read again."""

    def strike(self, block: Block) -> None:
        if self.lost:
            self.stage, self.count = 0, 2
        super().strike(block)


def test_readers_of_readers_begin_again_too() -> None:
    rows, log = run(four_stages(Partitioning.ROUND_ROBIN), FirstOneThenTheOther(stage=1, count=1))
    assert rows == list(range(3000))
    assert rolled_back(log) == [(1, 1), (2, 1)]


# For plans that are `absorbing`: stage 1 waits to see how large stage 2 is.
FOR_STAGE_2 = {1: frozenset({2})}


def absorbing(below: Node) -> Node:
    """Stage 3 joins stage 2, which is small, and does the work of stage 1, which reads stage 0, in its own tasks."""
    other = Attribute(2, "m", LONG, False)
    small = Exchange(Partitioning.HASH, WORKERS, (other,), (), Range(0, 3000, 1, (other,)))
    large = exchanged(Partitioning.HASH, below)
    return exchanged(Partitioning.SINGLE, Join(JoinKind.SEMI, (NUMBER,), (other,), None, None, large, small))


def rolled_back(log: EventLog) -> list[tuple[int, int]]:
    stages = [event.stage for event in log.events if isinstance(event, StageRolledBack)]
    return [(stage.stage, stage.epoch) for stage in stages]


def test_a_stage_that_does_the_work_of_another_is_told_what_that_one_would_be() -> None:
    plan = absorbing(exchanged(Partitioning.ROUND_ROBIN, numbers(3000)))
    rows, log = run(plan, Losses(stage=0, count=1), deferred=FOR_STAGE_2)
    assert rows == list(range(3000))
    assert [event.stage.stage for event in log.events if isinstance(event, StageAbsorbed)] == [1]
    assert rolled_back(log) == [(3, 1)]


def test_a_stage_that_left_rows_out_begins_again_with_what_told_it_which(tmp_path: Path) -> None:
    """Stage 0 keeps rows with a partner in stage 2, which takes any of those that it reads: another time, others."""
    path = tmp_path / "numbers.parquet"
    pq.write_table(pa.table({"n": pa.arange(0, 200_000)}), path, use_dictionary=False, compression="none")
    file = DataFile(str(path), path.stat().st_size, int(path.stat().st_mtime * 1000))
    other = Attribute(2, "m", LONG, False)
    some = Exchange(Partitioning.HASH, WORKERS, (other,), (), Range(0, 3000, 1, (other,)))
    small = Exchange(Partitioning.HASH, WORKERS, (other,), (), Limit(5000, 0, False, some))
    # So large that reading stage 2 to drop rows of it pays.
    large = exchanged(Partitioning.HASH, FileScan("parquet", (file,), (NUMBER,), (), ()))
    joined = Join(JoinKind.SEMI, (NUMBER,), (other,), None, None, large, small)
    plan = exchanged(Partitioning.SINGLE, joined)
    rows, log = run(
        plan,
        Losses(stage=2, count=1),
        limits=replace(UNMERGED, broadcast_bytes=0),
        deferred={0: frozenset({2})},
    )
    assert rows == list(range(3000))
    decisions = {
        event.stage.stage: event.decisions for event in log.events if isinstance(event, StageStarted)
    }
    assert "with a match" in decisions[0][0]
    assert rolled_back(log) == [(0, 1)]


def test_a_stage_that_does_the_work_of_another_is_as_repeatable_as_that_one() -> None:
    below = Limit(5000, 0, False, exchanged(Partitioning.HASH, numbers(3000)))
    rows, log = run(absorbing(below), Losses(stage=3, count=1), deferred=FOR_STAGE_2)
    assert rows == list(range(3000))
    assert [event.stage.stage for event in log.events if isinstance(event, StageAbsorbed)] == [1]
    assert rolled_back(log) == [(4, 1)]


def test_what_a_stage_reads_whole_is_computed_again() -> None:
    plan = absorbing(exchanged(Partitioning.HASH, numbers(3000)))
    losses = Losses(stage=2, count=1)
    rows, log = run(plan, losses, deferred=FOR_STAGE_2)
    assert rows == list(range(3000))
    (lost,) = losses.lost
    assert finished(log)[(2, lost.task.task)] == 2
    assert rolled_back(log) == []


class OneHolder(LocalTransport):
    """Several workers run tasks; one of them holds all output. An attempt starts when its `gate` is open."""

    def __init__(self, losses: Losses, gate: Callable[[AttemptId], asyncio.Event | None]) -> None:
        super().__init__(2 * WORKERS, 6, lambda location: LossyStore(location, losses))
        self._gate = gate

    async def start(self, worker: str, task: TaskSpec) -> RunningTask:
        if gate := self._gate(task.attempt):
            await gate.wait()
        attempt = await super().start(worker, task)
        done = attempt.done

        async def held_by_one() -> TaskDone | TaskFailure:
            outcome = await done()
            return replace(outcome, made_by="local-0") if isinstance(outcome, TaskDone) else outcome

        attempt.done = held_by_one  # type: ignore[method-assign]
        return attempt


@dataclass
class FirstOutputs(Losses):
    """The outputs of all first attempts at tasks of `stage` are gone."""

    def strike(self, block: Block) -> None:
        if block.attempt.task.stage.stage == self.stage and block.attempt.attempt == 0:
            raise BlockMissing(f"{block} is gone.", attempt=block.attempt)


def test_a_late_report_of_a_loss_does_not_take_a_fresh_output_out_of_a_readers_input() -> None:
    """Reader 0 has the new output of task 0 and waits for that of task 1 when the others report the same loss."""
    fresh, reported, went_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def gate(attempt: AttemptId) -> asyncio.Event | None:
        match (attempt.task.stage.stage, attempt.task.task, attempt.attempt):
            case (2, task, 0) if task > 0:
                return fresh
            case (1, 1, 1):
                return reported
            case (1, 0, 2):
                return went_on
            case _:
                return None

    def listen(event: Event) -> None:
        match event:
            case TaskFinished(attempt=AttemptId(TaskId(StageId(_, 1), 0), 1)):
                fresh.set()
            case TaskFailed(attempt=AttemptId(TaskId(StageId(_, 2), task), 0)) if task > 0:
                reported.set()
            case TaskStarted(attempt=AttemptId(TaskId(StageId(_, 2), 0), 1)):
                went_on.set()

    log = EventLog(listen)
    below = Aggregate((NUMBER,), (), (), (NUMBER,), exchanged(Partitioning.HASH, numbers(3000)))
    stream = execute(
        cut(three_stages(Partitioning.HASH, below), WORKERS, UNMERGED),
        OneHolder(FirstOutputs(stage=1, count=0), gate),
        RunOptions(
            query=QueryId.new(),
            token=CancellationToken(),
            timeout_seconds=60,
            attempts=3,
            events=log,
            limits=UNMERGED,
        ),
    )
    rows = sorted(value for batch in stream for value in batch.column(0).to_pylist())
    assert reported.is_set()
    assert rows == list(range(3000))
    # The fresh output counts: nobody computes it a third time.
    assert finished(log)[(1, 0)] == 2


def test_a_result_that_the_client_has_begun_to_read_is_never_given_twice() -> None:
    """The first task of the result still streams when the others find what they read gone, and it was round robin."""
    has_rows = asyncio.Event()

    def gate(attempt: AttemptId) -> asyncio.Event | None:
        return has_rows if attempt.task.stage.stage == 1 and attempt.task.task > 0 else None

    @dataclass
    class OtherPartitions(Losses):
        def strike(self, block: Block) -> None:
            if block.partition > 0 and block.attempt.task.stage.stage == 0:
                super().strike(block)

    stream = execute(
        cut(exchanged(Partitioning.ROUND_ROBIN, numbers(600_000)), WORKERS, UNMERGED),
        OneHolder(OtherPartitions(stage=0, count=1), gate),
        RunOptions(timeout_seconds=60, attempts=3, limits=UNMERGED, result_buffer_bytes=1),
    )
    rows = next(stream).column(0).to_pylist()
    shared_loop().call(has_rows.set)
    with pytest.raises(ResultInterrupted, match="the client has some"):
        rows += [value for batch in stream for value in batch.column(0).to_pylist()]


FRACTION = Attribute(8, "f", DOUBLE)


def aggregated(function: str, column: Attribute) -> Aggregate:
    call = AggregateCall(Call(function, (column,), column.type), AggregateMode.PARTIAL, False, None, 9)
    return Aggregate((NUMBER,), (call,), (), (NUMBER,), numbers(3))


@pytest.mark.parametrize(
    ("plan", "partitioning", "repeatable"),
    [
        (numbers(3), Partitioning.HASH, True),
        (numbers(3), Partitioning.ROUND_ROBIN, False),
        (Limit(1, 0, True, numbers(3)), Partitioning.HASH, False),
        (Aggregate((NUMBER,), (), (), (NUMBER,), numbers(3)), Partitioning.SINGLE, True),
        (TopN(1, 0, (SortKey(NUMBER, True, True),), (NUMBER,), numbers(3)), Partitioning.HASH, False),
        (Window((), numbers(3)), Partitioning.HASH, False),
        (aggregated("Sum", NUMBER), Partitioning.HASH, True),
        (aggregated("Sum", FRACTION), Partitioning.HASH, False),
        (aggregated("Max", FRACTION), Partitioning.HASH, True),
        (aggregated("First", NUMBER), Partitioning.HASH, False),
    ],
)
def test_what_can_be_repeated(plan: Node, partitioning: Partitioning, repeatable: bool) -> None:
    stage = Stage(0, plan, 1, Output(partitioning, 1, ()))
    assert is_repeatable(stage) is repeatable
