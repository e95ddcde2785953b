# SPDX-License-Identifier: Apache-2.0
"""Room on shuffle servers: memory has a limit, disks are full, applications have quotas, readers are slow."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from helpers.service_calls import (
    MANY,
    QUERY,
    Calls,
    holders,
    kept_value,
    logs,
    numbers,
    values,
    written,
)
from helpers.waiting import eventually
from volley.errors import ShuffleRefused
from volley.ids import QueryId, StageId
from volley.rpc.shuffle_messages import KeepAlive
from volley.shuffle.chunks import checksum_of
from volley.shuffle.service.server_state import ShuffleServerSettings, ShuffleServerState
from volley.shuffle.service.storage import Storage
from volley.testing.contracts import attempt_id, batch_of
from volley.testing.services import serve_shuffle, service_store


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond this, as if the disk were full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class TestRoom:
    def test_memory_stays_below_its_limit_and_disk_takes_the_rest(self, tmp_path: Path) -> None:
        with serve_shuffle(tmp_path, memory_bytes=8 * 2**20) as (server,):
            store = service_store([server.address], "q", compression="none")
            seen = []
            sink = store.sink(attempt_id(), 2)
            for _ in range(10):
                for partition in range(2):
                    sink.write(partition, numbers(500_000))
                    seen.append(server.server_state.health().memory_bytes)
            blocks = sink.commit()
            assert max(seen) <= 8 * 2**20
            assert server.server_state.spilled_bytes > 0
            assert server.server_state.health().disk_bytes >= 80_000_000
            assert values(store, *blocks) == 20 * list(range(500_000))
            store.close()
            assert [path for path in (tmp_path / "s0").iterdir() if path.is_dir()] == []

    def test_past_the_watermark_the_oldest_chunk_goes_to_a_file(self, tmp_path: Path) -> None:
        storage = Storage((tmp_path,), 1000, watermark=0.8)
        chunks = []
        for byte in (b"a", b"b"):
            assert storage.reserve(350)
            data = pa.py_buffer(byte * 350)
            chunks.append(storage.put(StageId(QUERY, 0), 0, data, checksum_of(data)))
        assert storage.spilled_bytes == 0
        assert storage.reserve(200)
        assert storage.spilled_bytes == 350
        assert [chunk.place is not None for chunk in chunks] == [True, False]
        assert [storage.read(chunk).to_pybytes() for chunk in chunks] == [b"a" * 350, b"b" * 350]

    def test_who_sends_waits_for_room(self, tmp_path: Path) -> None:
        server_state = ShuffleServerState("keeper", ShuffleServerSettings((tmp_path,), 1000))
        server_state.keep_alive(KeepAlive("application", (QUERY,)))
        assert server_state.reserve(attempt_id(0), 900) == 900
        assert server_state.reserve(attempt_id(1), 900) == 0
        server_state.abort(attempt_id(0))
        assert server_state.reserve(attempt_id(1), 900) == 900
        server_state.close()

    def test_a_writer_goes_on_when_there_is_room(self, tmp_path: Path) -> None:
        with serve_shuffle(tmp_path, memory_bytes=2**20) as (server,):
            store = service_store([server.address], "q", compression="none")
            assert server.server_state.reserve(attempt_id(9), 2**20)
            with ThreadPoolExecutor(1) as writer:
                block = writer.submit(written, store, numbers(1000))
                eventually(lambda: server.server_state.counts["reservations_deferred"] > 0)
                assert server.server_state.counts["chunks_pushed"] == 0
                server.server_state.abort(attempt_id(9))
                assert values(store, block.result(120)) == list(range(1000))
            store.close()

    def test_a_server_that_has_no_room_for_long_is_left_for_another(self, tmp_path: Path) -> None:
        with serve_shuffle(tmp_path, 2, memory_bytes=2**20) as servers:
            addresses = [server.address for server in servers]
            store = service_store(addresses, "q", compression="none", room_seconds=0.1)
            first = holders(written(store, numbers(10)))[0]
            (full,) = [server for server in servers if server.address == first]
            assert full.server_state.reserve(attempt_id(9), 2**20)
            block = written(store, numbers(1000), task=1)
            assert first not in holders(block)
            assert values(store, block) == list(range(1000))
            store.close()

    def test_what_is_larger_than_the_memory_passes_alone(self, tmp_path: Path) -> None:
        with serve_shuffle(tmp_path, memory_bytes=1000) as (server,):
            store = service_store([server.address], "q")
            blocks = [written(store, numbers(), task) for task in range(3)]
            assert values(store, *blocks) == 3 * list(range(MANY))
            store.close()

    def test_an_application_has_its_quota_and_others_have_theirs(self, tmp_path: Path) -> None:
        with serve_shuffle(tmp_path, quota_bytes=2_000_000) as (server,):
            greedy = service_store([server.address], "q", compression="none")
            with pytest.raises(ShuffleRefused) as caught:
                written(greedy, numbers())
            assert caught.value.code == "SHUFFLE_UNAVAILABLE"
            assert "has used its 2000000 bytes" in str(caught.value)
            modest = service_store([server.address], "other", compression="none")
            sink = modest.sink(attempt_id(query="other"), 1)
            sink.write(0, batch_of(1))
            assert values(modest, *sink.commit()) == [1]
            greedy.close()
            modest.close()

    def test_a_full_disk_is_a_clear_error_and_the_server_lives_on(self, tmp_path: Path) -> None:
        with file_size_limit(1_000_000), serve_shuffle(tmp_path) as (server,):
            store = service_store([server.address], "q", compression="none")
            sink = store.sink(attempt_id(), 1)
            sink.write(0, numbers(400_000))
            with pytest.raises(ShuffleRefused, match=r"no room|cannot keep"):
                sink.commit()
            sink.abort()
            assert server.server_state.health().held_bytes == 0
            assert sum(log.stat().st_size for log in logs(tmp_path)) == 0, "what did not fit was left"
            block = written(store, batch_of(1), task=1)
            assert values(store, block) == [1]
            store.close()

    def test_another_disk_takes_over(self, tmp_path: Path) -> None:
        """Also in the middle of a partition, which then lies on both."""
        disks = (tmp_path / "one", tmp_path / "other")
        for disk in disks:
            disk.mkdir()
        server_state = ShuffleServerState("keeper", ShuffleServerSettings(disks, 2**26))
        server_state.keep_alive(KeepAlive("application", (QUERY,)))
        first = Calls(server_state, attempt_id(0), 1, rows=10_000)
        first.all()
        (log,) = logs(tmp_path)
        second = Calls(server_state, attempt_id(1), 2, rows=10_000)
        with file_size_limit(log.stat().st_size):
            second.all()
        assert len(logs(tmp_path)) == 2
        server_state.close()
        again = ShuffleServerState("again", ShuffleServerSettings(disks, 2**26))
        assert [kept_value(again, calls) for calls in (first, second)] == [1, 2]
        again.close()

    def test_another_server_takes_over_from_a_full_disk(self, tmp_path: Path) -> None:
        small = tmp_path / "s0"
        small.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("needs the right to mount a file system")
        try:
            with serve_shuffle(tmp_path, 2) as servers:
                addresses = [server.address for server in servers]
                store = service_store(addresses, "q", compression="none")
                blocks = [written(store, numbers(400_000), task) for task in range(4)]
                assert values(store, *blocks) == 4 * list(range(400_000))
                assert {holders(block) for block in blocks} == {(addresses[1],)}
                store.close()
        finally:
            subprocess.run(["umount", str(small)], check=True)

    def test_a_query_can_end_when_the_journal_cannot_be_written(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with serve_shuffle(tmp_path) as (server,):
            store = service_store([server.address], "q")
            written(store, batch_of(1))
            with file_size_limit((tmp_path / "s0" / "journal").stat().st_size):
                store.release(QUERY)
            assert "could not be written to the journal" in caplog.text
            assert server.server_state.health().held_bytes == 0
            assert logs(tmp_path) == []

    def test_a_query_does_not_begin_when_the_journal_cannot_be_written(self, tmp_path: Path) -> None:
        """It begins with the next call: what it commits then is there after a restart."""
        state = ShuffleServerState("full", ShuffleServerSettings((tmp_path,), 2**26))
        with file_size_limit((tmp_path / "journal").stat().st_size):
            assert state.keep_alive(KeepAlive("application", (QUERY,))).expired == ()
        assert state.empty
        state.keep_alive(KeepAlive("application", (QUERY,)))
        kept = Calls(state, attempt_id(), 7)
        kept.all()
        state.close()
        again = ShuffleServerState("again", ShuffleServerSettings((tmp_path,), 2**26))
        assert kept_value(again, kept) == 7
        again.close()

    def test_the_journal_does_not_grow_for_ever(self, tmp_path: Path) -> None:
        settings = ShuffleServerSettings((tmp_path,), 2**26, compact_bytes=5_000)
        server_state = ShuffleServerState("keeper", settings)
        server_state.keep_alive(KeepAlive("application", (QUERY,)))
        kept = Calls(server_state, attempt_id(), 7)
        kept.all()
        for number in range(100):
            query = f"q{number}"
            server_state.keep_alive(KeepAlive("application", (QueryId(query),)))
            Calls(server_state, attempt_id(query=query)).all()
            server_state.release(QueryId(query))
        # Ends of queries are remembered, in some 100 bytes each; commits that nobody needs are not.
        assert (tmp_path / "journal").stat().st_size < 40_000
        server_state.close()
        again = ShuffleServerState("again", ShuffleServerSettings((tmp_path,), 2**26))
        assert kept_value(again, kept) == 7
        again.close()

    def test_a_slow_reader_costs_nothing(self, tmp_path: Path) -> None:
        with serve_shuffle(tmp_path) as (server,):
            store = service_store([server.address], "q", compression="none")
            rows = 12_000_000
            block = written(store, numbers(rows))
            batches = store.read(block)
            next(batches)
            before = -1
            while before != server.server_state.counts["bytes_read"]:
                before = server.server_state.counts["bytes_read"]
                time.sleep(0.3)
            # What is read ahead and what the network holds, of 96 MB.
            assert before < 72 * 2**20
            assert sum(batch.num_rows for batch in batches) > rows - 1_000_000
            store.close()

    def test_empty_and_huge_partitions(self, tmp_path: Path) -> None:
        with serve_shuffle(tmp_path, 3, memory_bytes=4 * 2**20) as servers:
            store = service_store([server.address for server in servers], "q", replicas=2)
            sink = store.sink(attempt_id(), 200)
            sink.write(117, numbers(6_000_000))
            blocks = sink.commit()
            assert [block.rows for block in blocks if block.partition != 117] == [0] * 199
            assert values(store, *(blocks[:117] + blocks[118:])) == []
            read = pa.Table.from_batches(list(store.read(blocks[117])))
            assert read.column(0).equals(pa.chunked_array([pa.arange(0, 6_000_000)]))
            store.close()

    def test_ranges_of_a_partition_are_read_by_several_at_once(self, tmp_path: Path) -> None:
        with serve_shuffle(tmp_path, 3) as servers:
            addresses = [server.address for server in servers]
            store = service_store(addresses, "q", replicas=2)
            blocks = [written(store, numbers(200_000), task) for task in range(6)]
            assert len({block.location for block in blocks}) == 1, "a partition has one home"
            with ThreadPoolExecutor(3) as readers:
                ranges = readers.map(
                    lambda part: values(service_store(addresses), *part),
                    (blocks[:2], blocks[2:4], blocks[4:]),
                )
                assert list(ranges) == 3 * [2 * list(range(200_000))]
            store.close()
