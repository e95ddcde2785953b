# SPDX-License-Identifier: Apache-2.0
"""Rows reach a store that takes its time without holding up the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from volley.ids import AttemptId
from volley.shuffle.base import Block
from volley.shuffle.memory import MemorySink, MemoryStore
from volley.testing.contracts import attempt_id
from volley.worker.async_sink import AsyncSink

ROW = pa.record_batch({"n": pa.array([1], pa.int64())})
LARGE = pa.record_batch({"n": pa.array(range(200_000), pa.int64())})


class SlowStore(MemoryStore):
    """A real store whose sinks take their time; `during` runs in each of their writes."""

    is_blocking = True

    def __init__(self, during: Callable[[], None] = lambda: None) -> None:
        super().__init__("here")
        self.threads: list[threading.Thread] = []
        self.at_once = 0
        self._during = during

    def sink(self, attempt: AttemptId, partitions: int) -> MemorySink:
        sink = super().sink(attempt, partitions)
        assert isinstance(sink, MemorySink)
        write, commit = sink.write, sink.commit

        def slow_write(partition: int, batch: pa.RecordBatch) -> None:
            self.at_once += 1
            assert self.at_once == 1, "a sink is used by one thread at a time"
            self.threads.append(threading.current_thread())
            self._during()
            try:
                write(partition, batch)
            finally:
                self.at_once -= 1

        def slow_commit() -> tuple[Block, ...]:
            self.threads.append(threading.current_thread())
            return commit()

        sink.write, sink.commit = slow_write, slow_commit  # type: ignore[method-assign]  # it watches a real sink
        return sink


def values(store: MemoryStore, block: Block) -> list[int]:
    return [value for batch in store.read(block) for value in batch.column(0).to_pylist()]


@pytest.mark.parametrize("batch", [ROW, LARGE], ids=["gathered", "large"])
def test_a_store_that_takes_its_time_is_used_in_another_thread(batch: pa.RecordBatch) -> None:
    store = SlowStore()

    async def run() -> tuple[Block, ...]:
        sink = AsyncSink(store)
        await sink.open(attempt_id(), 2)
        await asyncio.gather(*(sink.write(number % 2, batch) for number in range(10)))
        return await sink.commit()

    blocks = asyncio.run(run())
    assert [block.rows for block in blocks] == [5 * batch.num_rows] * 2
    assert len(store.threads) == 11
    assert threading.current_thread() not in store.threads


def test_rows_of_a_partition_keep_their_order() -> None:
    store = SlowStore()

    async def run() -> tuple[Block, ...]:
        sink = AsyncSink(store)
        await sink.open(attempt_id(), 1)
        for number in range(50):
            await sink.write(0, pa.record_batch({"n": pa.array([number] * 20_000, pa.int64())}))
        return await sink.commit()

    (block,) = asyncio.run(run())
    assert values(store, block) == [number for number in range(50) for _ in range(20_000)]


def test_a_cancelled_attempt_leaves_no_working_thread() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def during() -> None:
        begun.set()
        assert go_on.wait(120)

    store = SlowStore(during)

    async def run() -> None:
        sink = AsyncSink(store)
        await sink.open(attempt_id(), 1)
        writing = asyncio.create_task(sink.write(0, LARGE))
        await asyncio.to_thread(begun.wait, 30)
        writing.cancel()
        done, _ = await asyncio.wait([writing], timeout=0.05)
        assert not done, "it came back while the thread was still at work"
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await sink.abort()

    asyncio.run(run())
    assert store.held_bytes == 0
    assert store.at_once == 0


def test_a_store_that_only_keeps_references_is_used_at_once() -> None:
    store = MemoryStore("here")

    async def run() -> None:
        sink = AsyncSink(store)
        await sink.open(attempt_id(), 1)
        await sink.write(0, ROW)
        assert store.held_bytes == ROW.nbytes
        await sink.abort()

    asyncio.run(run())
    assert store.held_bytes == 0
