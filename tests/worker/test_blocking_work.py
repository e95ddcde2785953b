# SPDX-License-Identifier: Apache-2.0
"""What waits for one thing does not keep a worker from doing another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from volley.ids import AttemptId, QueryId
from volley.process.loop import LoopThread, Work, run_blocking
from volley.shuffle.base import Block, ShuffleSink
from volley.shuffle.memory import MemoryStore
from volley.shuffle.shared_store import QueryLease
from volley.testing.contracts import attempt_id
from volley.worker.async_sink import AsyncSink

ROWS = pa.record_batch({"n": pa.array(range(200_000), pa.int64())})
WRITERS = 20
_SECONDS = 20


class FullSink:
    """The sink of a store that has no room: a write waits until there is some, or until the attempt is aborted."""

    def __init__(self, store: FullStore) -> None:
        self._store = store
        self._aborted = threading.Event()

    def write(self, partition: int, batch: pa.RecordBatch) -> None:
        self._store.waiting.release()
        while not self._store.room.wait(0.01):
            if self._aborted.is_set():
                raise OSError("the attempt was aborted")

    def commit(self) -> tuple[Block, ...]:
        return ()

    def abort(self) -> None:
        self._aborted.set()


class FullStore(MemoryStore):
    """A shared store that has no room until `room` is set. `waiting` counts those who have begun to wait."""

    is_blocking = True

    def __init__(self) -> None:
        super().__init__("here")
        self.room = threading.Event()
        self.waiting = threading.Semaphore(0)
        self.begun: list[QueryId] = []

    def sink(self, attempt: AttemptId, partitions: int) -> ShuffleSink:
        return FullSink(self)

    def begin(self, query: QueryId) -> None:
        self.begun.append(query)

    def leave(self, query: QueryId) -> None:
        """Nothing of it is here."""

    def close(self) -> None:
        """Nothing is open."""

    def wait_for_writers(self, writers: int) -> None:
        for _ in range(writers):
            assert self.waiting.acquire(timeout=_SECONDS), "a writer waits behind another"


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.close()


@pytest.fixture
def store(loop: LoopThread) -> Iterator[FullStore]:
    store = FullStore()
    yield store
    store.room.set()


async def _write(store: FullStore, task: int) -> None:
    sink = AsyncSink(store)
    await sink.open(attempt_id(task=task), 1)
    await sink.write(0, ROWS)


def test_a_query_begins_while_writers_of_others_wait_for_room(loop: LoopThread, store: FullStore) -> None:
    writers = [loop.submit(_write(store, task)) for task in range(WRITERS)]
    store.wait_for_writers(WRITERS)
    query = QueryId.new()
    loop.submit(QueryLease(store).begin(query)).result(_SECONDS)
    assert store.begun == [query]
    store.room.set()
    for writer in writers:
        writer.result(_SECONDS)


def test_tasks_are_planned_and_subqueries_read_while_writers_wait_for_room(
    loop: LoopThread, store: FullStore
) -> None:
    writers = [loop.submit(_write(store, task)) for task in range(WRITERS)]
    store.wait_for_writers(WRITERS)
    names = {
        work: loop.submit(run_blocking(work, lambda: threading.current_thread().name)).result(_SECONDS)
        for work in Work
    }
    assert all(name.startswith(f"volley-{work.value}") for work, name in names.items())
    store.room.set()
    for writer in writers:
        writer.result(_SECONDS)


def test_an_attempt_that_waits_for_room_is_cancelled_at_once(loop: LoopThread, store: FullStore) -> None:
    async def cancel() -> None:
        writing = asyncio.create_task(_write(store, 0))
        await asyncio.to_thread(store.wait_for_writers, 1)
        writing.cancel()
        done, _ = await asyncio.wait([writing], timeout=_SECONDS)
        assert done, "it waits for room that nobody will give it"
        assert writing.cancelled()

    loop.submit(cancel()).result(2 * _SECONDS)
