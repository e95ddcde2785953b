"""What goes wrong with a shuffle service: the right rows or a typed error, and nothing left behind."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from click.testing import CliRunner

from volley.cli.main import cli
from volley.cluster import LocalCluster
from volley.errors import BlockDamaged, BlockMissing, ConfigError, LeaseExpired, QueryError, ShuffleRefused
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.security import Security
from volley.shuffle.base import Block, BlockRequest
from volley.shuffle.chunks import Chunk, Index, checksum_of, seal
from volley.shuffle.fetch import Patience
from volley.shuffle.frames import Kind, unframe
from volley.shuffle.service.daemon import ServiceDaemon, ServiceSettings
from volley.shuffle.service.journal import Journal
from volley.shuffle.service.keeper import Keeper, KeeperSettings
from volley.shuffle.service.ledger import Refusal
from volley.shuffle.service.location import ServiceLocation
from volley.shuffle.service.messages import (
    CommitAttempt,
    CommittedBlock,
    KeepAlive,
    PushChunks,
    PushedChunk,
    QueryBegan,
)
from volley.shuffle.service.placement import ranked
from volley.shuffle.service.storage import _append
from volley.shuffle.service.store import ServiceStore
from volley.testing.contracts import attempt_id, batch_of
from volley.testing.proxy import LossyProxy
from volley.testing.services import PATIENCE, Served, served, service_store
from volley.transport.control import AskHealth

# Several chunks, which lz4 cannot make much smaller.
MANY = 1_500_000
QUERY = QueryId("q")


def numbers(count: int = MANY) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.arange(0, count)})


def written(store: ServiceStore, batch: pa.RecordBatch, task: int = 0, attempt: int = 0) -> Block:
    sink = store.sink(attempt_id(task, attempt), 1)
    sink.write(0, batch)
    (block,) = sink.commit()
    return block


def values(store: ServiceStore, *blocks: Block) -> list[int]:
    return [value for batch in store.read_many(blocks) for value in batch.column(0).to_pylist()]


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def holders(block: Block) -> tuple[str, ...]:
    return ServiceLocation.parse(block.location).addresses


# ------------------------------------------------------------------------------------------------ lost answers


@pytest.mark.parametrize("word", ["chunks_pushed", "commits"])
def test_a_lost_acknowledgement_doubles_nothing(tmp_path: Path, word: str) -> None:
    with served(tmp_path) as (server,):
        proxy = LossyProxy(server.server.port, lambda: server.keeper.counts[word] > 0)
        try:
            store = service_store([proxy.address], "q")
            block = written(store, batch_of(1, 2, 3))
            assert proxy.lost == 1
            assert values(store, block) == [1, 2, 3]
            assert server.keeper.counts["chunks_pushed"] == 1
            assert server.keeper.counts["commits"] == 1
            # The word was said twice and heard once.
            assert server.keeper.counts["chunks_repeated"] == (word == "chunks_pushed")
            store.close()
        finally:
            proxy.close()


# ---------------------------------------------------------------------------------------------------- fencing


class Calls:
    """Every call of an attempt, made directly to a keeper."""

    def __init__(self, keeper: Keeper, attempt: AttemptId, value: int = 1) -> None:
        self.keeper = keeper
        self.attempt = attempt
        batch = batch_of(value)
        self.data = seal(batch, "none")
        chunk = Chunk(0, 0, self.data.data.size, 1, self.data.checksum)
        index = Index((), (chunk,), batch.schema).pack()
        self.block = Block(attempt, 0, "", 1, 8, checksum_of(index))
        self._commit = CommitAttempt(attempt, (CommittedBlock(0, index),))

    def reserve(self) -> None:
        assert self.keeper.reserve(self.attempt, self.data.data.size)

    def push(self, sequence: int = 0) -> None:
        chunk = PushedChunk(0, sequence, self.data.data.size, self.data.checksum)
        self.keeper.push(PushChunks(self.attempt, (chunk,)), self.data.data)

    def commit(self) -> None:
        self.keeper.commit(self._commit)

    def all(self) -> None:
        self.reserve()
        self.push()
        self.commit()

    def read(self) -> str:
        """The kind of the first frame, and what it says when it is an error."""
        batch, header = next(self.keeper.frames(BlockRequest((self.block,))))
        kind, data = unframe(batch, pa.py_buffer(header))
        return "" if kind.kind is Kind.INDEX else data.to_pybytes().decode()


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    found = Keeper("keeper", KeeperSettings((tmp_path,), 2**26))
    found.keep_alive(KeepAlive("application", (QUERY,)))
    yield found
    found.close()


def of_epoch(epoch: int, attempt: int = 0) -> AttemptId:
    return AttemptId(TaskId(StageId(QUERY, 0, epoch), 0), attempt)


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(Refusal) as caught:
        call()
    return caught.value.code


class TestFencing:
    def test_an_old_epoch_is_refused_on_every_call(self, keeper: Keeper) -> None:
        old, other = Calls(keeper, of_epoch(0)), Calls(keeper, of_epoch(0, 1))
        old.all()
        other.reserve()
        assert old.read() == ""
        Calls(keeper, of_epoch(1)).all()
        for call in (other.reserve, other.push, other.commit, old.commit):
            assert code_of(call) == "SHUFFLE_STALE_EPOCH"
        assert old.read().startswith("SHUFFLE_STALE_EPOCH")
        # What nobody may read any more is not kept either.
        assert keeper.health().attempts == 1

    def test_a_query_that_is_over_is_refused_on_every_call(self, keeper: Keeper) -> None:
        late = Calls(keeper, attempt_id())
        late.all()
        keeper.release(QUERY)
        again = Calls(keeper, attempt_id(attempt=1))
        for call in (again.reserve, again.push, again.commit, late.commit):
            assert code_of(call) == "SHUFFLE_QUERY_OVER"
        assert late.read().startswith("SHUFFLE_QUERY_OVER")

    def test_a_query_that_never_began_is_refused_on_every_call(self, keeper: Keeper) -> None:
        unknown = Calls(keeper, attempt_id(query="unknown"))
        for call in (unknown.reserve, unknown.push, unknown.commit):
            assert code_of(call) == "SHUFFLE_UNKNOWN_QUERY"
        assert unknown.read().startswith("SHUFFLE_UNKNOWN_QUERY")

    def test_a_closed_attempt_takes_nothing_more(self, keeper: Keeper) -> None:
        committed, aborted = Calls(keeper, attempt_id(0)), Calls(keeper, attempt_id(1))
        committed.all()
        aborted.reserve()
        keeper.abort(aborted.attempt)
        for calls in (committed, aborted):
            for call in (calls.reserve, lambda calls=calls: calls.push(1)):
                assert code_of(call) == "SHUFFLE_ATTEMPT_CLOSED"
        assert code_of(aborted.commit) == "SHUFFLE_ATTEMPT_CLOSED"
        assert keeper.health().held_bytes == committed.data.data.size

    def test_of_two_that_race_the_first_commit_wins(self, keeper: Keeper) -> None:
        first, second = Calls(keeper, attempt_id(attempt=0), 1), Calls(keeper, attempt_id(attempt=1), 2)
        for calls in (first, second):
            calls.reserve()
            calls.push()
        first.commit()
        assert code_of(second.commit) == "SHUFFLE_COMMIT_LOST"
        assert first.read() == ""
        assert "SHUFFLE_BLOCK_MISSING" in second.read()
        # A third that began afterwards is made by somebody who has given the first up.
        Calls(keeper, attempt_id(attempt=2)).all()

    def test_an_attempt_does_not_pass_a_later_one(self, keeper: Keeper) -> None:
        Calls(keeper, attempt_id(attempt=1)).all()
        assert code_of(Calls(keeper, attempt_id(attempt=0)).reserve) == "SHUFFLE_COMMIT_LOST"

    def test_nothing_is_sent_without_room_for_it(self, keeper: Keeper) -> None:
        calls = Calls(keeper, attempt_id())
        assert code_of(calls.push) == "SHUFFLE_NOT_RESERVED"
        calls.reserve()
        calls.push()
        assert code_of(lambda: calls.push(1)) == "SHUFFLE_NOT_RESERVED"

    def test_a_commit_of_what_did_not_arrive_is_refused(self, keeper: Keeper) -> None:
        calls = Calls(keeper, attempt_id())
        calls.reserve()
        assert code_of(calls.commit) == "SHUFFLE_DAMAGED_ON_WAY"
        assert "SHUFFLE_BLOCK_MISSING" in calls.read()

    def test_a_chunk_that_was_damaged_on_its_way_is_refused(self, keeper: Keeper) -> None:
        calls = Calls(keeper, attempt_id())
        calls.reserve()
        broken = bytearray(calls.data.data.to_pybytes())
        broken[-1] ^= 1
        calls.data = replace(calls.data, data=pa.py_buffer(bytes(broken)))
        assert code_of(calls.push) == "SHUFFLE_DAMAGED_ON_WAY"


def _zombie(pipe: Connection, address: str) -> None:
    store = service_store([address])
    sink = store.sink(attempt_id(attempt=0), 1)
    sink.write(0, numbers(1_000_000))
    pipe.send("written")
    pipe.recv()
    try:
        sink.commit()
        pipe.send("committed")
    except QueryError as error:
        pipe.send(error.code)


def test_a_zombie_that_wakes_after_its_rival_has_committed(tmp_path: Path) -> None:
    processes = multiprocessing.get_context("spawn")
    with served(tmp_path) as (server,):
        store = service_store([server.address], "q")
        ours, theirs = processes.Pipe()
        process = processes.Process(target=_zombie, args=(theirs, server.address), daemon=True)
        process.start()
        assert ours.recv() == "written"
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        block = written(store, batch_of(7), attempt=1)
        ours.send("commit")
        os.kill(process.pid, signal.SIGCONT)
        assert ours.recv() == "SHUFFLE_COMMIT_LOST"
        process.join()
        assert values(store, block) == [7]
        store.close()


# ------------------------------------------------------------------------------------------ kill -9 and restart


def test_what_was_committed_is_there_after_a_kill_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory as kill -9 would leave it, before and after each write of a commit."""
    images: list[tuple[bool, Path]] = []
    acknowledged = False

    def image() -> None:
        images.append((acknowledged, tmp_path / f"image{len(images)}"))
        shutil.copytree(tmp_path / "kept", images[-1][1])

    def around(write: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*arguments: object) -> object:
            image()
            answer = write(*arguments)
            image()
            return answer

        return wrapped

    (tmp_path / "kept").mkdir()
    keeper = Keeper("keeper", KeeperSettings((tmp_path / "kept",), 2**26))
    keeper.keep_alive(KeepAlive("application", (QUERY,)))
    before, calls = Calls(keeper, attempt_id(0), 1), Calls(keeper, attempt_id(1), 2)
    before.all()
    monkeypatch.setattr("volley.shuffle.service.storage._append", around(_append))
    monkeypatch.setattr(Journal, "append", around(Journal.append))
    calls.all()
    acknowledged = True
    image()
    monkeypatch.undo()
    keeper.close()
    assert len(images) >= 5
    for was_acknowledged, directory in images:
        # Files are named by where they were.
        shutil.rmtree(tmp_path / "kept")
        directory.rename(tmp_path / "kept")
        restarted = Keeper("again", KeeperSettings((tmp_path / "kept",), 2**26))
        try:
            assert _kept_value(restarted, before) == 1
            if was_acknowledged or restarted.health().committed == 2:
                assert _kept_value(restarted, calls) == 2
            else:
                assert "SHUFFLE_BLOCK_MISSING" in Calls(restarted, calls.attempt).read()
        finally:
            restarted.close()


