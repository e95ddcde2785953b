# SPDX-License-Identifier: Apache-2.0
"""A server that is lost or leaves takes no replica with it: others get what it had."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.service_calls import QUERY, Calls, code_of, open_keeper
from helpers.waiting import eventually
from volley.errors import BlockMissing
from volley.ids import QueryId
from volley.rpc.control import Ack
from volley.rpc.shuffle_messages import QUOTA, KeepAlive, Replicate
from volley.security import Security
from volley.shuffle.base import Block
from volley.shuffle.service.replication import Replicator
from volley.shuffle.service.server import ShuffleServer
from volley.shuffle.service.server_state import ShuffleServerSettings, ShuffleServerState
from volley.shuffle.service.store import ServiceStore
from volley.testing.contracts import attempt_id, batch_of
from volley.testing.services import Served, serve_shuffle, service_store

# Placement depends on the ports of the servers. With so many, each server has some and none has all.
PARTITIONS = 30


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[dict[str, Served]]:
    with serve_shuffle(tmp_path, 3) as running:
        yield {server.address: server for server in running}


def write(store: ServiceStore, task: int = 0) -> list[Block]:
    sink = store.sink(attempt_id(task), PARTITIONS)
    for partition in range(PARTITIONS):
        sink.write(partition, batch_of(*range(100 * task + partition, 100 * task + partition + 3)))
    return list(sink.commit())


def values(store: ServiceStore, blocks: list[Block]) -> list[int]:
    return [value for batch in store.read_many(blocks) for value in batch.column(0).to_pylist()]


def count_blocks(server: Served) -> int:
    return len(server.server_state.replicas.held_blocks())


def test_blocks_of_a_lost_server_get_another_replica(servers: dict[str, Served]) -> None:
    store = service_store(list(servers), "q", replicas=2)
    blocks = [block for task in range(3) for block in write(store, task)]
    expected = values(store, blocks)
    lost, second, third = servers.values()
    assert 0 < count_blocks(lost) < len(blocks)
    lost.close()
    store.renew_leases()
    assert count_blocks(second) + count_blocks(third) < 2 * len(blocks), "it may only have been busy"
    store.renew_leases()
    eventually(lambda: count_blocks(second) == count_blocks(third) == len(blocks))
    # A second one is lost, and so is all that the locations of some blocks name.
    second.close()
    assert values(service_store(list(servers), replicas=2), blocks) == expected
    with suppress(BlockMissing):
        store.close()


def test_a_replica_is_there_after_a_restart(servers: dict[str, Served], tmp_path: Path) -> None:
    store = service_store(list(servers), "q", replicas=1)
    blocks = write(store)
    expected = values(store, blocks)
    leaving, second, third = servers.values()
    # Each of the others has some partitions of the same attempt already.
    assert 0 < count_blocks(second) < PARTITIONS
    leaving.server_state.drain()
    store.renew_leases()
    eventually(leaving.replicator.has_moved_all)
    assert count_blocks(second) + count_blocks(third) == PARTITIONS
    leaving.close()
    second.close()
    again = Served(tmp_path / "s1", port=int(second.address.rpartition(":")[2]))
    assert values(service_store(list(servers), replicas=1), blocks) == expected
    store.release(QueryId("q"))
    assert again.server_state.health().held_bytes == third.server_state.health().held_bytes == 0
    again.close()


def test_a_server_that_nobody_can_replace_waits_for_its_queries(tmp_path: Path) -> None:
    with serve_shuffle(tmp_path, 1) as (alone,):
        store = service_store([alone.address], "q")
        write(store)
        alone.server_state.drain()
        store.renew_leases()
        assert not alone.replicator.has_moved_all()
        store.release(QueryId("q"))
        assert alone.replicator.has_moved_all()
        store.close()


def test_who_has_no_key_of_a_query_moves_nothing(servers: dict[str, Served]) -> None:
    store = service_store(list(servers), replicas=2)
    mine = QueryId("mine", "aa" * 16)
    store.begin(mine)
    task = attempt_id().task
    sink = store.sink(replace(attempt_id(), task=replace(task, stage=replace(task.stage, query=mine))), 1)
    sink.write(0, batch_of(1))
    (block,) = sink.commit()
    one, other = block.location.removeprefix("service:").split(",")
    for key, copies in (("aa", 1), ("bb", 0)):
        message = Replicate(one, (QueryId("mine", key * 16),), (other,), (), tuple(servers), 2)
        assert len(servers[one].server_state.replicas.plan_copies(message)) == copies
    store.close()


def send(server: Served, **message: Any) -> Replicator:
    """Let a server send what has too few replicas, and wait until it has done that once."""
    sender = Replicator(server.server_state, Security())
    sender.replicate(Replicate(server.address, (QUERY,), **message))
    assert sender._thread is not None
    sender._thread.join()
    return sender


def test_a_replica_that_nobody_could_take_is_made_later(servers: dict[str, Served]) -> None:
    store = service_store(list(servers), "q", replicas=2)
    write(store)
    lost, second, third = servers.values()
    before = count_blocks(third)
    assert before < PARTITIONS
    gone: dict[str, Any] = {"gone": (lost.address,), "leaving": (), "replicas": 2}
    send(second, servers=(second.address,), **gone)
    assert count_blocks(third) == before
    send(second, servers=(second.address, third.address), **gone)
    assert count_blocks(third) == PARTITIONS
    store.close()


class Hung(ShuffleServer):
    """Answers nobody before `let_go`, and counts the replicas that it was asked to take."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.pulls = 0
        super().__init__("grpc+tcp://127.0.0.1:0")
        self.address = f"127.0.0.1:{self.port}"
        self.open()

    def answer(self, action: str, body: pa.Buffer) -> Any:
        self.pulls += 1
        self.let_go.wait()
        return Ack()


