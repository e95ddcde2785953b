# SPDX-License-Identifier: Apache-2.0
"""Damage of what a shuffle server keeps: another replica is read, and without one it is an error."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.service_calls import MANY, drop_memory, flip, holders, logs, numbers, values, written
from volley.errors import BlockDamaged, BlockMissing, ConfigError
from volley.ids import QueryId
from volley.rpc.shuffle_messages import QueryBegan
from volley.shuffle.service.journal import Journal
from volley.shuffle.service.location import ServiceLocation
from volley.shuffle.service.server_state import ShuffleServerSettings, ShuffleServerState
from volley.testing.contracts import batch_of
from volley.testing.services import Served, serve_shuffle, service_store


class TestDamage:
    @pytest.mark.parametrize("position", [0, 40, -1], ids=["header", "metadata", "body"])
    def test_of_one_replica_is_read_from_the_other(self, tmp_path: Path, position: int) -> None:
        # No memory: what is read comes from the files.
        with serve_shuffle(tmp_path, 2, memory_bytes=1) as servers:
            store = service_store([server.address for server in servers], "q", replicas=2)
            block = written(store, numbers(), 0)
            first = next(server for server in servers if server.address == holders(block)[0])
            drop_memory(first)
            (log,) = logs(tmp_path / first.server_state.name.split()[-1])
            flip(log, position)
            assert values(store, block) == list(range(MANY))
            store.close()

    @pytest.mark.parametrize("position", [0, 40, -1], ids=["header", "metadata", "body"])
    def test_of_all_replicas_is_an_error(self, tmp_path: Path, position: int) -> None:
        with serve_shuffle(tmp_path, 2, memory_bytes=1) as servers:
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
        with serve_shuffle(tmp_path, 2, memory_bytes=1) as servers:
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
        with serve_shuffle(tmp_path, 2) as servers:
            addresses = [server.address for server in servers]
            store = service_store(addresses, "q", replicas=2)
            impostor = service_store([addresses[0]], replicas=1)
            other = written(impostor, batch_of(9))
            block = written(service_store([addresses[1]], replicas=1), batch_of(1, 2))
            both = replace(block, location=str(ServiceLocation((addresses[0], addresses[1]))))
            assert values(store, both) == [1, 2]
            # Another server may have got a replica since, so all are asked; this reader knows the wrong one only.
            misplaced = replace(block, location=other.location)
            assert values(store, misplaced) == [1, 2]
            with pytest.raises(BlockMissing):
                values(impostor, misplaced)
            store.close()

    @pytest.mark.parametrize("where", ["head", "middle", "end"])
    def test_of_the_journal_loses_what_it_said_and_no_more(self, tmp_path: Path, where: str) -> None:
        with serve_shuffle(tmp_path) as (server,):
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

    @pytest.mark.parametrize("name", ["journal", "lock"])
    def test_a_link_in_the_place_of_a_file_is_refused_and_not_followed(
        self, tmp_path: Path, name: str
    ) -> None:
        precious = tmp_path / "precious"
        precious.write_text("of somebody else")
        directory = tmp_path / "server"
        directory.mkdir()
        (directory / name).symlink_to(precious)
        with pytest.raises(ConfigError, match="is a link"):
            ShuffleServerState("server", ShuffleServerSettings((directory,), 2**20))
        assert precious.read_text() == "of somebody else"

    def test_a_link_in_the_place_of_a_draft_is_replaced(self, tmp_path: Path) -> None:
        precious = tmp_path / "precious"
        precious.write_text("of somebody else")
        directory = tmp_path / "server"
        directory.mkdir()
        (directory / "journal.new").symlink_to(precious)
        ShuffleServerState("server", ShuffleServerSettings((directory,), 2**20)).close()
        assert precious.read_text() == "of somebody else"

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
