# SPDX-License-Identifier: Apache-2.0
"""A worker that is lost after it handed over a part of the result costs its task, if no row of the result was used."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest

from helpers.first_rows import AfterFirstRows
from helpers.recovery import NUMBER, WORKERS, Losses, LossyStore, exchanged, finished, numbers
from volley.cluster import LocalCluster
from volley.config import Config
from volley.coordinator import result_rows
from volley.coordinator.options import RunOptions
from volley.coordinator.result import ResultQueue, ResultStream
from volley.coordinator.result_rows import HeldRows, PassedRows, ResultRows, ResumedRows
from volley.coordinator.run import execute
from volley.errors import EngineError, QueryCancelled, ResultInterrupted
from volley.events import EventLog, StageRolledBack, TaskFailed
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.observe.stage_reports import stage_reports
from volley.plan.expressions import Alias
from volley.plan.nodes import Aggregate, Limit, Node, Partitioning, Project
from volley.process.loop import shared_loop
from volley.rpc.messages import TaskSpec
from volley.shuffle.base import Block
from volley.shuffle.config import ShuffleConfig
from volley.shuffle.factory import driver_store
from volley.stages.cut import cut
from volley.testing.limits import UNMERGED
from volley.transport.base import RunningTask, Transport
from volley.transport.fleet import Fleet
from volley.transport.flight import FlightTransport
from volley.transport.local import LocalTransport

ROWS = 500_000


def run(plan: Node, transport: Transport, log: EventLog) -> list[int]:
    options = RunOptions(timeout_seconds=60, attempts=3, limits=UNMERGED, events=log, holds_result=True)
    stream = execute(cut(plan, len(transport.workers()), UNMERGED), transport, options)
    return sorted(value for batch in stream for value in batch.column(0).to_pylist())


def kill_once(cluster: LocalCluster) -> Callable[[AttemptId, str], None]:
    """Kill the worker that has handed over its first rows, the first time that this happens."""
    killed: list[str] = []

    def kill(attempt: AttemptId, worker: str) -> None:
        if not killed:
            killed.append(worker)
            member = next(member for member in cluster.members if member.address == worker)
            os.kill(member.pid, signal.SIGKILL)
            member.process.wait()

    return kill


@pytest.mark.parametrize("services", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_worker_killed_in_the_middle_of_its_result_costs_its_tasks(services: int) -> None:
    distinct = Aggregate((NUMBER,), (), (), (NUMBER,), exchanged(Partitioning.HASH, numbers(ROWS)))
    # Wide rows: what the sockets hold would reach the driver even after the kill.
    wide = Project((NUMBER, *(Alias(100 + i, f"c{i}", NUMBER) for i in range(31))), distinct)
    log = EventLog()
    with LocalCluster(2, cores=1, memory="512m", services=services) as cluster:
        fleet = Fleet(cluster.addresses, cluster.security, 5.0)
        try:
            fleet.wait()
            config = ShuffleConfig.of(Config.read(cluster.settings))
            shared = driver_store(config, cluster.security) if services else None
            transport = FlightTransport(fleet, result_buffer_bytes=2**16, shared=shared)
            rows = run(wide, AfterFirstRows(transport, kill_once(cluster)), log)
        finally:
            fleet.close()
    assert rows == list(range(ROWS))
    failed = [event for event in log.events if isinstance(event, TaskFailed)]
    # A map task may be placed on the killed worker before its end is noticed.
    assert 1 in {event.attempt.task.stage.stage for event in failed}
    assert not any(event.final for event in failed)
    maps, result = stage_reports(log.events)
    # The map output is lost if the killed worker held it. Servers keep it.
    assert finished(log)[(0, 0)] <= (1 if services else 2)
    assert not services or not maps.recomputed_tasks
    assert result.attempts > result.tasks
    # The workers share a host, and so do the servers. All tasks may run on the worker that is left.
    assert maps.exchange is not None
    assert maps.exchange.fetched_local_bytes + maps.exchange.fetched_host_bytes > 0
    assert (maps.exchange.requests > 0) == bool(services)
    assert (maps.exchange.latency_max_seconds > 0) == bool(services)


class HeldByOne(LocalTransport):
    """The tasks of the result wait for `begin`, except the first."""

    def __init__(self, losses: Losses) -> None:
        super().__init__(2 * WORKERS, 6, lambda location: LossyStore(location, losses))
        self.begin = asyncio.Event()

    async def start(self, worker: str, task: TaskSpec) -> RunningTask:
        if task.attempt.task.stage.stage == 1 and task.attempt.task.task:
            await self.begin.wait()
        return await super().start(worker, task)


class OtherPartitions(Losses):
    """One output of the first stage is gone, but not for the first task of the result."""

    def strike(self, block: Block) -> None:
        if block.partition > 0:
            super().strike(block)


def test_a_held_result_begins_again_if_its_input_would_differ() -> None:
    """The first task has handed over rows when the others find what they read gone, and it was round robin."""
    transport = HeldByOne(OtherPartitions(stage=0, count=1))
    log = EventLog()
    watched = AfterFirstRows(transport, lambda attempt, worker: transport.begin.set())
    rows = run(exchanged(Partitioning.ROUND_ROBIN, numbers(600_000)), watched, log)
    assert rows == list(range(600_000))
    assert [event.stage.stage for event in log.events if isinstance(event, StageRolledBack)] == [1]
    assert finished(log)[(0, 0)] == 2


class BreaksOff(LossyStore):
    """The first block that is read breaks off behind its first batch, once the client has rows."""

    def __init__(self, location: str, losses: Losses, has_rows: threading.Event) -> None:
        super().__init__(location, Losses(stage=0, count=0))
        self._after = losses
        self._has_rows = has_rows

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        for batch in super().read(block):
            yield batch
            assert self._has_rows.wait(120)
            self._after.strike(block)


@pytest.mark.parametrize("partitioning", [Partitioning.HASH, Partitioning.ROUND_ROBIN])
def test_a_stream_continues_where_it_stood_if_the_rows_are_the_same_again(partitioning: Partitioning) -> None:
    losses, has_rows = Losses(stage=0, count=1), threading.Event()
    transport = LocalTransport(2 * WORKERS, 6, lambda location: BreaksOff(location, losses, has_rows))
    watched = AfterFirstRows(transport, lambda attempt, worker: has_rows.set())
    log = EventLog()
    plan = exchanged(partitioning, numbers(ROWS))
    stream = execute(
        cut(plan, WORKERS, UNMERGED),
        watched,
        RunOptions(timeout_seconds=60, attempts=3, limits=UNMERGED, events=log, resumes_result=True),
    )
    if partitioning is Partitioning.ROUND_ROBIN:
        with pytest.raises(ResultInterrupted, match="the client has some"):
            list(stream)
        return
    assert sorted(value for batch in stream for value in batch.column(0).to_pylist()) == list(range(ROWS))
    assert losses.lost
    failed = [event for event in log.events if isinstance(event, TaskFailed)]
    assert {event.attempt.task.stage.stage for event in failed} == {1}
    assert not any(event.final for event in failed)
    # Only the lost output was made again.
    assert finished(log)[(0, 0)] == 2


def test_rows_that_the_client_has_are_left_out_in_any_order() -> None:
    first, second, third = (AttemptId(TaskId(StageId(QueryId("q"), 0), 0), number) for number in range(3))
    rows = ResumedRows()

    def add(attempt: AttemptId, values: list[int | None]) -> list[int | None]:
        at = pa.array(values, pa.timestamp("us", "UTC"))
        batches = rows.add(attempt, pa.record_batch({"0": values, "1": at}))
        return [value for batch in batches for value in batch.column(0).to_pylist()]

    assert add(first, [1, 1, None, 2**60]) == [1, 1, None, 2**60]
    rows.drop(first)
    # One that is new waits until all that the client has were there.
    assert add(second, [None, 5, 1]) == []
    rows.drop(second)
    assert add(third, [1, 6, 2**60]) == []
    assert add(third, [None, 1, 1]) == [6, 1]
    assert add(third, [7]) == [7]
    with pytest.raises(EngineError, match="7 of its 8 rows"):
        rows.finish(third, 8)


def test_a_task_that_gives_other_rows_the_second_time_interrupts_the_result() -> None:
    first, second = (AttemptId(TaskId(StageId(QueryId("q"), 0), 0), number) for number in range(2))
    rows = ResumedRows()
    rows.add(first, pa.record_batch({"0": [1.0, 2.0]}))
    assert not rows.add(second, pa.record_batch({"0": [1.0, 2.5]}))
    with pytest.raises(ResultInterrupted, match="1 of its rows"):
        rows.finish(second, 2)


@pytest.mark.parametrize("rows", [HeldRows(), PassedRows(), ResumedRows()])
def test_rows_that_did_not_arrive_are_noticed(rows: ResultRows) -> None:
    attempt = AttemptId(TaskId(StageId(QueryId("q"), 0), 0), 0)
    batches = ResultQueue(shared_loop(), 100, rows)
    batches.finish(attempt, 1)
    batches.commit({attempt: 1})
    assert isinstance(batches.get(1), EngineError)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[IO[bytes]]:
    """The temporary files that the test opens."""
    opened: list[IO[bytes]] = []
    original = tempfile.TemporaryFile

    def open_file(prefix: str) -> IO[bytes]:
        opened.append(original(prefix=prefix))
        return opened[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", open_file)
    return opened


def stream_of(plan: Node, transport: Transport | None = None) -> ResultStream:
    """A stream whose query does not end before the client has nearly all rows."""
    options = RunOptions(
        timeout_seconds=60, attempts=3, limits=UNMERGED, resumes_result=True, result_buffer_bytes=2**16
    )
    unharmed = Losses(stage=0, count=0)
    transport = transport or LocalTransport(2 * WORKERS, 6, lambda location: LossyStore(location, unharmed))
    return execute(cut(plan, WORKERS, UNMERGED), transport, options)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_full_disk_ends_a_stream_only_if_a_task_has_to_continue(
    is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Path("/dev/full")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda prefix: full.open("w+b"))
    losses, has_rows = Losses(stage=0, count=int(is_lost)), threading.Event()
    transport = LocalTransport(2 * WORKERS, 6, lambda location: BreaksOff(location, losses, has_rows))
    watched = AfterFirstRows(transport, lambda attempt, worker: has_rows.set())
    stream = stream_of(exchanged(Partitioning.HASH, numbers(ROWS)), watched)
    if is_lost:
        with pytest.raises(ResultInterrupted, match=r"could not be kept: .* No space left"):
            list(stream)
    else:
        assert sum(batch.num_rows for batch in stream) == ROWS


def test_nothing_is_kept_of_a_stream_that_cannot_continue(files: list[IO[bytes]]) -> None:
    plan = Limit(9, 0, True, exchanged(Partitioning.SINGLE, numbers(100)))
    assert sum(batch.num_rows for batch in stream_of(plan)) == 9
    assert not files


@pytest.mark.parametrize("limit", ["MOST_RESUMED_ROWS", "MOST_KEPT_BYTES"])
def test_what_is_kept_of_a_stream_is_bounded(
    limit: str, files: list[IO[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_rows, limit, 2000)
    tasks = [TaskId(StageId(QueryId("q"), 0), number) for number in range(2)]
    (small, _), (large, again) = ([AttemptId(task, number) for number in range(2)] for task in tasks)
    rows = ResumedRows()
    rows.add(small, pa.record_batch({"0": [1]}))
    batch = pa.record_batch({"0": range(1500)})
    for _ in range(3):
        assert rows.add(large, batch) == [batch]
    assert [file.closed for file in files] == [False, True]
    with pytest.raises(ResultInterrupted, match="too many"):
        rows.add(again, batch)
    rows.close()
    assert files[0].closed


@pytest.mark.parametrize("end", ["end", "close", "cancel", "drop"])
def test_no_file_outlives_its_stream(end: str, files: list[IO[bytes]]) -> None:
    stream = stream_of(exchanged(Partitioning.HASH, numbers(ROWS)))
    next(stream)
    match end:
        case "end":
            list(stream)
        case "close":
            stream.close()
        case "cancel":
            stream.cancel("enough")
            with pytest.raises(QueryCancelled):
                list(stream)
        case "drop":
            del stream
    assert files
    assert all(file.closed for file in files)
