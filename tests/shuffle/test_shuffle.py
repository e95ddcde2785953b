# SPDX-License-Identifier: Apache-2.0
"""Shuffle stores keep their contract."""

from __future__ import annotations

import threading

import pytest

from volley.ids import QueryId
from volley.shuffle.base import ShuffleStore
from volley.shuffle.memory import MemoryStore
from volley.testing.contracts import ShuffleStoreContract, attempt_id, batch_of


class TestMemoryStore(ShuffleStoreContract):
    @pytest.fixture
    def store(self) -> ShuffleStore:
        return MemoryStore("here")

    def test_batches_are_not_copied(self) -> None:
        store = MemoryStore("here")
        sink = store.sink(attempt_id(), 1)
        batch = batch_of(1, 2, 3)
        sink.write(0, batch)
        (block,) = sink.commit()
        assert next(store.read(block)) is batch

    def test_many_writers_at_once(self) -> None:
        store = MemoryStore("here")
        ready = threading.Barrier(8)

        def write(task: int) -> None:
            sink = store.sink(attempt_id(task), 2)
            ready.wait()
            for value in range(50):
                sink.write(value % 2, batch_of(value))
            sink.commit()

        writers = [threading.Thread(target=write, args=(task,)) for task in range(8)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert store.held_bytes == 8 * 50 * 8
        store.release(QueryId("q"))
        assert store.held_bytes == 0
