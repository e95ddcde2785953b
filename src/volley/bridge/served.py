# SPDX-License-Identifier: Apache-2.0
"""A store in the driver's process whose blocks Spark's tasks read: mapped on this machine, over Flight elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable

from volley.rpc.addresses import address_of
from volley.rpc.server import Rows, Server, listen
from volley.security import Security
from volley.shuffle.location import Location
from volley.worker.server import ServingStore

_STOP_SECONDS = 5.0


class Served:
    """Listens from its construction until `close`; `make` makes the store of the place that it is given."""

    def __init__(
        self,
        host: str,
        advertise: str,
        security: Security,
        insecure: bool,
        make: Callable[[Location], ServingStore],
    ) -> None:
        """ConfigError when it may not, or cannot, listen on `host`; others reach it as `advertise`."""
        self._server = listen(_Server, host, 0, security, insecure=insecure)
        self.store = make(Location.here(address_of(advertise, self._server.port)))
        self._server.serve(self.store)

    def close(self) -> None:
        # A reader that hangs is not waited for.
        stopping = threading.Thread(target=self._server.shutdown, name="volley-served-stop", daemon=True)
        stopping.start()
        stopping.join(_STOP_SECONDS)


class _Server(Server):
    """Has nothing until it is told its store."""

    role = "driver"

    def serve(self, store: ServingStore) -> None:
        self._store = store
        self.open()

    def stream(self, ticket: bytes) -> Rows:
        return self._store.serve(ticket)
