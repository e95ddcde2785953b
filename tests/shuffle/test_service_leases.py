# SPDX-License-Identifier: Apache-2.0
"""Leases on shuffle servers: what a dead driver left goes, and whoever was paused is told so."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from helpers.service_calls import QUERY, Calls, code_of, holders, logs, numbers, values, written
from helpers.waiting import eventually
from volley.errors import BlockMissing, LeaseExpired, ShuffleRefused
from volley.rpc.shuffle_messages import KeepAlive
from volley.security import Security
from volley.shuffle.service.daemon import ServiceDaemon, ServiceSettings
from volley.shuffle.service.server_state import LEASE_SECONDS, ShuffleServerSettings, ShuffleServerState
from volley.testing.contracts import attempt_id, batch_of
from volley.testing.services import Served, serve_shuffle, service_store

SHORT_LEASE_SECONDS = 1.0


def _serve(pipe: Connection, directory: Path) -> None:
    """A shuffle server in a process that the test can stop."""
    state = ShuffleServerSettings((directory,), 2**26, lease_seconds=SHORT_LEASE_SECONDS)
    daemon = ServiceDaemon(ServiceSettings("127.0.0.1", 0, state), Security())
    pipe.send(daemon.address)
    pipe.recv()
    daemon.close()


class TestLeases:
    def test_what_a_dead_driver_left_is_removed(self, tmp_path: Path) -> None:
        with serve_shuffle(tmp_path) as (server,):
            dead = service_store([server.address], "q")
            block = written(dead, numbers())
            server.server_state.expire(now=time.monotonic() + LEASE_SECONDS)
            assert server.server_state.health().held_bytes == 0
            assert logs(tmp_path) == []
            # A driver that was only paused gets a clear error, and never fewer rows.
            with pytest.raises(BlockMissing, match="SHUFFLE_LEASE_EXPIRED"):
                values(dead, block)
            with pytest.raises(LeaseExpired, match="Run the query again"):
                written(dead, batch_of(1), task=1)
            assert dead.renew_leases()
            assert dead.leased_queries == frozenset()
            dead.close()

    def test_a_driver_that_lives_keeps_its_data(self, tmp_path: Path) -> None:
        with serve_shuffle(tmp_path, lease_seconds=1) as (server,):
            store = service_store([server.address], "q")
            begun = time.monotonic()
            block = written(store, batch_of(1))
            eventually(lambda: time.monotonic() > begun + 1.3)
            server.server_state.expire()
            assert values(store, block) == [1]
            store.close()

    def test_a_server_that_was_paused_itself_does_not_end_the_query(self, tmp_path: Path) -> None:
        """Its clock says that the driver was silent; the others know better."""
        with serve_shuffle(tmp_path, 2) as servers:
            store = service_store([server.address for server in servers], "q", replicas=2)
            before = written(store, batch_of(1))
            servers[0].server_state.expire(now=time.monotonic() + LEASE_SECONDS)
            assert store.renew_leases()
            assert store.leased_queries == {QUERY}
            after = written(store, batch_of(2), task=1)
            assert holders(after) == (servers[1].address,)
            assert values(store, before, after) == [1, 2]
            store.close()

    @pytest.mark.slow
    def test_a_pause_of_the_server_is_not_the_drivers(self, tmp_path: Path) -> None:
        processes = multiprocessing.get_context("spawn")
        ours, theirs = processes.Pipe()
        process = processes.Process(target=_serve, args=(theirs, tmp_path), daemon=True)
        process.start()
        store = service_store([ours.recv()])
        store.begin(QUERY)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        eventually(lambda: time.monotonic() > stopped + 2 * SHORT_LEASE_SECONDS)
        os.kill(process.pid, signal.SIGCONT)
        assert store.renew_leases()
        assert store.leased_queries == {QUERY}
        block = written(store, batch_of(1))
        assert values(store, block) == [1]
        store.close()
        ours.send("end")
        process.join()

    def test_expiry_survives_a_restart(self, tmp_path: Path) -> None:
        server_state = ShuffleServerState(
            "keeper", ShuffleServerSettings((tmp_path,), 2**26, lease_seconds=1e-9)
        )
        server_state.keep_alive(KeepAlive("application", (QUERY,)))

        def is_empty() -> bool:
            server_state.expire()
            return server_state.empty

        eventually(is_empty)
        server_state.close()
        again = ShuffleServerState("keeper", ShuffleServerSettings((tmp_path,), 2**26))
        assert again.keep_alive(KeepAlive("application", (QUERY,))).expired == (QUERY,)
        assert code_of(Calls(again, attempt_id()).reserve) == "SHUFFLE_LEASE_EXPIRED"
        again.close()

    def test_a_server_that_was_away_learns_of_the_query_from_the_driver(self, tmp_path: Path) -> None:
        with serve_shuffle(tmp_path) as (server,):
            store = service_store([server.address], "q")
            port = server.server.port
        shutil.rmtree(tmp_path / "s0")
        empty = Served(tmp_path / "s0", port)
        try:
            with pytest.raises(ShuffleRefused, match="has not begun"):
                written(store, batch_of(1))
            assert store.renew_leases()
            block = written(store, batch_of(1), attempt=1)
            assert values(store, block) == [1]
            store.close()
        finally:
            empty.close()
