# SPDX-License-Identifier: Apache-2.0
"""Leases on queries in an object store: drivers renew their own and remove expired ones.

    <root>/<query>/lease        written when the query begins, and rewritten three times per lease period

An object store has no process that could clean up, so drivers clean up after each other. A driver that begins or renews
a query removes those whose lease has expired, by the store's own clock. It also removes folders without a lease that
were not written to for as long: a late writer created them after the query had ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Set
from contextlib import suppress

from volley.errors import LeaseExpired
from volley.ids import QueryId
from volley.process.log_format import about
from volley.shuffle.object_checkpoints import FOLDER as CHECKPOINTS
from volley.shuffle.objects import Folder

_log = logging.getLogger(__name__)
_LEASE = "lease"


class Leases:
    """The leases that this process holds. A thread renews them while there are any."""

    def __init__(
        self,
        folder: Folder,
        lease_seconds: float,
        is_object: Callable[[str], bool],
        kept_stages: Callable[[float], Mapping[str, Set[str]]],
    ) -> None:
        """`is_object` recognizes the paths that the store creates in the folder of a query. `kept_stages` are the
        subfolders that stay when a query is over, by query, at a time of the store's clock.
        """
        self._folder = folder
        self._kept_stages = kept_stages
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
        self.stop_renewal()

    def stop_renewal(self) -> None:
        """End the thread unless it is still needed: the last lease may have expired instead of being ended."""
        with self._lock:
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
        """Raise LeaseExpired unless the query has begun and is neither over nor expired. Works in any process."""
        if not self._folder.exists(self._path(query)):
            raise LeaseExpired(
                f"query {query} is not in {self._folder.uri}: it is over, or its driver did not renew its lease for"
                f" {self._lease_seconds:g} s.",
                hint="Run the query again if its driver was paused for that long.",
            )

    def _path(self, query: QueryId) -> str:
        return self._folder.path(query.value, _LEASE)

    def _renew(self, wake: threading.Event) -> None:
        while not wake.wait(self._lease_seconds / 3):
            for query in self.queries:
                try:
                    # Writing the lease of a query that others have removed would bring it back empty.
                    self.check(query)
                    self._folder.write(self._path(query), b"")
                    self._sweep(query)
                except LeaseExpired as error:
                    _log.warning("%s", error)
                    with self._lock:
                        self._queries.discard(query)
                except OSError as error:
                    _log.warning(
                        "the lease of query %s could not be renewed: %s", query, error, extra=about(query)
                    )

    def _sweep(self, renewed: QueryId) -> None:
        """Remove expired queries. The lease of `renewed` was just written, so its timestamp is the store's time."""
        # The next renewal tries again what fails now.
        with suppress(OSError):
            queries = [name for name in self._folder.folders() if name != CHECKPOINTS]
            times = self._folder.written_at([self._folder.path(query, _LEASE) for query in queries])
            known = dict(zip(queries, times, strict=True))
            now = known.get(renewed.value)
            if now is None:
                return
            # After the times of the leases: a driver keeps stages only while it has a lease.
            kept = self._kept_stages(now)
            for query, written_at in known.items():
                if written_at is None and query in kept:
                    continue  # it was released before
                if written_at is None:
                    written_at = self._last_write(query)
                if written_at is not None and now - written_at > self._lease_seconds:
                    self.remove(query)

    def remove(self, query: str) -> None:
        """Remove the folder of a query, except for stages that are kept."""
        path = self._folder.path(query)
        kept = self._kept_stages(0.0).get(query)
        if not kept:
            self._folder.remove(path)
            return
        self._folder.delete(self._folder.path(query, _LEASE))
        for stage in {name.partition("/")[0] for name in self._folder.contents(path)} - kept - {_LEASE}:
            self._folder.remove(self._folder.path(query, stage))

    def remove_if_over(self, query: str) -> None:
        """Remove the folder of a query that no driver has a lease on."""
        if not self._folder.exists(self._folder.path(query, _LEASE)):
            self.remove(query)

    def _last_write(self, query: str) -> float | None:
        """When a folder was last written to; None if that is unknown or it holds files that are not the store's."""
        contents = self._folder.contents(self._folder.path(query))
        times = [at for at in contents.values() if at is not None]
        if not times or not all(map(self._is_object, contents)):
            return None
        return max(times)
