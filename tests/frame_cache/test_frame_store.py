# SPDX-License-Identifier: Apache-2.0
"""The rows of cached frames: computed once, within a budget, on disk beyond it, and gone with their last reader."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from volley.frame_cache.cached_batches import PLACE, CachedBatches, CachedBatchWriter
from volley.frame_cache.store import FrameCache, FrameLabel, FrameStorage

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
LABEL = FrameLabel("orders", "Memory Deserialized 1x Replicated")


def batches(rows: int, size: int = 1000) -> Iterator[pa.RecordBatch]:
    for start in range(0, rows, size):
        numbers = range(start, min(rows, start + size))
        columns = [pa.array(numbers, pa.int64()), pa.array([f"text {n}" for n in numbers])]
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def write(directory: Path, memory_bytes: int, rows: int, *, places: bool = False) -> CachedBatches:
    with CachedBatchWriter(SCHEMA, directory, memory_bytes, places=places) as writer:
        for batch in batches(rows):
            writer.append(batch)
        return writer.finish()


def storage(directory: Path, budget_bytes: int, *, memory: bool = True, disk: bool = True) -> FrameStorage:
    return FrameStorage(memory, disk, budget_bytes, directory)


def table(rows: CachedBatches) -> pa.Table:
    return pa.Table.from_batches(rows.batches, rows.schema)


EXPECTED = pa.Table.from_batches(batches(50_000), SCHEMA)


@pytest.mark.parametrize("memory_bytes", [0, 300_000, 2**30])
def test_rows_are_the_same_in_memory_and_on_disk(tmp_path: Path, memory_bytes: int) -> None:
    rows = write(tmp_path, memory_bytes, 50_000)
    assert rows.on_disk == (memory_bytes < 2**30)
    assert table(rows).combine_chunks() == EXPECTED.combine_chunks()
    assert not list(tmp_path.iterdir())
    parts = rows.divide(3)
    assert [batch for part in parts for batch in part] == list(rows.batches)
    assert len(parts) <= 3


def test_small_batches_are_merged_and_slices_copied(tmp_path: Path) -> None:
    """A slice would keep the memory of all that it was cut from."""
    large = next(batches(100_000, 100_000))
    with CachedBatchWriter(SCHEMA, tmp_path, 2**30, places=True) as writer:
        for start in range(0, 20_000, 10):
            writer.append(large.slice(start * 5, 2))
        rows = writer.finish()
    assert rows.rows == 4000
    assert len(rows.batches) == 1
    assert rows.size_bytes < 4000 * 60
    assert table(rows).column(PLACE).to_pylist() == list(range(4000))


def test_moving_to_disk_keeps_rows_and_nulls(tmp_path: Path) -> None:
    schema = pa.schema([("d", pa.decimal128(38, 2)), ("l", pa.list_(pa.struct([("x", pa.int8())])))])
    values = [None if n % 7 == 0 else n for n in range(1000)]
    lists = [None if n is None else [None, {"x": n % 100}] for n in values]
    columns = [pa.array(values, schema.types[0]), pa.array(lists, schema.types[1])]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    with CachedBatchWriter(schema, tmp_path, 2**30, places=False) as writer:
        writer.append(batch.slice(3))
        rows = writer.finish()
    moved = rows.move_to_disk(tmp_path)
    assert moved.on_disk
    assert table(moved) == table(rows)
    assert table(moved).to_batches()[0].equals(batch.slice(3))


class TestFrames:
    def fill(self, cache: FrameCache, name: str, kind: FrameStorage, rows: int = 20_000) -> CachedBatches:
        return cache.fill(name, SCHEMA, kind, lambda: batches(rows), label=LABEL)

    def test_beyond_the_budget_the_oldest_goes_to_disk(self, tmp_path: Path) -> None:
        cache = FrameCache()
        size = write(tmp_path, 2**30, 20_000).size_bytes
        kind = storage(tmp_path, 2 * size + 1000)
        for name in ("a", "b"):
            self.fill(cache, name, kind)
        assert cache.find("a") is not None  # so that b is the oldest
        self.fill(cache, "c", kind)
        found = {name: cache.kept(name) for name in "abc"}
        assert [rows is not None and rows.on_disk for rows in found.values()] == [False, True, False]
        usage = cache.usage()
        assert (usage.frames, usage.memory_bytes) == (3, 2 * size)
        assert usage.disk_bytes > 0
        assert not list(tmp_path.iterdir())

    def test_frames_of_memory_alone_are_dropped_instead(self, tmp_path: Path) -> None:
        cache = FrameCache()
        size = write(tmp_path, 2**30, 20_000).size_bytes
        self.fill(cache, "a", storage(tmp_path, size + 1000, disk=False))
        self.fill(cache, "b", storage(tmp_path, size + 1000, disk=False))
        assert cache.kept("a") is None
        assert cache.kept("b") is not None
        # One that does not fit by itself serves its query, and is not kept.
        rows = self.fill(cache, "c", storage(tmp_path, 1000, disk=False))
        assert (rows.rows, cache.kept("c"), cache.find("c")) == (20_000, None, rows)
        del rows
        gc.collect()
        assert cache.find("c") is None

    def test_frames_of_disk_alone_take_no_memory(self, tmp_path: Path) -> None:
        cache = FrameCache()
        self.fill(cache, "a", storage(tmp_path, 2**30, memory=False))
        assert cache.usage().memory_bytes == 0
        assert cache.usage().disk_bytes > 0

    def test_dropped_rows_end_with_their_last_reader(self, tmp_path: Path) -> None:
        cache = FrameCache()
        before = pa.total_allocated_bytes()
        rows = self.fill(cache, "a", storage(tmp_path, 2**30), 200_000)
        assert pa.total_allocated_bytes() - before >= rows.size_bytes
        cache.retain(())
        assert cache.kept("a") is None
        assert cache.find("a") is rows
        del rows
        gc.collect()
        assert pa.total_allocated_bytes() - before < 100_000

    def test_threads_that_ask_together_compute_once(self, tmp_path: Path) -> None:
        cache = FrameCache()
        started = threading.Barrier(6)
        computed: list[int] = []
        found: list[CachedBatches] = []

        def compute() -> Iterator[pa.RecordBatch]:
            computed.append(1)
            yield from batches(20_000)

        def ask() -> None:
            started.wait()
            found.append(cache.fill("a", SCHEMA, storage(tmp_path, 2**30), compute, label=LABEL))

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(computed) == 1
        assert all(rows is found[0] for rows in found)

    def test_the_next_thread_tries_when_one_fails(self, tmp_path: Path) -> None:
        cache = FrameCache()

        def fail() -> Iterator[pa.RecordBatch]:
            yield from batches(5000)
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            cache.fill("a", SCHEMA, storage(tmp_path, 0), fail, label=LABEL)
        assert cache.kept("a") is None
        assert not list(tmp_path.iterdir())
        assert self.fill(cache, "a", storage(tmp_path, 2**30)).rows == 20_000

    def test_places_are_added_when_they_are_needed(self, tmp_path: Path) -> None:
        cache = FrameCache()
        kind = storage(tmp_path, 2**30)
        assert not self.fill(cache, "a", kind).has_places
        rows = cache.fill("a", SCHEMA, kind, lambda: batches(20_000), places=True, label=LABEL)
        assert rows.has_places
        assert self.fill(cache, "a", kind) is rows
