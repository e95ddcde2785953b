# SPDX-License-Identifier: Apache-2.0
"""A worker that is lost after it handed over a part of the result costs its task, if no row of the result was used."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from helpers.first_rows import AfterFirstRows
from helpers.recovery import NUMBER, WORKERS, Losses, LossyStore, exchanged, finished, numbers
from volley.cluster import LocalCluster
from volley.config import Config
from volley.coordinator.options import RunOptions
from volley.coordinator.result import ResultQueue
from volley.coordinator.run import execute
from volley.errors import EngineError
from volley.events import EventLog, StageRolledBack, TaskFailed
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.loop import shared_loop
from volley.observe.stages import stage_reports
from volley.plan.expressions import Alias
from volley.plan.nodes import Aggregate, Node, Partitioning, Project
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


def test_rows_that_did_not_arrive_are_noticed() -> None:

    attempt = AttemptId(TaskId(StageId(QueryId("q"), 0), 0), 0)
    batches = ResultQueue(shared_loop(), 100, holds=True)
    batches.commit({attempt: 1})
    assert isinstance(batches.get(1), EngineError)
