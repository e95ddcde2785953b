# SPDX-License-Identifier: Apache-2.0
"""Serves blocks of the driver's process to Spark's tasks: mapped on the same host, over Flight elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable

from volley.rpc.addresses import address_of
from volley.rpc.server import Rows, Server, listen
from volley.security import Security
from volley.shuffle.location import Location
from volley.worker.server import ServingStore

_STOP_SECONDS = 5.0


class DriverBlockServer:
    """Listens from construction until `close`. `make` creates the store for a location."""

    def __init__(
        self,
        host: str,
        advertise: str,
        security: Security,
        insecure: bool,
        make: Callable[[Location], ServingStore],
    ) -> None:
        """Listen on `host`; others connect to `advertise`. ConfigError if it must not, or cannot, listen."""
        self._server = listen(_Server, host, 0, security, insecure=insecure)
        self.store = make(Location.here(address_of(advertise, self._server.port)))
        self._server.serve(self.store)

    def close(self) -> None:
        # Do not wait for a reader that hangs.
        stopping = threading.Thread(target=self._server.shutdown, name="volley-served-stop", daemon=True)
        stopping.start()
        stopping.join(_STOP_SECONDS)


class _Server(Server):
    """Answers calls once `serve` has set its store."""

    role = "driver"

    def serve(self, store: ServingStore) -> None:
        self._store = store
        self.open()

    def stream(self, ticket: bytes) -> Rows:
        return self._store.serve(ticket)
