# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with exchanged data is a typed error that says where, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from volley.errors import BlockDamaged, BlockMissing, SpillDiskFull
from volley.ids import QueryId
from volley.shuffle.base import Block, BlockRequest
from volley.shuffle.config import RetryPolicy
from volley.shuffle.location import Location
from volley.shuffle.worker_store import WorkerStore
from volley.testing.contracts import attempt_id
from volley.testing.holders import BlockServer, Frame, Holder, SplitStore, connect, new_store, serve_store

# More than one chunk.
MANY = 1_500_000


def numbers(count: int = MANY) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.arange(0, count)})


def written(store: WorkerStore | SplitStore, batch: pa.RecordBatch | None = None, task: int = 0) -> Block:
    sink = store.sink(attempt_id(task), 1)
    sink.write(0, numbers() if batch is None else batch)
    (block,) = sink.commit()
    return block


def values(store: WorkerStore, block: Block) -> list[int]:
    return [value for batch in store.read(block) for value in batch.column(0).to_pylist()]


def reader(directory: Path, **options: object) -> WorkerStore:
    return new_store(Location.here("nowhere"), [directory], **options)


def open_segments() -> dict[int, str]:
    """The unnamed files that this process has open, by descriptor."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:
            continue
        if "volley-shuffle" in target or target.endswith("(deleted)"):
            found[int(entry.name)] = target
    return found


@contextmanager
def flipped_byte(position: int) -> Iterator[None]:
    """Damages what the one output in this block has written so far, before it is sealed."""
    before = open_segments()
    yield
    (descriptor,) = open_segments().keys() - before.keys()
    (byte,) = os.pread(descriptor, 1, position)
    os.pwrite(descriptor, bytes([byte ^ 1]), position)


class TestDamage:
    @pytest.mark.parametrize("memory_limit_bytes", [2**30, 0], ids=["memory", "disk"])
    @pytest.mark.parametrize("way", ["own", "mapped", "flight"])
    def test_a_flipped_byte_is_found(self, tmp_path: Path, memory_limit_bytes: int, way: str) -> None:
        with serve_store([tmp_path], memory_limit_bytes=memory_limit_bytes) as store:
            sink = store.sink(attempt_id(), 2)
            with flipped_byte(3_000_000 if memory_limit_bytes else 300_000):
                sink.write(1, numbers())
            _, block = sink.commit()
            side = store if way == "own" else reader(tmp_path, map_same_host=way == "mapped")
            with pytest.raises(BlockDamaged, match=r"partition 1 of q/s0/t0/a0 on .*chunk 0") as caught:
                values(side, block)
            assert caught.value.attempt == block.attempt

    def test_a_damaged_index_is_found(self, tmp_path: Path) -> None:
        with serve_store([tmp_path]) as store:
            block = replace(written(store), checksum=1)
            with pytest.raises(BlockDamaged, match="index of partition 0 of q/s0/t0/a0"):
                values(reader(tmp_path), block)

    def test_a_file_that_was_cut_short_is_found(self, tmp_path: Path) -> None:
        with serve_store([tmp_path], memory_limit_bytes=0) as store:
            before = open_segments()
            block = written(store)
            (descriptor,) = open_segments().keys() - before.keys()
            os.ftruncate(descriptor, 100_000)
            with pytest.raises(BlockDamaged, match="partition 0 of q/s0/t0/a0"):
                values(store, block)

    def test_sealed_memory_cannot_be_changed_by_anyone(self, tmp_path: Path) -> None:
        with serve_store([tmp_path]) as store:
            before = open_segments()
            block = written(store)
            (descriptor,) = open_segments().keys() - before.keys()
            with pytest.raises(PermissionError):
                os.pwrite(descriptor, b"x", 0)
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, 0)
            assert len(values(store, block)) == MANY


class TestHolderGone:
    @pytest.mark.parametrize("memory_limit_bytes", [2**30, 0], ids=["memory", "disk"])
    def test_kill_9_leaves_nothing_behind(self, tmp_path: Path, memory_limit_bytes: int) -> None:
        shared_before = set(Path("/dev/shm").iterdir())
        holder = Holder([tmp_path], memory_limit_bytes=memory_limit_bytes)
        store = SplitStore(holder, reader(tmp_path))
        block = written(store)
        batches = store.read(block)
        first = next(batches)
        open_sink = store.sink(attempt_id(1), 1)
        open_sink.write(0, numbers())
        holder.kill()
        assert list(tmp_path.iterdir()) == []
        assert set(Path("/dev/shm").iterdir()) <= shared_before
        # Who has the files open keeps them; who comes later learns at once that they are gone.
        assert first.num_rows + sum(batch.num_rows for batch in batches) == MANY
        with pytest.raises(BlockMissing, match="which has ended") as caught:
            list(store.read(block))
        assert caught.value.attempt == block.attempt

    def test_a_stream_from_a_killed_holder_is_a_missing_block(self, tmp_path: Path) -> None:
        holder = Holder([tmp_path])
        store = SplitStore(holder, reader(tmp_path, map_same_host=False, fetch_budget_bytes=1))
        block = written(store, numbers(4 * MANY))
        batches = store.read(block)
        next(batches)
        holder.kill()
        with pytest.raises(BlockMissing, match="its process has ended"):
            list(batches)

    def test_a_stopped_holder_does_not_stop_a_reader_for_ever(self, tmp_path: Path) -> None:
        holder = Holder([tmp_path])
        store = SplitStore(holder, reader(tmp_path, map_same_host=False, retry=RetryPolicy(1, 0.01, 0.3)))
        block = written(store)
        holder.signal(signal.SIGSTOP)
        try:
            with pytest.raises(BlockMissing, match="2 tries failed"):
                list(store.read(block))
        finally:
            holder.kill()

    def test_a_pid_that_is_used_again_is_not_believed(self, tmp_path: Path) -> None:
        with serve_store([tmp_path]) as store:
            block = written(store)
            earlier = replace(store.location, started=store.location.started - 1)
            with pytest.raises(BlockMissing, match="which has ended"):
                values(reader(tmp_path), replace(block, location=str(earlier)))

    def test_a_descriptor_that_is_used_again_is_not_believed(self, tmp_path: Path) -> None:
        with serve_store([tmp_path]) as store:
            gone = written(store)
            store.release(QueryId("q"))
            sink = store.sink(attempt_id(query="r"), 1)
            sink.write(0, numbers())
            (other,) = sink.commit()
            assert gone.handle.split(":")[0] == other.handle.split(":")[0]
            with pytest.raises(BlockMissing) as caught:
                values(reader(tmp_path), gone)
            # Not a damaged one: there is nothing wrong with the file that is there now.
            assert not isinstance(caught.value, BlockDamaged)

    @pytest.mark.parametrize("elsewhere", [{"boot": "0" * 8}, {"namespace": 1}], ids=["machine", "container"])
    def test_files_of_another_host_are_not_looked_for_here(
        self, tmp_path: Path, elsewhere: dict[str, Any]
    ) -> None:
        with BlockServer(lambda here: new_store(replace(here, **elsewhere), [tmp_path])) as server:
            asked: list[Location] = []

            def ask(holder: Location) -> flight.FlightClient:
                asked.append(holder)
                return connect(holder)

            assert len(values(reader(tmp_path, connect=ask), written(server.store))) == MANY
            assert asked == [server.store.location]


class TestRetries:
    def test_a_broken_stream_goes_on_where_it_broke(self, tmp_path: Path) -> None:
        with Breaking(tmp_path, breaks_after=[1, 3, 2]) as server:
            blocks = [written(server.store, task=task) for task in range(2)]
            side = reader(tmp_path, map_same_host=False, retry=RetryPolicy(1, 0.01, 10.0))
            read = [value for batch in side.read_many(blocks) for value in batch.column(0).to_pylist()]
        assert read == 2 * list(range(MANY))
        assert server.calls == 4

    def test_a_call_whose_time_is_up_has_not_failed_when_something_came(self, tmp_path: Path) -> None:
        time_is_up = flight.FlightTimedOutError("time is up")
        with Breaking(tmp_path, breaks_after=[2, 2], error=time_is_up) as server:
            side = reader(tmp_path, map_same_host=False, retry=RetryPolicy(0, 0.01, 10.0))
            assert values(side, written(server.store)) == list(range(MANY))
        assert server.calls == 3

    def test_after_the_last_try_the_block_is_missing_and_the_cause_is_named(self, tmp_path: Path) -> None:
        with Breaking(tmp_path, breaks_after=[0] * 10) as server:
            side = reader(tmp_path, map_same_host=False, retry=RetryPolicy(3, 0.01, 10.0))
            with pytest.raises(BlockMissing, match=r"4 tries failed, .*broken on purpose"):
                values(side, written(server.store))
        assert server.calls == 4

    def test_a_holder_that_does_not_know_us_is_asked_once(self, tmp_path: Path) -> None:
        refusal = flight.FlightUnauthenticatedError("no")
        with Breaking(tmp_path, breaks_after=[0] * 10, error=refusal) as server:
            side = reader(tmp_path, map_same_host=False, retry=RetryPolicy(3, 0.01, 10.0))
            with pytest.raises(BlockMissing):
                values(side, written(server.store))
        assert server.calls == 1

    def test_what_cannot_be_understood_is_an_error_too(self, tmp_path: Path) -> None:
        class Babbling(BlockServer):
            def frames(self, request: BlockRequest) -> Iterator[Frame]:
                for batch, _ in super().frames(request):
                    yield batch, b"?"

        with Babbling(lambda location: new_store(location, [tmp_path])) as server:
            block = written(server.store)
            with pytest.raises(BlockMissing, match="cannot be read from"):
                values(reader(tmp_path, map_same_host=False), block)

    def test_delays_grow_to_a_cap_and_differ(self) -> None:
        retry_policy = RetryPolicy(attempts=20, delay_seconds=1.0, stall_seconds=1)
        for failures, longest in ((1, 1), (2, 2), (4, 8), (20, 30)):
            delays = {retry_policy.delay(failures) for _ in range(50)}
            assert longest / 2 <= min(delays) < max(delays) <= longest


class Breaking(BlockServer):
    """Its n-th stream breaks after so many frames."""

    def __init__(self, directory: Path, breaks_after: list[int], error: Exception | None = None) -> None:
        super().__init__(lambda location: new_store(location, [directory]))
        self._breaks_after = breaks_after
        self._error = error or flight.FlightUnavailableError("broken on purpose")
        self.calls = 0

    def frames(self, request: BlockRequest) -> Iterator[Frame]:
        self.calls += 1
        last = self._breaks_after.pop(0) if self._breaks_after else None
        for number, item in enumerate(super().frames(request)):
            if number == last:
                raise self._error
            yield item


class TestFullDisk:
    @pytest.fixture
    def largest_file_bytes(self) -> Iterator[int]:
        """No file of this process may grow beyond it, as if the disk were full."""
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
        yield 200_000
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    def test_it_is_a_clear_error(self, tmp_path: Path, largest_file_bytes: int) -> None:
        store = reader(tmp_path, memory_limit_bytes=0, compression="none")
        sink = store.sink(attempt_id(3), 1)
        with pytest.raises(SpillDiskFull) as caught:
            sink.write(0, numbers())
        sink.abort()
        assert caught.value.attempt == attempt_id(3)
        assert caught.value.directories == (tmp_path,)
        assert caught.value.needed_bytes > largest_file_bytes
        assert str(tmp_path) in str(caught.value)
        assert "memoryFraction" in str(caught.value)
        assert store.held_bytes == 0

    def test_another_directory_takes_over(self, tmp_path: Path, largest_file_bytes: int) -> None:
        directories = [tmp_path / "first", tmp_path / "second"]
        for directory in directories:
            directory.mkdir()
        store = new_store(
            Location.here("nowhere"),
            directories,
            memory_limit_bytes=0,
            compression="none",
            max_message_bytes=60_000,
        )
        block = written(store, numbers(40_000))
        assert values(store, block) == list(range(40_000))
        with pytest.raises(SpillDiskFull):
            store.sink(attempt_id(1), 1).write(0, numbers(60_000))

    def test_a_disk_without_room(self, tmp_path: Path) -> None:
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("needs the right to mount a file system")
        try:
            store = reader(tmp_path, memory_limit_bytes=0, compression="none")
            sink = store.sink(attempt_id(), 1)
            with pytest.raises(SpillDiskFull, match="Free space there"):
                sink.write(0, numbers())
            sink.abort()
            assert os.statvfs(tmp_path).f_bavail == os.statvfs(tmp_path).f_blocks
        finally:
            subprocess.run(["umount", str(tmp_path)], check=True)

    def test_no_directory_at_all(self, tmp_path: Path) -> None:
        store = new_store(Location.here("nowhere"), [], memory_limit_bytes=0)
        with pytest.raises(SpillDiskFull, match="none is configured"):
            store.sink(attempt_id(), 1).write(0, numbers())


class TestReaders:
    def test_a_reader_that_does_not_read_stops_the_stream(self, tmp_path: Path) -> None:
        with Counting(tmp_path) as server:
            block = written(server.store, numbers(10_000_000))
            side = reader(tmp_path, map_same_host=False, fetch_budget_bytes=4 * 2**20)
            batches = side.read(block)
            next(batches)
            server.wait_until_it_stands_still()
            # The budget, what the network holds and a message on either side: a few of the 80 megabytes.
            assert server.frames_sent < 40
            assert sum(batch.num_rows for batch in batches) > 9_000_000
            assert server.frames_sent > 76

    def test_an_abandoned_reader_ends_its_stream(self, tmp_path: Path) -> None:
        with serve_store([tmp_path]) as store:
            block = written(store, numbers(10_000_000))
            side = reader(tmp_path, map_same_host=False, fetch_budget_bytes=1)
            batches = side.read(block)
            next(batches)
            assert fetching()
            del batches
            gc.collect()
            assert not fetching()

    def test_release_wakes_who_waits(self, tmp_path: Path) -> None:
        holder = Holder([tmp_path])
        side = reader(tmp_path, map_same_host=False, retry=RetryPolicy(1, 0.01, 60.0))
        block = written(SplitStore(holder, side))
        holder.signal(signal.SIGSTOP)
        caught: list[BaseException] = []

        def read() -> None:
            try:
                values(side, block)
            except BlockMissing as error:
                caught.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        while not fetching():
            pass
        side.release(QueryId("q"))
        thread.join(120)
        holder.kill()
        assert len(caught) == 1
        assert "is over" in str(caught[0])

    def test_release_frees_files_and_memory(self, tmp_path: Path) -> None:
        before = open_segments().keys()
        store = reader(tmp_path, memory_limit_bytes=8 * 2**20)
        block = written(store)
        sink = store.sink(attempt_id(1), 1)
        sink.write(0, numbers())
        batches = store.read(block)
        next(batches)
        usage = store.usage(QueryId("q"))
        assert usage.memory_bytes > 0
        assert usage.spilled_bytes > 0
        store.release(QueryId("q"))
        # A reader in the middle goes on: its pages are freed when it lets go of them.
        assert sum(batch.num_rows for batch in batches) > 0
        del batches
        gc.collect()
        assert open_segments().keys() == before
        assert (store.held_bytes, store.memory_bytes) == (0, 0)


class Counting(BlockServer):
    """Counts the frames that the network has taken."""

    def __init__(self, directory: Path) -> None:
        super().__init__(lambda location: new_store(location, [directory], max_message_bytes=2**20))
        self._moved = threading.Condition()
        self.frames_sent = 0

    def wait_until_it_stands_still(self) -> None:
        with self._moved:
            while self._moved.wait(0.5):
                pass

    def frames(self, request: BlockRequest) -> Iterator[Frame]:
        for item in super().frames(request):
            yield item
            with self._moved:
                self.frames_sent += 1
                self._moved.notify_all()


def fetching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "volley-fetch"]
