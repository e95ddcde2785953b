# SPDX-License-Identifier: Apache-2.0
"""An object store keeps the contract, on local files and on those of fsspec."""

from __future__ import annotations

import os
import resource
import shutil
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from helpers.opened_stores import new_store
from volley.errors import BlockDamaged, BlockMissing, ConfigError, LeaseExpired, ShuffleRefused
from volley.ids import QueryId
from volley.shuffle.base import Block
from volley.shuffle.conditional_put import AlreadyThere
from volley.shuffle.object_store import ObjectStore
from volley.shuffle.objects import Folder
from volley.testing.contracts import ShuffleStoreContract, attempt_id, batch_of


def written(store: ObjectStore, *values: int, attempt: int = 0, query: str = "q") -> Block:
    sink = store.sink(attempt_id(attempt=attempt, query=query), 1)
    sink.write(0, batch_of(*values))
    (block,) = sink.commit()
    return block


def values(store: ObjectStore, block: Block) -> list[int]:
    return [value for batch in store.read(block) for value in batch.column(0).to_pylist()]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"file://{tmp_path}/shuffle"


class TestFiles(ShuffleStoreContract):
    @pytest.fixture
    def store(self, uri: str) -> Iterator[ObjectStore]:
        store = new_store(uri, "q", "a", "b")
        yield store
        store.close()


class TestFsspec(ShuffleStoreContract):
    @pytest.fixture
    def store(self, request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
        store = new_store(f"fsspec+memory://{request.node.name}", "q", "a", "b")
        yield store
        store.close()


class TestVisibility:
    def test_another_process_reads_what_was_committed(self, uri: str) -> None:
        block = written(new_store(uri, "q"), 1, 2, 3)
        assert block.outlives_worker
        assert values(new_store(uri), block) == [1, 2, 3]

    def test_data_without_its_marker_is_missing(self, uri: str, tmp_path: Path) -> None:
        store = new_store(uri, "q")
        block = written(store, 1)
        (marker,) = tmp_path.rglob("committed")
        marker.unlink()
        with pytest.raises(BlockMissing):
            values(store, block)

    @pytest.mark.parametrize("kind", ["file", "fsspec+file"])
    def test_an_attempt_is_committed_by_one_process(self, tmp_path: Path, kind: str) -> None:
        uri = f"{kind}://{tmp_path}/shuffle"
        first, second = new_store(uri, "q"), new_store(uri)
        zombie = second.sink(attempt_id(), 1)
        zombie.write(0, batch_of(2))
        block = written(first, 1)
        with pytest.raises(ShuffleRefused) as caught:
            zombie.commit()
        assert caught.value.code == "SHUFFLE_COMMIT_LOST"
        zombie.abort()
        assert values(first, block) == [1]
        assert len(list(tmp_path.rglob("*.data"))) == 1

    def test_a_marker_has_one_writer_of_many_at_the_same_moment(self, uri: str) -> None:
        folder = Folder.open(uri)
        ready = threading.Barrier(8)

        def write(number: int) -> int:
            won = 0
            for object in range(20):
                ready.wait(120)
                with suppress(AlreadyThere):
                    folder.write_once(folder.path(f"{object}"), b"%d" % number)
                    won += 1
            return won

        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(write, range(8))) == 20

    def test_another_store_is_not_looked_into(self, uri: str) -> None:
        store = new_store(uri, "q")
        with pytest.raises(BlockMissing):
            values(store, replace(written(store, 1), location="file:///elsewhere"))


class TestDamage:
    """A batch of several chunks, so that one of them can be good and the next bad."""

    def broken(self, uri: str, tmp_path: Path, name: str, position: int) -> tuple[ObjectStore, Block]:
        store = new_store(uri, "q")
        sink = store.sink(attempt_id(), 1)
        sink.write(0, pa.record_batch({"n": pa.arange(0, 600_000)}))
        (block,) = sink.commit()
        (path,) = tmp_path.rglob(name)
        data = bytearray(path.read_bytes())
        data[position] ^= 1
        path.write_bytes(data)
        return store, block

    @pytest.mark.parametrize("position", [0, 40, -1], ids=["header", "metadata", "body"])
    def test_of_a_chunk(self, uri: str, tmp_path: Path, position: int) -> None:
        store, block = self.broken(uri, tmp_path, "*.data", position)
        with pytest.raises(BlockDamaged) as caught:
            values(store, block)
        assert caught.value.attempt == block.attempt

    def test_of_the_index(self, uri: str, tmp_path: Path) -> None:
        # The name of a column, which nothing but the checksum of the index looks at.
        probe = new_store(f"{uri}/probe", "q")
        written(probe, 1)
        (marker,) = (tmp_path / "shuffle" / "probe").rglob("committed")
        data = marker.read_bytes()
        position = data.rindex(b"\1\0\0\0n\0") + 4 - len(data)
        shutil.rmtree(tmp_path / "shuffle")
        store, block = self.broken(uri, tmp_path, "committed", position)
        with pytest.raises(BlockDamaged, match="index"):
            values(store, block)

    def test_an_object_that_is_cut_short(self, uri: str, tmp_path: Path) -> None:
        store = new_store(uri, "q")
        block = written(store, *range(1000))
        (path,) = tmp_path.rglob("*.data")
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(BlockDamaged, match="ends too early"):
            values(store, block)


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process may grow beyond 1 MB, as if the disk were full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("small_files")
def test_a_full_disk_is_a_clear_error_and_leaves_nothing(uri: str, tmp_path: Path) -> None:
    store = new_store(uri, "q", compression="none")
    sink = store.sink(attempt_id(), 1)
    with pytest.raises(ShuffleRefused, match="cannot be written to file://") as caught:
        sink.write(0, pa.record_batch({"n": pa.arange(0, 3_000_000)}))
    assert caught.value.code == "SHUFFLE_FULL"
    sink.abort()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["lease"]
    assert values(store, written(store, 1, attempt=1)) == [1]


