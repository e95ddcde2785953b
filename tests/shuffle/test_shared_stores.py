# SPDX-License-Identifier: Apache-2.0
"""Exchanged data that outlives the workers: nothing that was committed is computed again."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from helpers.answers import Answers
from volley.autoscaler import Autoscaler
from volley.bench.queries import QUERIES
from volley.cancellation import CancellationToken
from volley.cluster import LocalCluster
from volley.config import Config
from volley.coordinator.options import RunOptions
from volley.coordinator.run import execute
from volley.errors import DataError, QueryCancelled
from volley.events import Event, EventLog, StageFinished, TaskStarted
from volley.ids import QueryId
from volley.observe.stage_reports import stage_reports
from volley.plan.expressions import Alias, Attribute, Call, EvalMode, Literal
from volley.plan.nodes import Aggregate, Exchange, Node, Partitioning, Project, Range
from volley.plan.types import LONG
from volley.shuffle.factory import ShuffleConfig, close_stores, new_store
from volley.stages.cut import cut
from volley.testing.limits import UNMERGED, UNMERGED_SETTINGS
from volley.testing.services import serve_shuffle
from volley.testing.session import conf
from volley.transport.fleet import Fleet
from volley.transport.flight import FlightTransport, close_fleets

NUMBER = Attribute(1, "n", LONG, False)
WORKERS = 3
SHUFFLED = {"spark.sql.autoBroadcastJoinThreshold": "-1", **UNMERGED_SETTINGS}
SOME = ("q11", "q18")


class Shared:
    """A cluster whose exchanged data is in a folder, or on shuffle servers."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self.cluster = (
            LocalCluster(WORKERS, cores=1, memory="512m", services=3)
            if kind == "service"
            else LocalCluster(
                WORKERS,
                cores=1,
                memory="512m",
                settings={"spark.volley.shuffle.store": f"file://{folder}"},
            )
        )

    def assert_empty(self) -> None:
        if self._kind == "folder":
            assert list(self._folder.iterdir()) == [], "a query left data behind"
            return
        for health in self.cluster.service_health():
            assert health is not None
            assert (health.queries, health.held_bytes, health.disk_bytes) == (0, 0, 0)


@pytest.fixture(scope="module", params=[pytest.param("folder", marks=pytest.mark.slow), "service"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    kept = Shared(request.param, tmp_path_factory.mktemp("shared"))
    with kept.cluster:
        yield kept
        close_fleets()
        close_stores()


def three_stages() -> Node:
    numbers = Exchange(Partitioning.HASH, WORKERS, (NUMBER,), (), Range(0, 3000, 1, (NUMBER,)))
    distinct = Aggregate((NUMBER,), (), (), (NUMBER,), numbers)
    return Exchange(Partitioning.SINGLE, 1, (), (), distinct)


@dataclass
class Run:
    """One query over the workers and the store of `shared`; `listener` is told what happens."""

    shared: Shared
    listener: Callable[[Event], None]
    plan: Node = field(default_factory=lambda: three_stages())
    token: CancellationToken = field(default_factory=CancellationToken)
    query: QueryId = field(default_factory=QueryId.new)

    def __post_init__(self) -> None:
        cluster = self.shared.cluster
        self.store = new_store(ShuffleConfig.of(Config.read(cluster.settings)), cluster.security, 2**26)
        self._fleet = Fleet(cluster.addresses, cluster.security, 10.0)
        self.transport = FlightTransport(self._fleet, shared=self.store)
        self.log = EventLog(lambda event: self.listener(event))

    def rows(self) -> list[int]:
        self._fleet.wait()
        try:
            stream = execute(
                cut(self.plan, WORKERS, UNMERGED),
                self.transport,
                RunOptions(
                    query=self.query,
                    token=self.token,
                    timeout_seconds=120,
                    attempts=3,
                    events=self.log,
                    limits=UNMERGED,
                    absence_seconds=60,
                ),
            )
            return sorted(value for batch in stream for value in batch.column(0).to_pylist())
        finally:
            self._fleet.close()

    def assert_nothing_ran_again(self) -> None:
        stages = stage_reports(self.log.events)
        assert [stage.attempts for stage in stages] == [stage.tasks for stage in stages], "a task ran again"


class Replacement:
    """Kills every worker when stage `stage` has finished, and starts others in their places."""

    def __init__(self, cluster: LocalCluster, stage: int) -> None:
        self._cluster = cluster
        self._stage = stage
        self._thread: threading.Thread | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, StageFinished) and event.stage.stage == self._stage:
            # The listener stands on the loop that hands out the next stage: nothing runs there meanwhile.
            for member in self._cluster.members:
                os.kill(member.pid, signal.SIGKILL)
                member.process.wait()
            self._thread = threading.Thread(target=self._start)
            self._thread.start()

    def _start(self) -> None:
        gone, self._cluster.members = self._cluster.members, []
        for member in gone:
            member.log.close()
            self._cluster.add(port=int(member.address.rpartition(":")[2]))

    def join(self) -> None:
        assert self._thread is not None, "the stage never finished"
        self._thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1])
def test_all_workers_are_killed_between_two_stages(shared: Shared, stage: int) -> None:
    replacement = Replacement(shared.cluster, stage)
    run = Run(shared, replacement)
    try:
        assert run.rows() == list(range(3000))
    finally:
        replacement.join()
    started = Counter(
        (event.attempt.task.stage.stage, event.attempt.task.task)
        for event in run.log.events
        if isinstance(event, TaskStarted) and event.attempt.task.stage.stage <= stage
    )
    assert set(started.values()) == {1}, "a map task ran again"
    shared.assert_empty()


