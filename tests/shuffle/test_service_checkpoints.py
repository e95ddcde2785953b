# SPDX-License-Identifier: Apache-2.0
"""Stages that stores keep beyond the end of their query."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from helpers.opened_stores import OpenedStores, new_store
from helpers.service_calls import QUERY, Calls, code_of, kept_value, open_keeper
from volley.cli.main import cli
from volley.errors import BlockMissing, ShuffleRefused
from volley.ids import QueryId
from volley.rpc.shuffle_messages import UNAVAILABLE, UNKNOWN_QUERY, FindStage, KeepAlive, KeepStage
from volley.shuffle.base import Block, SharedStore
from volley.shuffle.object_store import ObjectStore
from volley.shuffle.service.location import ServiceLocation
from volley.shuffle.service.server_state import ShuffleServerState
from volley.shuffle.service.store import ServiceStore
from volley.testing.contracts import CheckpointStoreContract, attempt_id, read_values, write_block
from volley.testing.services import Served, serve_shuffle, service_store

SECRET, KEY, KEPT = "5e" * 32, "ab" * 32, QueryId("q-s0", "cd" * 16)


class TestFolder(CheckpointStoreContract):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Callable[[], SharedStore]:
        return lambda: new_store(f"file://{tmp_path}")


class TestService(CheckpointStoreContract):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Iterator[Callable[[], SharedStore]]:
        with serve_shuffle(tmp_path, 3) as running:
            addresses = [server.address for server in running]
            opened = OpenedStores(lambda: service_store(addresses, replicas=2))
            yield opened
            opened.close()


def keep(state: ShuffleServerState, calls: Calls, seconds: float = 1000.0) -> Calls:
    """Keep a committed attempt; the same calls for what is kept."""
    state.keep_stage(KeepStage(SECRET, KEY, KEPT, (calls.attempt,), b"record", seconds))
    return of_query(calls, KEPT)


def of_query(calls: Calls, query: QueryId) -> Calls:
    task = calls.attempt.task
    attempt = replace(calls.attempt, task=replace(task, stage=replace(task.stage, query=query)))
    return Calls(calls.server_state, attempt)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[ShuffleServerState]:
    with open_keeper(tmp_path) as found:
        yield found


class TestServer:
    def test_a_restarted_server_has_its_checkpoints(self, tmp_path: Path) -> None:
        with open_keeper(tmp_path) as before:
            calls = Calls(before, attempt_id())
            calls.all()
            keep(before, calls)
            before.release(QUERY)
        with open_keeper(tmp_path) as after:
            assert after.find_stage(FindStage(SECRET, KEY, 1.0)).record == b"record"
            kept = of_query(Calls(after, attempt_id()), KEPT)
            assert kept_value(after, kept) == 1
            # The journal that it wrote at its start has them, too.
        with open_keeper(tmp_path) as again:
            assert again.find_stage(FindStage(SECRET, KEY, 1.0)).record == b"record"

    def test_a_stage_goes_when_its_time_is_up(self, state: ShuffleServerState, tmp_path: Path) -> None:
        calls = Calls(state, attempt_id())
        calls.all()
        kept = keep(state, calls, 100.0)
        state.release(QUERY)
        state.expire(time.monotonic() + 99)
        assert kept_value(state, kept) == 1
        # Using it begins its time anew.
        state.find_stage(FindStage(SECRET, KEY, 300.0))
        state.expire(time.monotonic() + 299)
        assert kept_value(state, kept) == 1
        state.expire(time.monotonic() + 301)
        assert state.find_stage(FindStage(SECRET, KEY, 1.0)).record == b""
        assert state.health().held_bytes == state.health().disk_bytes == 0
        assert not list(tmp_path.rglob("*.log"))

    def test_a_restarted_server_keeps_what_was_used_for_as_long(self, tmp_path: Path) -> None:
        with open_keeper(tmp_path) as before:
            calls = Calls(before, attempt_id())
            calls.all()
            keep(before, calls, 100.0)
            before.release(QUERY)
            before.find_stage(FindStage(SECRET, KEY, 300.0))
        with open_keeper(tmp_path) as after:
            after.expire(time.monotonic() + 200)
            assert after.find_stage(FindStage(SECRET, KEY, 1.0)).record == b"record"
        # Asking for less does not shorten it.
        with open_keeper(tmp_path) as again:
            again.expire(time.monotonic() + 200)
            assert again.find_stage(FindStage(SECRET, KEY, 1.0)).record == b"record"

    def test_nobody_keeps_outputs_without_the_key_of_their_query(self, state: ShuffleServerState) -> None:
        mine = QueryId("mine", "aa" * 16)
        state.keep_alive(KeepAlive("application", (mine,)))
        Calls(state, of_query(Calls(state, attempt_id()), mine).attempt).all()
        theirs = of_query(Calls(state, attempt_id()), QueryId("mine", "bb" * 16))
        assert code_of(lambda: keep(state, theirs)) == UNKNOWN_QUERY

    def test_nobody_reads_a_kept_stage_without_its_key(self, state: ShuffleServerState) -> None:
        calls = Calls(state, attempt_id())
        calls.all()
        kept = keep(state, calls)
        assert kept.read() == ""
        assert UNKNOWN_QUERY in of_query(calls, QueryId("q-s0", "ee" * 16)).read()

    def test_a_server_that_keeps_only_checkpoints_may_stop(self, state: ShuffleServerState) -> None:
        calls = Calls(state, attempt_id())
        calls.all()
        keep(state, calls)
        assert not state.empty
        state.release(QUERY)
        assert state.empty


class TestServersThatDoNotAnswer:
    @pytest.fixture
    def servers(self, tmp_path: Path) -> Iterator[list[Served]]:
        with serve_shuffle(tmp_path, 2) as running:
            store = service_store([server.address for server in running], "q")
            (block,) = write_block(store, attempt_id(), 1)
            store.keep_stage(
                KeepStage(SECRET, KEY, KEPT, (block.attempt,), b"record", 1000.0), {block.location}
            )
            store.close()
            yield running

    def run(self, servers: list[Served], *arguments: str) -> Result:
        return CliRunner().invoke(cli, ["checkpoints", ",".join(s.address for s in servers), *arguments])

    def test_one_that_answers_lists_the_checkpoints(self, servers: list[Served]) -> None:
        servers[0].close()
        assert '"stages": 1' in self.run(servers, "--json").output

    def test_an_unknown_list_is_not_an_empty_one(self, servers: list[Served]) -> None:
        for server in servers:
            server.close()
        error = self.run(servers).exception
        assert isinstance(error, ShuffleRefused)
        assert error.code == UNAVAILABLE

    def test_a_checkpoint_is_removed_when_all_have_removed_it(
        self, servers: list[Served], tmp_path: Path
    ) -> None:
        store = service_store([server.address for server in servers])
        servers[0].close()
        with pytest.raises(ShuffleRefused, match=servers[0].address):
            store.drop_checkpoint(SECRET)
        again = Served(tmp_path / "s0", port=int(servers[0].address.rpartition(":")[2]))
        assert store.drop_checkpoint(SECRET)
        assert store.checkpoints() == ()
        store.close()
        again.close()


class TestServersThatHoldAStage:
    @pytest.fixture
    def servers(self, tmp_path: Path) -> Iterator[dict[str, Served]]:
        with serve_shuffle(tmp_path, 3) as running:
            yield {server.address: server for server in running}

    def write(self, store: ServiceStore) -> Block:
        (block,) = write_block(store, attempt_id(), 1)
        return block

    def keep(self, store: ServiceStore, block: Block, name: str = "q-s0") -> None:
        kept = QueryId(name, "cd" * 16)
        message = KeepStage(SECRET, KEY, kept, (block.attempt,), name.encode(), 1000.0)
        store.keep_stage(message, {block.location})

    def test_keep_it_together_or_not_at_all(self, servers: dict[str, Served]) -> None:
        store = service_store(list(servers), "q", replicas=2)
        block = self.write(store)
        holder = ServiceLocation.parse(block.location).addresses[1]
        servers[holder].server_state.drain()
        with pytest.raises(ShuffleRefused, match=holder):
            self.keep(store, block)
        assert store.find_stage(FindStage(SECRET, KEY, 1.0)) is None
        store.close()

    def test_need_nobody_else(self, servers: dict[str, Served]) -> None:
        store = service_store(list(servers), "q", replicas=2)
        block = self.write(store)
        (other,) = servers.keys() - set(ServiceLocation.parse(block.location).addresses)
        servers[other].close()
        self.keep(store, block)
        assert store.find_stage(FindStage(SECRET, KEY, 1.0)) == b"q-s0"
        store.close()

    def test_one_that_missed_the_newest_does_not_hide_it(
        self, servers: dict[str, Served], tmp_path: Path
    ) -> None:
        store = service_store(list(servers), "q", replicas=2)
        block = self.write(store)
        self.keep(store, block, "first")
        (other,) = servers.keys() - set(ServiceLocation.parse(block.location).addresses)
        number = list(servers).index(other)
        servers[other].close()
        self.keep(store, block, "second")
        again = Served(tmp_path / f"s{number}", port=int(other.rpartition(":")[2]))
        reader = service_store([other, *(servers.keys() - {other})])
        assert reader.find_stage(FindStage(SECRET, KEY, 1.0)) == b"second"
        reader.close()
        store.close()
        again.close()


class TestExpiryInAFolder:
    def store(self, path: Path) -> ObjectStore:
        return new_store(f"file://{path}")

    def test_the_next_driver_removes_what_is_too_old_and_nothing_else(self, tmp_path: Path) -> None:
        dead = self.store(tmp_path)
        dead.begin(QueryId("q"))
        (block,) = write_block(dead, attempt_id(), 1)
        dead.keep_stage(KeepStage(SECRET, KEY, KEPT, (block.attempt,), b"record", 1000.0), {block.location})
        kept = of_query(Calls(None, block.attempt), KEPT).attempt  # type: ignore[arg-type]
        (other,) = write_block(dead, attempt_id(stage=1), 2)
        dead._leases.end(QueryId("q"))  # as if it had been killed
        (record,) = (path for path in tmp_path.glob("checkpoints/*/*"))
        self._age(tmp_path / "q" / "lease", 500)
        self._begin_another(tmp_path, "a")
        assert read_values(self.store(tmp_path), replace(block, attempt=kept)) == [1]
        with pytest.raises(BlockMissing):
            read_values(self.store(tmp_path), other)
        for path in (record, *(tmp_path / "q").rglob("*")):
            self._age(path, 1001)
        self._begin_another(tmp_path, "b")
        assert not record.exists()
        assert not (tmp_path / "q").exists()

    def test_a_record_of_somebody_without_the_secret_is_not_used(self, tmp_path: Path) -> None:
        store = self.store(tmp_path)
        store.begin(QueryId("q"))
        (block,) = write_block(store, attempt_id(), 1)
        store.keep_stage(KeepStage(SECRET, KEY, KEPT, (block.attempt,), b"record", 1000.0), {block.location})
        (record,) = (path for path in tmp_path.glob("checkpoints/*/*"))
        record.write_bytes(record.read_bytes()[:-1] + b"x")
        assert store.find_stage(FindStage(SECRET, KEY, 1.0)) is None
        store.close()

    def test_a_stage_that_is_kept_again_replaces_the_first(self, tmp_path: Path) -> None:
        store = self.store(tmp_path)
        for query in ("a", "b"):
            store.begin(QueryId(query))
            (block,) = write_block(store, attempt_id(query=query), 1)
            message = KeepStage(SECRET, KEY, KEPT, (block.attempt,), query.encode(), 1000.0)
            store.keep_stage(message, {block.location})
            if query == "a":
                # The clocks of object stores may count in seconds.
                (record,) = (path for path in tmp_path.glob("checkpoints/*/*"))
                self._age(record, -1)
        assert store.find_stage(FindStage(SECRET, KEY, 1.0)) == b"b"
        store.close()

    def _age(self, path: Path, seconds: float) -> None:
        then = time.time() - seconds
        os.utime(path, (then, then))

    def _begin_another(self, path: Path, query: str) -> None:
        store = self.store(path)
        store.begin(QueryId(query))
        store.close()
