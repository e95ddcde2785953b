# SPDX-License-Identifier: Apache-2.0
"""Shuffle stores keep their contract."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from volley.errors import BlockDamaged, SpillDiskFull
from volley.ids import QueryId
from volley.shuffle.base import ShuffleStore
from volley.shuffle.budget import MemoryBudget
from volley.shuffle.memory import MemoryStore
from volley.testing.chaos.resources import held
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


class TestMemoryStoreOnDisk(ShuffleStoreContract):
    """Nothing is admitted to memory."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> ShuffleStore:
        return MemoryStore("here", MemoryBudget(0), (tmp_path,))

    def test_what_memory_does_not_admit_goes_to_disk(self, tmp_path: Path) -> None:
        budget = MemoryBudget(20)
        store = MemoryStore("here", budget, (tmp_path,))
        before = held().unnamed_files
        sink = store.sink(attempt_id(), 1)
        batches = [batch_of(1, 2), batch_of(3, 4), pa.record_batch({"n": pa.array([5], pa.int64())})]
        for batch in batches:
            sink.write(0, batch)
        (block,) = sink.commit()
        assert (block.rows, budget.held_bytes) == (5, 16)
        assert block.spilled_bytes > 0
        read = list(store.read(block))
        assert read[0] is batches[0]
        assert pa.Table.from_batches(read).column(0).to_pylist() == [1, 2, 3, 4, 5]
        assert not list(tmp_path.iterdir()), "a spill file has a name"
        reading = store.read(block)
        store.release(QueryId("q"))
        assert budget.held_bytes == store.held_bytes == 0
        assert next(reading) is batches[0]
        del reading
        assert held().unnamed_files == before

    def test_a_changed_byte_is_found(self, tmp_path: Path) -> None:
        before = set(held().unnamed_files)
        store = MemoryStore("here", MemoryBudget(0), (tmp_path,))
        sink = store.sink(attempt_id(), 1)
        sink.write(0, batch_of(*range(1000)))
        (block,) = sink.commit()
        written = set(held().unnamed_files) - before
        for entry in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # closed by another thread
                if str(entry.readlink()) in written:
                    os.pwrite(int(entry.name), b"!", 500)
        with pytest.raises(BlockDamaged, match="not what was written"):
            list(store.read(block))

    def test_without_a_directory_it_is_an_error_that_names_the_attempt(self) -> None:
        sink = MemoryStore("here", MemoryBudget(0)).sink(attempt_id(), 1)
        with pytest.raises(SpillDiskFull, match=str(attempt_id())):
            sink.write(0, batch_of(1))