def test_a_restart_counts_nothing_of_queries_that_are_over(tmp_path: Path) -> None:
    """Their records are in the journal until it is written anew, commits before the end of the query."""
    keeper = Keeper("keeper", KeeperSettings((tmp_path,), 2**26))
    keeper.keep_alive(KeepAlive("application", (QUERY,)))
    Calls(keeper, attempt_id(0), 1).all()
    keeper.release(QUERY)
    keeper.close()
    restarted = Keeper("again", KeeperSettings((tmp_path,), 2**26))
    health = restarted.health()
    restarted.close()
    assert (health.queries, health.held_bytes, health.disk_bytes) == (0, 0, 0)


def _kept_value(keeper: Keeper, calls: Calls) -> int:
    frames = list(keeper.frames(BlockRequest((calls.block,))))
    (_, index), (_, data) = (unframe(batch, pa.py_buffer(header)) for batch, header in frames)
    schema = Index.unpack(index, calls.block).schema
    return int(pa.ipc.read_record_batch(data, schema).column(0)[0].as_py())


@pytest.fixture(scope="module")
def services() -> Iterator[LocalCluster]:
    """Three servers in processes of their own."""
    with LocalCluster(0, cores=1, memory="64m", services=3) as running:
        yield running


def of_services(
    services: LocalCluster, query: str, replicas: int = 2, stall_seconds: float = 10.0
) -> ServiceStore:
    store = ServiceStore(
        [server.address for server in services.servers],
        replicas=replicas,
        security=services.security,
        memory_limit_bytes=2**26,
        compression="none",
        patience=Patience(1, 0.05, stall_seconds),
    )
    store.begin(QueryId(query))
    return store


