# SPDX-License-Identifier: Apache-2.0
"""Attempts: who wins, what is tried again, and what ends the query."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from helpers.running_queries import (
    ENDLESS,
    NUMBER,
    WORKERS,
    assert_quiet,
    distinct,
    hashed,
    none_of,
    numbers,
    single,
    start,
)
from volley.coordinator.manifest import Election
from volley.coordinator.result import ResultQueue
from volley.errors import BlockMissing, DataError, QueryError, TaskError
from volley.events import (
    TaskFailed,
    TaskFinished,
    TaskMetrics,
    TaskStarted,
)
from volley.ids import AttemptId, QueryId, StageId
from volley.observe.stage_reports import stage_reports
from volley.plan.expressions import (
    Call,
    Literal,
)
from volley.plan.nodes import (
    DataFile,
    FileScan,
    Filter,
    Limit,
    Union,
)
from volley.plan.types import BOOLEAN, LONG
from volley.process.loop import shared_loop
from volley.rpc.messages import (
    Failure,
    SplitBatch,
    SplitRequest,
    TaskDone,
    TaskFailure,
    TaskSpec,
    WorkerInfo,
)
from volley.shuffle.base import Block
from volley.shuffle.memory import MemoryStore
from volley.stages.layout import Read
from volley.testing.contracts import attempt_id
from volley.transport.base import RunningTask
from volley.transport.local import LocalTransport


@dataclass
class Faulty:
    """A transport on which some attempts fail as if their worker had."""

    inner: LocalTransport
    wrap: Callable[[RunningTask], RunningTask]
    placed: dict[AttemptId, str] = field(default_factory=dict)

    def workers(self) -> Sequence[WorkerInfo]:
        return self.inner.workers()

    def holders(self) -> Set[str]:
        return self.inner.holders()

    async def open_ingest(self, query: QueryId) -> None:
        return await self.inner.open_ingest(query)

    async def reserve(self, worker: str, attempt: AttemptId) -> bool:
        return await self.inner.reserve(worker, attempt)

    async def start(self, worker: str, task: TaskSpec) -> RunningTask:
        self.placed[task.attempt] = worker
        return self.wrap(await self.inner.start(worker, task))

    def fetch(self, block: Block) -> Iterator[pa.RecordBatch]:
        return self.inner.fetch(block)

    async def release(self, query: QueryId) -> None:
        await self.inner.release(query)

    @property
    def held_bytes(self) -> int:
        return self.inner.held_bytes


@dataclass
class PassedOn:
    """An attempt as it is; subclasses meddle with it."""

    inner: RunningTask

    @property
    def attempt(self) -> AttemptId:
        return self.inner.attempt

    def batches(self) -> AsyncIterator[pa.RecordBatch]:
        return self.inner.batches()

    async def done(self) -> TaskDone | TaskFailure:
        return await self.inner.done()

    def split_requests(self) -> AsyncIterator[SplitRequest]:
        return self.inner.split_requests()

    async def give(self, splits: SplitBatch) -> None:
        await self.inner.give(splits)

    async def cancel(self) -> None:
        await self.inner.cancel()


@dataclass
class FailingTask(PassedOn):
    """Does its work, commits, and then says that it failed: a worker that dies with the answer on its lips."""

    failure: Failure

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        return
        yield

    async def done(self) -> TaskDone | TaskFailure:
        await self.inner.cancel() if self.attempt.task.stage.stage else await self.inner.done()
        return TaskFailure(self.attempt, self.failure, "INJECTED", "the test broke it")


class HangsWithoutRows(PassedOn):
    """Never ends when it has nothing to give, until it is cancelled."""

    async def done(self) -> TaskDone | TaskFailure:
        outcome = await self.inner.done()
        if isinstance(outcome, TaskDone) and not outcome.rows:
            await asyncio.Event().wait()
        return outcome


def faulty(fails: Callable[[AttemptId], Failure | None]) -> Faulty:
    def wrap(running: RunningTask) -> RunningTask:
        failure = fails(running.attempt)
        return running if failure is None else FailingTask(running, failure)

    return Faulty(LocalTransport(WORKERS, 3, MemoryStore), wrap)


def test_a_limit_does_not_wait_for_tasks_that_are_not_needed() -> None:
    """One of three tasks finds the two rows that are wanted; the others, which have none, hang."""
    zeros = Filter(
        Call("EqualTo", (NUMBER, Literal(0, LONG)), BOOLEAN),
        Union((NUMBER,), (hashed(numbers(100)), hashed(numbers(100)))),
    )
    plan = Limit(2, 0, True, single(Limit(2, 0, False, zeros)))
    transport = Faulty(LocalTransport(WORKERS, 3, MemoryStore), wrap=HangsWithoutRows)
    query = start(plan, transport=transport)
    assert query.rows() == [0, 0]
    assert len(query.of(TaskStarted)) == 1 + 1 + WORKERS + 1
    assert len(query.of(TaskFinished)) == 1 + 1 + 1 + 1


def test_a_failed_attempt_is_tried_again_elsewhere_and_its_rows_count_once() -> None:
    transport = faulty(lambda attempt: Failure.WORKER if attempt.attempt == 0 else None)
    query = start(single(distinct(hashed(numbers(1000)))), transport=transport)
    assert sorted(query.rows()) == list(range(1000))
    for attempt, worker in transport.placed.items():
        # Of stage 1 all workers are busy, so a task may have to go back to where it failed.
        if attempt.attempt == 1 and attempt.task.stage.stage != 1:
            assert worker != transport.placed[AttemptId(attempt.task, 0)]
    failed = query.of(TaskFailed)
    assert len(failed) == 1 + WORKERS + 1
    assert not any(event.final for event in failed)
    assert [report.attempts for report in stage_reports(query.log.events)] == [2, 2 * WORKERS, 2]
    assert transport.held_bytes == 0


def test_attempts_are_limited_and_the_error_names_stage_task_and_attempt() -> None:
    def fails(attempt: AttemptId) -> Failure | None:
        return Failure.WORKER if (attempt.task.stage.stage, attempt.task.task) == (1, 2) else None

    query = start(single(distinct(hashed(numbers(1000)))), transport=faulty(fails), attempts=2)
    with pytest.raises(TaskError, match=r"s1/t2/a1.*the test broke it.*tried 2 times"):
        query.rows()
    assert query.of(TaskFailed)[-1].final
    assert query.transport.held_bytes == 0


@pytest.mark.parametrize(
    ("failure", "error"),
    [(Failure.DATA, DataError), (Failure.INTERNAL, TaskError), (Failure.LOST_INPUT, BlockMissing)],
)
def test_permanent_failures_are_not_retried(failure: Failure, error: type[QueryError]) -> None:
    transport = faulty(lambda attempt: failure)
    query = start(single(numbers(10)), transport=transport)
    with pytest.raises(error, match="the test broke it"):
        query.rows()
    assert len(transport.placed) == 1


def test_an_input_file_that_is_gone_is_a_data_error() -> None:
    scan = FileScan("parquet", (DataFile("/nowhere/at/all.parquet", 1, 1),), (NUMBER,), (), ())
    with pytest.raises(DataError, match=r"nowhere/at/all\.parquet"):
        start(single(distinct(hashed(scan)))).rows()


def test_a_failure_ends_the_tasks_beside_it() -> None:
    scan = FileScan("parquet", (DataFile("/nowhere/at/all.parquet", 1, 1),), (NUMBER,), (), ())
    plan = Union((NUMBER,), (single(none_of(numbers(ENDLESS))), single(scan)))
    with pytest.raises(DataError):
        start(plan).rows()
    assert_quiet()


def test_the_first_committed_attempt_wins_for_good() -> None:
    election = Election(StageId(QueryId("q"), 0), 2)
    first, late, other = (
        TaskDone(attempt, (Block(attempt, 0, "here", rows, 8),), TaskMetrics(rows, 8, 0.0))
        for attempt, rows in ((attempt_id(0, 1), 5), (attempt_id(0, 0), 6), (attempt_id(1, 0), 7))
    )
    assert election.commit(first)
    assert not election.commit(late)
    assert election.commit(other)
    assert election.rows == 12
    assert [blocks[0].attempt for blocks in election.manifest().blocks] == [first.attempt, other.attempt]


def test_a_manifest_names_every_block_or_raises() -> None:
    """An output that is lost and one that is not needed must never look alike."""
    election = Election(StageId(QueryId("q"), 0), 3)
    dones = [
        TaskDone(attempt, (Block(attempt, 0, "here", 5, 8),), TaskMetrics(5, 8, 0.0))
        for attempt in (attempt_id(0, 0), attempt_id(1, 0))
    ]
    for done in dones:
        election.commit(done)
    everything = [Read(0, 0), Read(1, 0), Read(2, 0)]
    with pytest.raises(BlockMissing, match="s0/t2"):
        election.manifest().take(everything)
    with pytest.raises(BlockMissing, match="s0/t2"):
        assert election.manifest().blocks
    assert election.manifest().take(everything[:2]) == (*dones[0].blocks, *dones[1].blocks)

    election.skip_rest()
    assert election.missing() == []
    assert election.manifest().take(everything) == (*dones[0].blocks, *dones[1].blocks)

    election.forget({dones[0].attempt})
    assert election.missing() == [0, 2]
    with pytest.raises(BlockMissing, match="s0/t0"):
        election.manifest().take(everything)


def test_a_commit_of_another_epoch_is_refused() -> None:
    election = Election(StageId(QueryId("q"), 0, epoch=1), 1)
    with pytest.raises(ValueError):
        election.commit(TaskDone(attempt_id(), (), TaskMetrics(0, 0, 0.0)))


def test_rows_that_wait_for_the_client_are_dropped_when_their_attempt_is_rolled_back() -> None:
    batch = pa.record_batch({"0": [1, 2, 3]})
    batches, counts = ResultQueue(shared_loop(), batch.nbytes), [True]
    shared_loop().submit(batches.put(attempt_id(), batch, lambda: counts[0])).result(120)
    waiting = shared_loop().submit(batches.put(attempt_id(), batch, lambda: counts[0]))
    counts[0] = False
    # Room for the second, which waits for it.
    assert batches.get(10) is batch
    waiting.result(120)
    with pytest.raises(queue.Empty):
        batches.get(0)