class TestQueries:
    def test_one_that_was_not_begun_is_refused(self, uri: str) -> None:
        with pytest.raises(BlockMissing):
            new_store(uri).sink(attempt_id(), 1)

    def test_a_worker_that_leaves_removes_nothing(self, uri: str) -> None:
        driver, worker = new_store(uri, "q"), new_store(uri)
        block = written(worker, 1)
        worker.leave(QueryId("q"))
        assert values(driver, block) == [1]
        with pytest.raises(BlockMissing):
            worker.sink(attempt_id(attempt=1), 1)

    def test_a_writer_whose_query_ended_elsewhere_is_refused_and_leaves_nothing(
        self, uri: str, tmp_path: Path
    ) -> None:
        driver, worker = new_store(uri, "q"), new_store(uri)
        sink = worker.sink(attempt_id(), 1)
        sink.write(0, pa.record_batch({"n": pa.arange(0, 600_000)}))
        driver.release(QueryId("q"))
        with pytest.raises(BlockMissing):
            sink.commit()
        sink.abort()
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]

    def test_what_a_dead_driver_left_is_removed_by_the_next(self, uri: str, tmp_path: Path) -> None:
        dead = new_store(uri, "q")
        block = written(dead, 1)
        lease = tmp_path / "shuffle" / "q" / "lease"
        new_store(uri, "young")
        assert lease.exists()
        os.utime(lease, (time.time() - 61, time.time() - 61))
        new_store(uri, "next")
        assert sorted(path.name for path in (tmp_path / "shuffle").iterdir()) == ["next", "young"]
        with pytest.raises(BlockMissing):
            values(dead, block)
        with pytest.raises(LeaseExpired, match="Run the query again"):
            dead.sink(attempt_id(attempt=1), 1)
        dead.close()

    def test_a_late_writer_does_not_bring_back_the_folder_of_a_query(self, uri: str, tmp_path: Path) -> None:
        driver, worker = new_store(uri, "q"), new_store(uri)
        sink = worker.sink(attempt_id(), 1)
        driver.release(QueryId("q"))
        with pytest.raises(LeaseExpired):
            sink.write(0, pa.record_batch({"n": pa.arange(0, 600_000)}))
        assert not list((tmp_path / "shuffle").iterdir())

    def test_what_a_late_writer_left_is_removed_when_it_is_old(self, uri: str, tmp_path: Path) -> None:
        """The lease was there when it looked, and the query was over when it wrote."""
        folders = [
            tmp_path / "shuffle" / query / "s0e0" / "t0" / "a0" for query in ("late", "young", "mixed")
        ]
        old = time.time() - 61
        for folder in folders:
            folder.mkdir(parents=True)
            (folder / f"{'0' * 16}.data").touch()
            (folder / "committed").touch()
        for path in (tmp_path / "shuffle" / "late").rglob("*"):
            os.utime(path, (old, old))
        os.utime(folders[2] / "committed", (old, old))
        new_store(uri, "next")
        assert sorted(path.name for path in (tmp_path / "shuffle").iterdir()) == ["mixed", "next", "young"]

    def test_folders_that_are_not_of_the_store_stay(self, uri: str, tmp_path: Path) -> None:
        old = time.time() - 10**6
        for name in ("table/part-0.parquet", "q/s0e0/t0/a0/notes.txt", "other/s0e0/readme"):
            path = tmp_path / "shuffle" / name
            path.parent.mkdir(parents=True)
            path.touch()
            os.utime(path, (old, old))
        (tmp_path / "shuffle" / "empty").mkdir()
        new_store(uri, "next")
        assert sorted(path.name for path in (tmp_path / "shuffle").iterdir()) == [
            "empty",
            "next",
            "other",
            "q",
            "table",
        ]

    def test_a_lease_is_renewed_and_not_brought_back(self, uri: str, tmp_path: Path) -> None:
        store = new_store(uri, "q", lease_seconds=0.15)
        lease = tmp_path / "shuffle" / "q" / "lease"
        before = lease.stat().st_mtime_ns
        deadline = time.monotonic() + 30
        while lease.stat().st_mtime_ns == before:
            assert time.monotonic() < deadline
        shutil.rmtree(lease.parent)
        while store.leased_queries:
            assert time.monotonic() < deadline
        assert not lease.exists()
        store.close()


def test_credentials_do_not_belong_into_options() -> None:
    for uri in ("s3://key:secret@bucket/x", "s3://bucket/x?secret_key=y"):
        with pytest.raises(ConfigError, match="environment") as caught:
            new_store(uri)
        assert "secret@" not in str(caught.value)
        assert "=y" not in str(caught.value)


def test_a_place_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        new_store("nonsense://there")


def test_a_dropped_reader_ends_its_threads(uri: str) -> None:
    store = new_store(uri, "q")
    sink = store.sink(attempt_id(), 1)
    sink.write(0, pa.record_batch({"n": pa.arange(0, 3_000_000)}))
    (block,) = sink.commit()
    batches = store.read(block)
    next(batches)
    assert isinstance(batches, Generator)
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("volley-objects")]
    store.close()