def kill(services: LocalCluster, address: str) -> int:
    (number,) = [n for n, server in enumerate(services.servers) if server.address == address]
    services.servers[number].process.kill()
    services.servers[number].process.wait()
    return number


class TestProcesses:
    def test_every_block_is_there_after_kill_9_and_restart(self, services: LocalCluster) -> None:
        store = of_services(services, "restart", replicas=1)
        attempts = [attempt_id(task, query="restart") for task in range(4)]
        blocks = []
        for number, attempt in enumerate(attempts):
            sink = store.sink(attempt, 3)
            for partition in range(3):
                sink.write(partition, batch_of(number, partition))
            blocks += sink.commit()
        killed = [kill(services, server.address) for server in services.servers]
        services.restart_servers(*killed)
        assert values(store, *blocks) == [v for n in range(4) for p in range(3) for v in (n, p)]
        store.close()
        assert all(health and not health.queries for health in services.service_health())

    def test_a_server_is_killed_while_a_map_task_pushes(self, services: LocalCluster) -> None:
        store = of_services(services, "push")
        sink = store.sink(attempt_id(query="push"), 2)
        for partition in range(2):
            sink.write(partition, numbers())
        victim = sink._partitions[0].holders[0]
        number = kill(services, victim)
        try:
            for partition in range(2):
                sink.write(partition, numbers())
            blocks = sink.commit()
            assert all(victim not in holders(block) and len(holders(block)) == 2 for block in blocks)
            assert values(store, *blocks) == 4 * list(range(MANY))
        finally:
            services.restart_servers(number)
        store.close()

    def test_a_server_is_killed_while_a_reducer_reads(self, services: LocalCluster) -> None:
        store = of_services(services, "read")
        # More than is read ahead, so that the stream is under way when its server goes.
        rows = 8_000_000
        sink = store.sink(attempt_id(query="read"), 1)
        sink.write(0, numbers(rows))
        (block,) = sink.commit()
        batches = store.read(block)
        read = [next(batches)]
        number = kill(services, holders(block)[0])
        try:
            read += batches
        finally:
            services.restart_servers(number)
        assert pa.Table.from_batches(read).column(0).equals(pa.chunked_array([pa.arange(0, rows)]))
        store.close()

    def test_a_server_that_hangs_is_left_out(self, services: LocalCluster) -> None:
        store = of_services(services, "hang", stall_seconds=1.0)
        sink = store.sink(attempt_id(query="hang"), 1)
        sink.write(0, numbers())
        victim = sink._partitions[0].holders[0]
        (process,) = [server.process for server in services.servers if server.address == victim]
        process.send_signal(signal.SIGSTOP)
        try:
            sink.write(0, numbers())
            (block,) = sink.commit()
            assert victim not in holders(block)
            assert values(store, block) == 2 * list(range(MANY))
        finally:
            process.send_signal(signal.SIGCONT)
        store.close()

    def test_without_a_replica_it_is_an_error_that_names_the_attempt(self, services: LocalCluster) -> None:
        store = of_services(services, "alone", replicas=1)
        sink = store.sink(attempt_id(query="alone"), 1)
        sink.write(0, batch_of(1))
        (block,) = sink.commit()
        number = kill(services, holders(block)[0])
        try:
            with pytest.raises(BlockMissing) as caught:
                values(store, block)
            assert caught.value.attempt == block.attempt
        finally:
            services.restart_servers(number)
        store.close()


