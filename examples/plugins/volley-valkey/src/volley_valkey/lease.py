# SPDX-License-Identifier: Apache-2.0
"""Renews the queries that this driver began, so that they expire only if it is gone."""

from __future__ import annotations

import logging
import threading

from volley.errors import LeaseExpired, QueryError
from volley.ids import QueryId
from volley_valkey.server import Server

_log = logging.getLogger(__name__)


class Leases:
    """A thread renews them while there are any."""

    def __init__(self, server: Server, lease_seconds: float) -> None:
        self._server = server
        self._lease_seconds = lease_seconds
        self._lock = threading.Lock()
        self._queries: set[QueryId] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, query: QueryId) -> None:
        self._server.begin(query, self._lease_seconds)
        with self._lock:
            self._queries.add(query)
            if self._thread is None:
                self._stop = threading.Event()
                self._thread = threading.Thread(
                    target=self._renew, args=(self._stop,), name="volley-valkey-leases", daemon=True
                )
                self._thread.start()

    def end(self, query: QueryId) -> None:
        with self._lock:
            self._queries.discard(query)
            if not self._queries:
                self._stop.set()
                self._thread = None

    @property
    def queries(self) -> tuple[QueryId, ...]:
        with self._lock:
            return tuple(self._queries)

    def _renew(self, stop: threading.Event) -> None:
        while not stop.wait(self._lease_seconds / 3):
            for query in self.queries:
                try:
                    self._server.renew(query, self._lease_seconds)
                except LeaseExpired as error:
                    _log.warning("%s", error)
                    self.end(query)
                except QueryError as error:
                    _log.warning("query %s could not be renewed: %s", query, error)