class Blow:
    """Kills a shuffle server the first time that `when` says so."""

    def __init__(self, cluster: LocalCluster, number: int, when: Callable[[Event], bool]) -> None:
        self._server = cluster.servers[number]
        self._when = when
        self.fell = False

    def __call__(self, event: Event) -> None:
        if not self.fell and self._when(event):
            self.fell = True
            self._server.process.kill()
            self._server.process.wait()


def _writes(event: Event) -> bool:
    return isinstance(event, TaskStarted)


def _is_read(event: Event) -> bool:
    return isinstance(event, TaskStarted) and event.attempt.task.stage.stage == 1


@pytest.mark.parametrize(
    "when",
    [
        pytest.param(_writes, id="while maps push", marks=pytest.mark.slow),
        pytest.param(_is_read, id="while reducers read"),
    ],
)
@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
@pytest.mark.parametrize("shared", ["service"], indirect=True)
def test_a_server_is_killed(shared: Shared, number: int, when: Callable[[Event], bool]) -> None:
    blow = Blow(shared.cluster, number, when)
    run = Run(shared, blow)
    try:
        assert run.rows() == list(range(3000))
    finally:
        shared.cluster.restart_servers(*([number] if blow.fell else []))
    assert blow.fell
    run.assert_nothing_ran_again()
    # The server that was away has not heard of the end; it would find out by itself when the lease ends.
    assert run.store is not None
    run.store.release(run.query)
    shared.assert_empty()


class Shrinking:
    """Lets workers go until one is left when the first stage has finished, as `volley cluster --least 1` does."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.transport: FlightTransport | None = None
        self.addresses = list(cluster.addresses)

    def __call__(self, event: Event) -> None:
        assert self.transport is not None
        if isinstance(event, StageFinished) and event.stage.stage == 0:
            elastic = Autoscaler(self._cluster, least=1, idle_seconds=0)
            deadline = time.monotonic() + 30
            while len(self._cluster.members) > 1 or len(self.transport.workers()) > 1:
                assert time.monotonic() < deadline, "the workers did not go"
                elastic.step()

    def undo(self) -> None:
        for address in set(self.addresses) - set(self._cluster.addresses):
            self._cluster.add(port=int(address.rpartition(":")[2]))


def test_workers_that_are_let_go_between_stages_take_nothing_with_them(shared: Shared) -> None:
    shrinking = Shrinking(shared.cluster)
    run = Run(shared, shrinking)
    shrinking.transport = run.transport
    try:
        assert run.rows() == list(range(3000))
    finally:
        shrinking.undo()
    assert [stage.workers for stage in stage_reports(run.log.events)] == [3, 1, 1]
    run.assert_nothing_ran_again()
    shared.assert_empty()


def test_a_cancelled_query_leaves_nothing(shared: Shared) -> None:
    """When its first stage is written and kept, and the second reads it."""
    token = CancellationToken()

    def cancel(event: Event) -> None:
        if _is_read(event):
            token.cancel("the test")

    with pytest.raises(QueryCancelled):
        Run(shared, cancel, token=token).rows()
    shared.assert_empty()


def test_a_query_that_fails_leaves_nothing(shared: Shared) -> None:
    """Its second stage divides by zero."""
    fails = Call("Remainder", (NUMBER, Literal(0, LONG)), LONG, EvalMode.ANSI)
    numbers = Exchange(Partitioning.HASH, WORKERS, (NUMBER,), (), Range(0, 3000, 1, (NUMBER,)))
    plan = Exchange(Partitioning.SINGLE, 1, (), (), Project((Alias(2, "n", fails),), numbers))
    with pytest.raises(DataError):
        Run(shared, lambda event: None, plan=plan).rows()
    shared.assert_empty()


@pytest.mark.parametrize("query", SOME)
def test_rows_are_sparks(tpch: SparkSession, answers: Answers, shared: Shared, query: str) -> None:
    with conf(tpch, shared.cluster.settings | SHUFFLED):
        answers.check(tpch, query)
    shared.assert_empty()


@pytest.mark.parametrize("query", SOME)
def test_in_one_process(tpch: SparkSession, answers: Answers, tmp_path: Path, query: str) -> None:
    embedded = {"spark.volley.local.workers": "3", "spark.volley.shuffle.store": f"file://{tmp_path}"}
    with conf(tpch, embedded | SHUFFLED):
        answers.check(tpch, query)
    assert list(tmp_path.iterdir()) == []


def test_in_one_process_with_servers(tpch: SparkSession, answers: Answers, tmp_path: Path) -> None:
    with serve_shuffle(tmp_path, 2) as servers:
        embedded = {
            "spark.volley.local.workers": "3",
            "spark.volley.shuffle.store": "service",
            "spark.volley.shuffle.service": ",".join(server.address for server in servers),
        }
        with conf(tpch, embedded | SHUFFLED):
            answers.check(tpch, "q18")
        assert all(
            server.server_state.counts["commits"] > 0 and server.server_state.empty for server in servers
        )
        close_stores()


@pytest.mark.slow
@pytest.mark.parametrize("query", [query for query in QUERIES if query not in SOME])
def test_every_query(tpch: SparkSession, answers: Answers, shared: Shared, query: str) -> None:
    with conf(tpch, shared.cluster.settings | SHUFFLED):
        answers.check(tpch, query)
    shared.assert_empty()