@pytest.fixture
def hung() -> Iterator[Hung]:
    server = Hung()
    yield server
    server.let_go.set()
    server.shutdown()


@pytest.fixture
def full(servers: dict[str, Served]) -> Iterator[Served]:
    """It has all blocks."""
    full, *others = servers.values()
    writer = service_store([full.address], "q")
    write(writer)
    store = service_store([other.address for other in others], "q")
    yield full
    store.close()
    writer.close()


class TestAServerThatLeaves:
    def test_sends_later_what_nobody_could_take(self, servers: dict[str, Served], full: Served) -> None:
        _, other, _ = servers.values()
        leaving: dict[str, Any] = {"gone": (), "leaving": (full.address,), "replicas": 1}
        assert not send(full, servers=(), **leaving).has_moved_all()
        assert send(full, servers=(other.address,), **leaving).has_moved_all()
        assert count_blocks(other) == PARTITIONS

    def test_may_go_when_all_that_stay_have_its_blocks(
        self, servers: dict[str, Served], full: Served
    ) -> None:
        _, other, third = servers.values()
        leaving: dict[str, Any] = {"gone": (), "leaving": (full.address,), "replicas": 3}
        for _ in range(2):
            assert send(full, servers=(other.address,), **leaving).has_moved_all()
        # Who has a block is not asked again.
        for takers, targets in (((), ()), ((third.address,), (third.address,))):
            message = Replicate(full.address, (QUERY,), servers=(other.address, *takers), **leaving)
            copies = full.server_state.replicas.plan_copies(message)
            assert [copy.targets for copy in copies] == [targets] * PARTITIONS


class TestAServerThatHangs:
    def test_is_not_asked_again_and_others_take_theirs(
        self, servers: dict[str, Served], full: Served, hung: Hung
    ) -> None:
        _, other, _ = servers.values()
        sender = Replicator(full.server_state, Security(), stall_seconds=2.0)
        takers = (hung.address, other.address)
        sender.replicate(Replicate(full.address, (QUERY,), (), (full.address,), takers, replicas=2))
        eventually(lambda: count_blocks(other) == PARTITIONS)
        sender.close()
        assert hung.pulls == 1
        assert not sender.has_moved_all()

    def test_does_not_delay_the_end(self, full: Served, hung: Hung) -> None:
        sender = Replicator(full.server_state, Security())
        message = Replicate(full.address, (QUERY,), (), (full.address,), (hung.address,), replicas=1)
        sender.replicate(message)
        eventually(lambda: hung.pulls)
        sender.close(wait_seconds=0.0)
        hung.let_go.set()
        sender.close()
        sender.replicate(message)
        assert hung.pulls == 1


def test_a_block_that_is_pulled_twice_is_stored_once(tmp_path: Path) -> None:
    with open_keeper(tmp_path) as state:
        calls = Calls(state, attempt_id())
        with state.replicas.open(calls.block) as one, state.replicas.open(calls.block) as other:
            for replica in (one, other):
                assert replica is not None
                replica.add(calls.data.data)
            for replica in (one, other):
                assert replica is not None
                replica.commit(calls.index, ())
        assert calls.read() == ""
        size_bytes = calls.data.data.size
        assert (state.health().held_bytes, state.health().disk_bytes) == (size_bytes, size_bytes)
        state.release(QUERY)
        assert (state.health().held_bytes, state.health().disk_bytes) == (0, 0)


def test_a_replica_counts_against_the_quota(tmp_path: Path) -> None:
    first, second = (Calls(None, attempt_id(task)) for task in range(2))  # type: ignore[arg-type]
    settings = ShuffleServerSettings((tmp_path,), 2**26, quota_bytes=first.data.data.size)
    state = ShuffleServerState("keeper", settings)
    state.keep_alive(KeepAlive("application", (QUERY,)))
    take(state, first)
    assert code_of(lambda: take(state, second)) == QUOTA
    assert state.health().held_bytes == state.health().disk_bytes == first.data.data.size
    assert state.health().attempts == 1
    state.close()


def take(state: ShuffleServerState, calls: Calls) -> None:
    with state.replicas.open(calls.block) as replica:
        assert replica is not None
        replica.add(calls.data.data)
        replica.commit(calls.index, ())
