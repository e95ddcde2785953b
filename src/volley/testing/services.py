# SPDX-License-Identifier: Apache-2.0
"""Shuffle servers for tests, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from volley.ids import QueryId
from volley.security import Security
from volley.shuffle.service.replication import Replicator
from volley.shuffle.service.server import ShuffleServer
from volley.shuffle.service.server_state import ShuffleServerSettings, ShuffleServerState
from volley.shuffle.service.sink import ROOM_SECONDS
from volley.shuffle.service.store import ServiceStore
from volley.testing.shuffle_configs import shuffle_config

MEMORY_BYTES = 64 * 2**20


class Served:
    """The state of a shuffle server behind a Flight server on loopback. Closing it keeps its directories."""

    def __init__(self, directory: Path, port: int = 0, **options: Any) -> None:
        directory.mkdir(exist_ok=True)
        settings = ShuffleServerSettings((directory,), **({"memory_bytes": MEMORY_BYTES} | options))
        self.server_state = ShuffleServerState(f"server {directory.name}", settings)
        self.server = ShuffleServer(f"grpc+tcp://127.0.0.1:{port}")
        self.replicator = Replicator(self.server_state, Security())
        self.server.serve(self.server_state, self.replicator)
        self._is_closed = False
        self.address = f"127.0.0.1:{self.server.port}"

    def close(self) -> None:
        """Stop it, as if its process had ended. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        self.server.shutdown()
        self.replicator.close()
        self.server_state.close()


@contextmanager
def serve_shuffle(directory: Path, count: int = 1, **options: Any) -> Iterator[list[Served]]:
    with ExitStack() as running:
        servers = [Served(directory / f"s{number}", **options) for number in range(count)]
        for server in servers:
            running.callback(server.close)
        yield servers


def service_store(
    addresses: Sequence[str],
    *queries: str,
    replicas: int = 1,
    memory_limit_bytes: int = MEMORY_BYTES,
    application: str = "",
    room_seconds: float = ROOM_SECONDS,
    **options: Any,
) -> ServiceStore:
    """A store in this process in which these queries have begun."""
    config = shuffle_config(servers=tuple(addresses), replicas=replicas, **options)
    store = ServiceStore(
        config,
        Security(),
        memory_limit_bytes=memory_limit_bytes,
        application=application,
        room_seconds=room_seconds,
    )
    for query in queries:
        store.begin(QueryId(query))
    return store
