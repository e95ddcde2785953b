# SPDX-License-Identifier: Apache-2.0
"""Queries of a driver in an object store: kept alive while it lives, and those of others that died removed.

    <root>/<query>/lease        written when the query begins and again in every third of a lease

Nothing runs beside an object store, so drivers clean up after each other: who begins a query, or renews one, removes
those whose lease was not renewed in time, by the store's own clock. So are folders without a lease, into which nothing
was written for as long: somebody wrote there just after the query had ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from volley.errors import LeaseExpired
from volley.ids import QueryId
from volley.shuffle.objects import Folder

_log = logging.getLogger(__name__)
_LEASE = "lease"


class Leases:
    """The leases that this process holds. Its thread lives while there are any."""

    def __init__(self, folder: Folder, lease_seconds: float, is_object: Callable[[str], bool]) -> None:
        """`is_object` knows the paths that the store itself makes in the folder of a query."""
        self._folder = folder
        self._is_object = is_object
        self._lease_seconds = lease_seconds
        self._lock = threading.Lock()
        self._queries: set[QueryId] = set()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, query: QueryId) -> None:
        self._folder.write(self._path(query), b"")
        self._sweep(query)
        with self._lock:
            self._queries.add(query)
            if self._thread is None:
                self._wake = threading.Event()
                self._thread = threading.Thread(
                    target=self._renew, args=(self._wake,), name="volley-leases", daemon=True
                )
                self._thread.start()

    def end(self, query: QueryId) -> None:
        with self._lock:
            self._queries.discard(query)
            if self._queries or self._thread is None:
                return
            thread, self._thread = self._thread, None
            self._wake.set()
        thread.join()

    @property
    def queries(self) -> tuple[QueryId, ...]:
        with self._lock:
            return tuple(self._queries)

    def check(self, query: QueryId) -> None:
        """LeaseExpired unless the query has begun and is neither over nor expired. For any process."""
        if not self._folder.exists(self._path(query)):
            raise LeaseExpired(
                f"query {query} is not in {self._folder.uri}: it is over, or its driver did not show that it lives for"
                f" {self._lease_seconds:g} s.",
                hint="A driver that was paused for so long has to run the query again.",
            )

    def _path(self, query: QueryId) -> str:
        return self._folder.path(query.value, _LEASE)

    def _renew(self, wake: threading.Event) -> None:
        while not wake.wait(self._lease_seconds / 3):
            for query in self.queries:
                try:
                    # One that others have removed must not come back empty.
                    self.check(query)
                    self._folder.write(self._path(query), b"")
                    self._sweep(query)
                except LeaseExpired as error:
                    _log.warning("%s", error)
                    with self._lock:
                        self._queries.discard(query)
                except OSError as error:
                    _log.warning("the lease of query %s could not be renewed: %s", query, error)

    def _sweep(self, renewed: QueryId) -> None:
        """Remove what others left; `renewed` has just been written, so that its age tells the store's time."""
        # What cannot be removed now is tried again with the next renewal.
        with suppress(OSError):
            queries = self._folder.folders()
            times = self._folder.written_at([self._folder.path(query, _LEASE) for query in queries])
            known = dict(zip(queries, times, strict=True))
            now = known.get(renewed.value)
            if now is None:
                return
            for query, written_at in known.items():
                if written_at is None:
                    written_at = self._last_write(query)
                if written_at is not None and now - written_at > self._lease_seconds:
                    self._folder.remove(self._folder.path(query))

    def _last_write(self, query: str) -> float | None:
        """To a folder without a lease; None when that is not known, or it holds what is not of the store."""
        contents = self._folder.contents(self._folder.path(query))
        times = [at for at in contents.values() if at is not None]
        if not times or not all(map(self._is_object, contents)):
            return None
        return max(times)
