# SPDX-License-Identifier: Apache-2.0
"""What moved between stages, in the report; and callbacks at the start and the end of tasks."""

from __future__ import annotations

from dataclasses import replace

from helpers.recovery import WORKERS, exchanged, numbers, three_stages
from volley.coordinator.options import RunOptions
from volley.coordinator.run import execute
from volley.events import LATENCY_BOUNDS, Distance, EventLog, FetchMetrics, TaskFinished, TaskMetrics
from volley.fetch_counters import FetchCounters, counting_into, current_fetch_counters
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.observe.event_data import event_data
from volley.observe.exchanges import exchange_reports
from volley.observe.stage_reports import stage_reports
from volley.plan.nodes import Partitioning
from volley.shuffle.memory import MemoryStore
from volley.stages.cut import cut
from volley.testing.limits import UNMERGED
from volley.transport.local import LocalTransport
from volley.worker.listeners import TaskEnd, TaskStart, add_listener, remove_listener


class Listener:
    def __init__(self) -> None:
        self.started: list[TaskStart] = []
        self.ended: list[TaskEnd] = []

    def task_started(self, start: TaskStart) -> None:
        self.started.append(start)

    def task_ended(self, end: TaskEnd) -> None:
        self.ended.append(end)


class Broken(Listener):
    def task_started(self, start: TaskStart) -> None:
        raise RuntimeError("a listener of somebody else")


def test_a_query_reports_its_exchanges_and_tells_its_listeners() -> None:
    listener, broken, log, query = Listener(), Broken(), EventLog(), QueryId.new()
    options = RunOptions(timeout_seconds=60, attempts=3, limits=UNMERGED, events=log, query=query)
    add_listener(broken)
    add_listener(listener)
    try:
        transport = LocalTransport(WORKERS, 3, MemoryStore)
        with execute(cut(three_stages(), WORKERS, UNMERGED), transport, options) as stream:
            assert sum(batch.num_rows for batch in stream) == 3000
    finally:
        remove_listener(listener)
        remove_listener(broken)
    first, second, last = stage_reports(log.events)
    assert first.exchange is not None
    assert first.exchange.read_by == (1,)
    assert first.exchange.written_bytes == first.bytes > 0
    assert first.exchange.fetched_local_bytes == first.exchange.fetched_bytes >= 3000 * 8
    assert second.exchange is not None
    assert last.exchange is None
    mine = [start for start in listener.started if start.query == str(query)]
    assert {(start.stage, start.task) for start in mine} == {(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)}
    ends = [end for end in listener.ended if end.start in mine]
    assert {end.outcome for end in ends} == {"finished"}
    assert sum(end.metrics.rows for end in ends if end.metrics and end.start.stage == 0) == 3000
    finished = next(
        event for event in log.events if isinstance(event, TaskFinished) and event.metrics.fetches
    )
    assert event_data(finished)["fetches"][0]["local_bytes"] > 0


def test_reads_count_for_the_task_of_their_thread() -> None:
    counters = FetchCounters()
    with counting_into(counters):
        assert current_fetch_counters() is counters
        with counting_into(FetchCounters()):
            assert current_fetch_counters() is not counters
        assert current_fetch_counters() is counters
    assert current_fetch_counters() is not counters


def test_latencies_of_several_tasks_make_percentiles() -> None:
    counters = FetchCounters()
    for seconds in [0.003] * 90 + [0.15] * 9 + [60.0]:
        counters.count_request(seconds)
    counters.count_retry()
    counters.count_data(Distance.REMOTE, 400, 100)
    counters.count_data(Distance.HOST, 200, 100)
    # A store that says nothing of what it reads counts as remote.
    counters.count_batch(700, 1.5)
    found = counters.metrics(0)
    assert found == replace(found, host_bytes=200, remote_bytes=500, wait_seconds=1.5, retries=1)

    def finished(stage: int, task: int, *fetches: FetchMetrics) -> TaskFinished:
        attempt = AttemptId(TaskId(StageId(QueryId("q"), stage), task), 0)
        return TaskFinished(attempt, TaskMetrics(1, 700, 0.1, shuffle_spilled_bytes=5, fetches=fetches))

    report = exchange_reports([finished(0, 0), finished(1, 0, found), finished(2, 0, found)])[0]
    assert (report.read_by, report.written_bytes, report.spilled_bytes) == ((1, 2), 700, 5)
    assert (report.requests, report.retries, report.fetched_bytes) == (200, 2, 1400)
    assert report.compression_ratio == 3.5
    assert (report.latency_p50_seconds, report.latency_p95_seconds) == (0.005, 0.2)
    assert report.latency_max_seconds == 60.0 > LATENCY_BOUNDS[-1]
    assert "200 requests (p50 5 ms, p95 200 ms, max 60000 ms), 2 retries, compressed 3.5 times" in str(report)


def test_a_stage_that_nobody_reads_has_no_exchange() -> None:
    plan = exchanged(Partitioning.SINGLE, numbers(10))
    log = EventLog()
    options = RunOptions(timeout_seconds=60, attempts=3, limits=UNMERGED, events=log)
    with execute(cut(plan, 1, UNMERGED), LocalTransport(1, 1, MemoryStore), options) as stream:
        list(stream)
    assert stage_reports(log.events)[-1].exchange is None