# ------------------------------------------------------------------------------------------------- corruption


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def logs(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.log"))


class TestDamage:
    @pytest.mark.parametrize("position", [0, 40, -1], ids=["header", "metadata", "body"])
    def test_of_one_replica_is_read_from_the_other(self, tmp_path: Path, position: int) -> None:
        # No memory: what is read comes from the files.
        with served(tmp_path, 2, memory_bytes=1) as servers:
            store = service_store([server.address for server in servers], "q", replicas=2)
            block = written(store, numbers(), 0)
            first = next(server for server in servers if server.address == holders(block)[0])
            drop_memory(first)
            (log,) = logs(tmp_path / first.keeper.name.split()[-1])
            flip(log, position)
            assert values(store, block) == list(range(MANY))
            store.close()

    @pytest.mark.parametrize("position", [0, 40, -1], ids=["header", "metadata", "body"])
    def test_of_all_replicas_is_an_error(self, tmp_path: Path, position: int) -> None:
        with served(tmp_path, 2, memory_bytes=1) as servers:
            store = service_store([server.address for server in servers], "q", replicas=2)
            block = written(store, numbers())
            for server in servers:
                drop_memory(server)
            for log in logs(tmp_path):
                flip(log, position)
            with pytest.raises(BlockDamaged) as caught:
                values(store, block)
            assert caught.value.attempt == block.attempt
            store.close()

    def test_a_replica_that_lost_its_file(self, tmp_path: Path) -> None:
        with served(tmp_path, 2, memory_bytes=1) as servers:
            store = service_store([server.address for server in servers], "q", replicas=2)
            block = written(store, numbers())
            for server in servers:
                drop_memory(server)
            (first, second) = logs(tmp_path)
            first.unlink()
            assert values(store, block) == list(range(MANY))
            second.unlink()
            with pytest.raises(BlockMissing):
                values(store, block)
            store.close()

    def test_replicas_that_differ_are_told_apart(self, tmp_path: Path) -> None:
        """One has other rows under the same attempt, as after a mix-up of disks: it is not asked for them twice."""
        with served(tmp_path, 2) as servers:
            addresses = [server.address for server in servers]
            store = service_store(addresses, "q", replicas=2)
            impostor = service_store([addresses[0]], replicas=1)
            other = written(impostor, batch_of(9))
            block = written(service_store([addresses[1]], replicas=1), batch_of(1, 2))
            both = replace(block, location=str(ServiceLocation((addresses[0], addresses[1]))))
            assert values(store, both) == [1, 2]
            with pytest.raises(BlockMissing):
                values(store, replace(block, location=other.location))
            store.close()

    @pytest.mark.parametrize("where", ["head", "middle", "end"])
    def test_of_the_journal_loses_what_it_said_and_no_more(self, tmp_path: Path, where: str) -> None:
        with served(tmp_path) as (server,):
            store = service_store([server.address], "q")
            blocks = [written(store, batch_of(task), task) for task in range(3)]
            port = server.server.port
        journal = tmp_path / "s0" / "journal"
        data = journal.read_bytes()
        starts = [at for at in range(len(data)) if data.startswith(b"VJ01", at)]
        # The first record says that the query began; the second is the commit of the first task.
        flip(journal, {"head": starts[1] + 5, "middle": starts[1] + 60, "end": starts[2] - 1}[where])
        restarted = Served(tmp_path / "s0", port)
        try:
            assert values(store, *blocks[1:]) == [1, 2]
            with pytest.raises(BlockMissing) as caught:
                values(store, blocks[0])
            assert caught.value.attempt == blocks[0].attempt
            store.close()
        finally:
            restarted.close()

    def test_a_record_that_says_something_else_is_left_out(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path / "journal")
        for name in ("first", "second"):
            journal.append(QueryBegan(QueryId(name), "x"))
        journal.close()
        flip(tmp_path / "journal", (tmp_path / "journal").read_bytes().index(b"first"))
        again = Journal(tmp_path / "journal")
        assert [record.query.value for record in again.read()] == ["second"]
        assert again.damaged == 1
        again.close()

    def test_a_torn_record_at_the_end_was_never_acknowledged(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path / "journal")
        journal.append(QueryBegan(QueryId("a"), "x"))
        whole = journal.size_bytes
        journal.append(QueryBegan(QueryId("b"), "x"))
        journal.close()
        os.truncate(tmp_path / "journal", whole + 10)
        again = Journal(tmp_path / "journal")
        assert [record.query.value for record in again.read()] == ["a"]
        assert again.damaged == 0
        again.append(QueryBegan(QueryId("c"), "x"))
        assert [record.query.value for record in again.read()] == ["a", "c"]
        again.close()


def drop_memory(server: Served) -> None:
    """As under pressure: what is in a file is no longer in memory."""
    storage = server.keeper._storage
    with storage._lock:
        storage._make_room(0)


# ----------------------------------------------------------------------------------------- room, and none left


class TestRoom:
    def test_memory_stays_below_its_limit_and_disk_takes_the_rest(self, tmp_path: Path) -> None:
        with served(tmp_path, memory_bytes=8 * 2**20) as (server,):
            store = service_store([server.address], "q", compression="none")
            seen = []
            sink = store.sink(attempt_id(), 2)
            for _ in range(10):
                for partition in range(2):
                    sink.write(partition, numbers(500_000))
                    seen.append(server.keeper.health().memory_bytes)
            blocks = sink.commit()
            assert max(seen) <= 8 * 2**20
            assert server.keeper.spilled_bytes > 0
            assert server.keeper.health().disk_bytes >= 80_000_000
            assert values(store, *blocks) == 20 * list(range(500_000))
            store.close()
            assert logs(tmp_path) == []

    def test_who_sends_waits_for_room(self, tmp_path: Path) -> None:
        keeper = Keeper("keeper", KeeperSettings((tmp_path,), 1000))
        keeper.keep_alive(KeepAlive("application", (QUERY,)))
        assert keeper.reserve(attempt_id(0), 900) == 900
        assert keeper.reserve(attempt_id(1), 900) == 0
        keeper.abort(attempt_id(0))
        assert keeper.reserve(attempt_id(1), 900) == 900
        keeper.close()

    def test_what_is_larger_than_the_memory_passes_alone(self, tmp_path: Path) -> None:
        with served(tmp_path, memory_bytes=1000) as (server,):
            store = service_store([server.address], "q")
            blocks = [written(store, numbers(), task) for task in range(3)]
            assert values(store, *blocks) == 3 * list(range(MANY))
            store.close()

    def test_an_application_has_its_quota_and_others_have_theirs(self, tmp_path: Path) -> None:
        with served(tmp_path, quota_bytes=2_000_000) as (server,):
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

    @pytest.fixture
    def small_files(self) -> Iterator[None]:
        """No file of this process may grow beyond 1 MB, as if the disk were full."""
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
        yield
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    @pytest.mark.usefixtures("small_files")
    def test_a_full_disk_is_a_clear_error_and_the_server_lives_on(self, tmp_path: Path) -> None:
        with served(tmp_path) as (server,):
            store = service_store([server.address], "q", compression="none")
            sink = store.sink(attempt_id(), 1)
            sink.write(0, numbers(400_000))
            with pytest.raises(ShuffleRefused, match=r"no room|cannot keep"):
                sink.commit()
            sink.abort()
            assert server.keeper.health().held_bytes == 0
            block = written(store, batch_of(1), task=1)
            assert values(store, block) == [1]
            store.close()

    def test_another_disk_or_another_server_takes_over(self, tmp_path: Path) -> None:
        small = tmp_path / "s0"
        small.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("needs the right to mount a file system")
        try:
            with served(tmp_path, 2) as servers:
                addresses = [server.address for server in servers]
                store = service_store(addresses, "q", compression="none")
                blocks = [written(store, numbers(400_000), task) for task in range(4)]
                assert values(store, *blocks) == 4 * list(range(400_000))
                assert {holders(block) for block in blocks} == {(addresses[1],)}
                store.close()
        finally:
            subprocess.run(["umount", str(small)], check=True)

    def test_a_query_can_end_when_the_journal_cannot_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(journal: Journal, record: object) -> None:
            raise OSError(errno.ENOSPC, "full")

        with served(tmp_path) as (server,):
            store = service_store([server.address], "q")
            written(store, batch_of(1))
            monkeypatch.setattr(Journal, "append", full)
            store.release(QUERY)
            assert server.keeper.health().held_bytes == 0
            assert logs(tmp_path) == []

    def test_the_journal_does_not_grow_for_ever(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("volley.shuffle.service.keeper._COMPACT_BYTES", 5_000)
        keeper = Keeper("keeper", KeeperSettings((tmp_path,), 2**26))
        keeper.keep_alive(KeepAlive("application", (QUERY,)))
        kept = Calls(keeper, attempt_id(), 7)
        kept.all()
        for number in range(100):
            query = f"q{number}"
            keeper.keep_alive(KeepAlive("application", (QueryId(query),)))
            Calls(keeper, attempt_id(query=query)).all()
            keeper.release(QueryId(query))
        # Ends of queries are remembered, in some 100 bytes each; commits that nobody needs are not.
        assert keeper._journal.size_bytes < 40_000
        keeper.close()
        again = Keeper("again", KeeperSettings((tmp_path,), 2**26))
        assert _kept_value(again, kept) == 7
        again.close()

    def test_a_slow_reader_costs_nothing(self, tmp_path: Path) -> None:
        with served(tmp_path) as (server,):
            store = service_store([server.address], "q", compression="none")
            rows = 12_000_000
            block = written(store, numbers(rows))
            batches = store.read(block)
            next(batches)
            before = -1
            while before != server.keeper.counts["bytes_read"]:
                before = server.keeper.counts["bytes_read"]
                time.sleep(0.3)
            # What is read ahead and what the network holds, of 96 MB.
            assert before < 48 * 2**20
            assert sum(batch.num_rows for batch in batches) > rows - 1_000_000
            store.close()

    def test_empty_and_huge_partitions(self, tmp_path: Path) -> None:
        with served(tmp_path, 3, memory_bytes=4 * 2**20) as servers:
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
        with served(tmp_path, 3) as servers:
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


# ----------------------------------------------------------------------------------------- leases and the end


class TestLeases:
    def test_what_a_dead_driver_left_is_removed(self, tmp_path: Path) -> None:
        with served(tmp_path, lease_seconds=0.2) as (server,):
            dead = service_store([server.address], "q")
            block = written(dead, numbers())
            assert dead._renewal is not None
            dead._renewal.stop()
            deadline = server.keeper._deadlines[QUERY]
            eventually(lambda: time.monotonic() > deadline)
            server.keeper.expire()
            assert server.keeper.health().held_bytes == 0
            assert logs(tmp_path) == []
            # A driver that was only paused gets a clear error, and never fewer rows.
            with pytest.raises(BlockMissing, match="SHUFFLE_LEASE_EXPIRED"):
                values(dead, block)
            with pytest.raises(LeaseExpired, match="run the query again"):
                written(dead, batch_of(1), task=1)
            assert not dead._tell() or QUERY not in dead._mine

    def test_a_driver_that_lives_keeps_its_data(self, tmp_path: Path) -> None:
        with served(tmp_path, lease_seconds=0.3) as (server,):
            store = service_store([server.address], "q")
            store._lease_seconds = 0.3
            block = written(store, batch_of(1))
            first = server.keeper._deadlines[QUERY]
            eventually(lambda: time.monotonic() > first + 0.3)
            server.keeper.expire()
            assert values(store, block) == [1]
            store.close()

    def test_a_server_that_was_paused_itself_does_not_end_the_query(self, tmp_path: Path) -> None:
        """Its clock says that the driver was silent; the others know better."""
        with served(tmp_path, 2) as servers:
            store = service_store([server.address for server in servers], "q", replicas=2)
            before = written(store, batch_of(1))
            servers[0].keeper._end(QUERY, "SHUFFLE_LEASE_EXPIRED")
            assert store._tell()
            assert store._mine == {QUERY}
            after = written(store, batch_of(2), task=1)
            assert holders(after) == (servers[1].address,)
            assert values(store, before, after) == [1, 2]
            store.close()

    def test_a_pause_of_the_server_is_not_the_drivers(self, tmp_path: Path) -> None:
        settings = ServiceSettings("127.0.0.1", 0, KeeperSettings((tmp_path,), 2**26, lease_seconds=4))
        daemon = ServiceDaemon(settings, Security())
        daemon.keeper.keep_alive(KeepAlive("application", (QUERY,)))
        before = daemon.keeper._deadlines[QUERY]
        # Whoever looks after leases waits for this lock, as if the process had been stopped.
        with daemon.keeper._lock:
            eventually(lambda: time.monotonic() > before + 0.5)
            assert daemon.keeper._deadlines == {QUERY: before}
        eventually(lambda: daemon.keeper._deadlines.get(QUERY, before) != before or daemon.keeper.empty)
        assert not daemon.keeper.empty
        daemon.close()

    def test_expiry_survives_a_restart(self, tmp_path: Path) -> None:
        keeper = Keeper("keeper", KeeperSettings((tmp_path,), 2**26, lease_seconds=1e-9))
        keeper.keep_alive(KeepAlive("application", (QUERY,)))
        eventually(lambda: keeper.expire() is None and keeper.empty)
        keeper.close()
        again = Keeper("keeper", KeeperSettings((tmp_path,), 2**26))
        assert again.keep_alive(KeepAlive("application", (QUERY,))).expired == (QUERY,)
        assert code_of(Calls(again, attempt_id()).reserve) == "SHUFFLE_LEASE_EXPIRED"
        again.close()

    def test_a_server_that_was_away_learns_of_the_query_from_the_driver(self, tmp_path: Path) -> None:
        with served(tmp_path) as (server,):
            store = service_store([server.address], "q")
            port = server.server.port
        shutil.rmtree(tmp_path / "s0")
        empty = Served(tmp_path / "s0", port)
        try:
            with pytest.raises(ShuffleRefused, match="has not begun"):
                written(store, batch_of(1))
            assert store._tell()
            block = written(store, batch_of(1), attempt=1)
            assert values(store, block) == [1]
            store.close()
        finally:
            empty.close()


# ----------------------------------------------------------------------------------------------------- others


def test_a_word_of_another_version_is_refused(tmp_path: Path) -> None:
    with served(tmp_path) as (server,):
        client = Security().connect(server.address)
        body = json.dumps({"version": 99, "message": {"$": "AskHealth"}}).encode()
        (reply,) = client.do_action(flight.Action("health", body))
        answer = json.loads(reply.body.to_pybytes())["message"]
        assert answer["$"] == "Refused"
        assert "protocol 99" in answer["message"]
        assert "same version" in answer["message"] or "speaks" in answer["message"]
        with pytest.raises(flight.FlightError, match="protocol 99"):
            client.do_get(flight.Ticket(body)).read_all()


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff\xff\xff\xff", b"\x02\x00\x00\x00{}"])
@pytest.mark.parametrize("action", ["push", "commit", "nothing"])
def test_nonsense_is_refused(tmp_path: Path, action: str, body: bytes) -> None:
    with served(tmp_path) as (server,):
        (reply,) = Security().connect(server.address).do_action(flight.Action(action, body))
        assert json.loads(reply.body.to_pybytes())["message"]["$"] == "Refused"


@pytest.mark.parametrize("name", ["../outside", "a/b", "", ".", "x" * 65])
def test_a_query_whose_name_is_no_directory_is_refused(keeper: Keeper, name: str) -> None:
    assert code_of(lambda: keeper.keep_alive(KeepAlive("x", (QueryId(name),)))) == "SHUFFLE_UNKNOWN_QUERY"


def test_two_servers_do_not_share_a_directory(tmp_path: Path) -> None:
    with served(tmp_path), pytest.raises(ConfigError, match="in use"):
        Keeper("other", KeeperSettings((tmp_path / "s0",), 1))


def test_owners_move_only_from_a_server_that_has_gone() -> None:
    stage = StageId(QUERY, 0)
    servers = [f"host{number}:1" for number in range(5)]
    before = {partition: ranked(servers, stage, partition)[:2] for partition in range(200)}
    after = {partition: ranked(servers[:-1], stage, partition)[:2] for partition in range(200)}
    for partition, owners in before.items():
        if servers[-1] not in owners:
            assert after[partition] == owners
    counts = [sum(server in owners for owners in before.values()) for server in servers]
    assert min(counts) > 200 * 2 / 5 / 2


class TestDaemon:
    @pytest.fixture
    def daemon(self, tmp_path: Path) -> Iterator[ServiceDaemon]:
        keeper = KeeperSettings((tmp_path,), 2**26)
        settings = ServiceSettings("127.0.0.1", 0, keeper, metrics_port=0)
        daemon = ServiceDaemon(settings, Security("the token"))
        yield daemon
        daemon.close()

    def store(self, daemon: ServiceDaemon, token: str) -> ServiceStore:
        return ServiceStore(
            [daemon.address],
            replicas=1,
            security=Security(token),
            memory_limit_bytes=2**26,
            compression="none",
            patience=PATIENCE,
        )

    def test_the_token_is_asked_for_on_every_call(self, daemon: ServiceDaemon) -> None:
        with pytest.raises(ShuffleRefused):
            self.store(daemon, "another").begin(QUERY)
        client = Security("another").connect(daemon.address)
        for action in ("keep", "reserve", "push", "commit", "abort", "release", "health", "drain"):
            with pytest.raises(flight.FlightUnauthenticatedError):
                list(client.do_action(flight.Action(action, b"")))
        with pytest.raises(flight.FlightUnauthenticatedError):
            client.do_get(flight.Ticket(b"")).read_all()

    def test_metrics(self, daemon: ServiceDaemon) -> None:
        store = self.store(daemon, "the token")
        store.begin(QUERY)
        block = written(store, batch_of(1))
        assert values(store, block) == [1]
        url = f"http://127.0.0.1:{daemon.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        found = dict(line.split() for line in text.splitlines() if not line.startswith("#"))
        assert found["volley_shuffle_commits_total"] == "1"
        assert found["volley_shuffle_queries"] == "1"
        assert float(found["volley_shuffle_held_bytes"]) > 0
        assert "the token" not in text
        store.close()

    def test_a_draining_server_takes_no_new_attempts_and_serves_the_others(
        self, daemon: ServiceDaemon
    ) -> None:
        store = self.store(daemon, "the token")
        store.begin(QUERY)
        block = written(store, batch_of(1))
        sink = store.sink(attempt_id(1), 1)
        sink.write(0, numbers())
        # It has begun there when its first chunks arrive.
        eventually(lambda: daemon.keeper.health().attempts == 2)
        daemon.keeper.drain()
        (second,) = sink.commit()
        with pytest.raises(ShuffleRefused, match="takes no new attempts"):
            written(store, batch_of(3), task=2)
        assert values(store, block) == [1]
        assert len(values(store, second)) == MANY
        store.close()
        assert daemon.keeper.empty

    def test_status(self, daemon: ServiceDaemon) -> None:
        environment = {"VOLLEY_TOKEN": "the token", "COLUMNS": "200"}
        shown = CliRunner().invoke(cli, ["status", daemon.address], env=environment)
        assert "shuffle server" in shown.output
        assert "serving" in shown.output
        found = CliRunner().invoke(cli, ["status", daemon.address, "--json"], env=environment)
        assert json.loads(found.output)[daemon.address]["memory_limit_bytes"] == 2**26


def test_health_counts_what_is_held(tmp_path: Path) -> None:
    with served(tmp_path) as (server,):
        store = service_store([server.address], "q")
        written(store, batch_of(1))
        health = store._client.call(server.address, "health", AskHealth())
        assert (health.applications, health.queries, health.committed) == (1, 1, 1)
        store.release(QUERY)
        assert store.held_bytes == 0
        store.close()
