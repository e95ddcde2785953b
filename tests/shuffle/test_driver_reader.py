# SPDX-License-Identifier: Apache-2.0
"""A driver reads block after block of a worker over one connection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.flight as flight
import pytest

from volley.security import Clients, Security
from volley.shuffle.base import Block
from volley.shuffle.factory import driver_reader
from volley.shuffle.location import Location
from volley.shuffle.worker_store import WorkerStore
from volley.testing.contracts import attempt_id, batch_of
from volley.testing.holders import BlockServer, new_store


class ElsewhereServer(BlockServer):
    """As if it were on another host, so that its blocks are fetched. Knows its connections by their ports."""

    def __init__(self, directory: Path) -> None:
        self.connections: set[str] = set()
        super().__init__(lambda location: self._store(location, directory))

    def _store(self, location: Location, directory: Path) -> WorkerStore:
        return new_store(replace(location, address=f"127.0.0.1:{self.port}", boot="00"), [directory])

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        self.connections.add(context.peer())
        return super().do_get(context, ticket)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ElsewhereServer]:
    with ElsewhereServer(tmp_path) as server:
        yield server
        server.store.close()


def _written(server: ElsewhereServer, task: int) -> Block:
    sink = server.store.sink(attempt_id(task), 1)
    sink.write(0, batch_of(task))
    (block,) = sink.commit()
    return block


def test_blocks_are_fetched_over_one_connection(server: ElsewhereServer) -> None:
    blocks = [_written(server, task) for task in range(5)]
    found = [
        batch.column(0)[0].as_py() for block in blocks for batch in driver_reader(Security()).read(block)
    ]
    assert found == list(range(5))
    assert len(server.connections) == 1


def test_closed_clients_are_connected_anew(server: ElsewhereServer) -> None:
    with Clients(Security()) as clients:
        first = clients[server.store.location.address]
        assert clients[server.store.location.address] is first
        clients.close()
        assert clients[server.store.location.address] is not first
