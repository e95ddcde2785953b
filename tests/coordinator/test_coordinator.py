# SPDX-License-Identifier: Apache-2.0
"""The run of a query: its rows and events, and that every way to the end lets go of everything."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

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
from volley.errors import DeadlineExceeded, QueryCancelled
from volley.events import (
    Event,
    QueryFinished,
    QueryStarted,
    StageFinished,
    StageStarted,
    TaskFailed,
    TaskFinished,
    TaskStarted,
)
from volley.ids import AttemptId
from volley.observe.stage_reports import stage_reports
from volley.plan.expressions import (
    SortKey,
)
from volley.plan.nodes import (
    Sort,
)
from volley.rpc.messages import TaskSpec
from volley.shuffle.memory import MemoryStore
from volley.transport.base import NoRoom, RunningTask
from volley.transport.local import LocalTransport


def test_rows_pass_through_several_stages() -> None:
    plan = Sort((SortKey(NUMBER, True, True),), True, single(distinct(hashed(numbers(10_000)))))
    query = start(plan)
    assert query.rows() == list(range(10_000))
    assert query.transport.held_bytes == 0


def test_events_tell_the_story_in_order() -> None:
    query = start(single(distinct(hashed(numbers(100)))))
    query.rows()
    kinds = [type(event) for event in query.log.events]
    assert kinds[0] is QueryStarted
    assert kinds[-1] is QueryFinished
    assert kinds.count(StageStarted) == kinds.count(StageFinished) == 3
    assert kinds.count(TaskStarted) == kinds.count(TaskFinished) == 1 + WORKERS + 1
    first, second, result = stage_reports(query.stream.events)
    assert (first.tasks, second.tasks, result.tasks) == (1, WORKERS, 1)
    assert (first.rows, second.rows, result.rows) == (100, 100, 100)
    assert first.bytes > 0
    assert any(operator.name == "RepartitionExec" for operator in first.operators)


class CrowdedTransport(LocalTransport):
    """Another driver is faster: the first starts of each attempt find no room."""

    def __init__(self) -> None:
        super().__init__(WORKERS, 3, MemoryStore)
        self.tries: Counter[AttemptId] = Counter()

    async def start(self, worker: str, task: TaskSpec) -> RunningTask:
        self.tries[task.attempt] += 1
        if self.tries[task.attempt] <= 2:
            await self._workers[worker].slots.cancel(task.attempt)
            raise NoRoom
        return await super().start(worker, task)


def test_an_attempt_that_finds_no_room_is_placed_again() -> None:
    crowded = CrowdedTransport()
    query = start(single(distinct(hashed(numbers(1000)))), transport=crowded, attempts=1)
    assert sorted(query.rows()) == list(range(1000))
    assert set(crowded.tries.values()) == {3}
    # It is the same attempt, and has begun once.
    assert Counter(event.attempt for event in query.of(TaskStarted)) == Counter(crowded.tries.keys())
    assert not query.of(TaskFailed)


def test_an_empty_result_has_a_schema() -> None:
    query = start(single(none_of(numbers(100))))
    assert query.rows() == []
    assert query.stream.schema == pa.schema([("0", pa.int64())])


def test_queries_of_many_threads_do_not_mix() -> None:
    def run(size: int) -> tuple[int, list[int]]:
        return size, sorted(start(single(distinct(hashed(numbers(size))))).rows())

    with ThreadPoolExecutor(8) as pool:
        for size, rows in pool.map(run, range(1, 40)):
            assert rows == list(range(size))


def test_a_query_can_run_while_the_result_of_another_is_open() -> None:
    outer = start(numbers(ENDLESS))
    next(outer.stream)
    assert start(single(distinct(hashed(numbers(5))))).rows()
    next(outer.stream)
    outer.stream.close()


def test_closing_an_endless_result_ends_it() -> None:
    query = start(numbers(ENDLESS))
    with query.stream as stream:
        assert next(stream).num_rows
    assert query.of(QueryFinished)[-1].code == "QUERY_CANCELLED"
    assert query.log.events[-1] is query.of(QueryFinished)[-1]
    assert list(query.stream) == []
    assert_quiet()


def test_a_result_that_is_dropped_ends_the_query() -> None:
    query = start(numbers(ENDLESS))
    ended = threading.Event()
    query.token.on_fire(ended.set)
    next(query.stream)
    del query.stream
    gc.collect()
    assert ended.wait(120)
    assert_quiet()


def test_a_slow_client_stops_the_workers() -> None:
    """What is made and not yet read is bounded, however much there is to make."""
    query = start(numbers(ENDLESS), buffer_bytes=2**20)
    next(query.stream)
    assert_quiet()
    query.stream.close()


def test_cancelling_in_the_middle_of_an_operator() -> None:
    """The token is fired when the task runs; the operator would compute for years."""
    running = threading.Event()

    def listener(event: Event) -> None:
        if isinstance(event, TaskStarted):
            running.set()

    query = start(single(none_of(numbers(ENDLESS))), listener=listener)
    assert running.wait(120)
    query.token.cancel("a test asked for it")
    with pytest.raises(QueryCancelled, match="a test asked for it"):
        query.rows()
    assert query.transport.held_bytes == 0
    assert_quiet()


def test_a_query_cancelled_before_it_starts_ends_as_cancelled() -> None:
    query = start(none_of(numbers(ENDLESS)))
    query.token.cancel("at once")
    with pytest.raises(QueryCancelled):
        query.rows()


def test_a_deadline_ends_the_query() -> None:
    query = start(single(none_of(numbers(ENDLESS))), timeout_seconds=0.2)
    with pytest.raises(DeadlineExceeded, match=r"0\.2 s"):
        query.rows()
    assert query.transport.held_bytes == 0
    assert_quiet()


_LEAVES_EARLY = """
from helpers.running_queries import ENDLESS, none_of, numbers, single, start
open_result = start(numbers(ENDLESS))
next(open_result.stream)
computing = start(single(none_of(numbers(ENDLESS))))
print("leaving", flush=True)
"""


def test_a_process_can_end_while_queries_run() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _LEAVES_EARLY],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.stdout == "leaving\n", ended.stderr
    assert (ended.returncode, ended.stderr) == (0, "")
