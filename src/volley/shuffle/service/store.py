# SPDX-License-Identifier: Apache-2.0
"""The shuffle service as the processes that use it see it.

driver    begin(query), and word to every server again and again that it lives; release(query)
worker    sink(attempt): to the owners of each partition;  read: from any replica, going on at the next where one fails
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pyarrow as pa

from volley.errors import BlockMissing, ConfigError, ShuffleRefused
from volley.ids import AttemptId, QueryId
from volley.rpc.control import AskHealth
from volley.rpc.service import UNAVAILABLE, KeepAlive, Kept, ServiceHealth
from volley.security import Security
from volley.shuffle.base import Block
from volley.shuffle.budget import MemoryBudget
from volley.shuffle.fetch import Fetch, RetryPolicy
from volley.shuffle.released import Released
from volley.shuffle.service.client import ServiceClient
from volley.shuffle.service.location import Replica, ServiceLocation
from volley.shuffle.service.sink import ServiceSink

_log = logging.getLogger(__name__)

# Read ahead per stream, as between workers.
_BUDGET_BYTES = 16 * 2**20
# Pushes at a time, over all attempts of this process.
_PUSHES = 16
_FIRST_LEASE_SECONDS = 15.0


class ServiceStore:
    """A `SharedStore` on the servers at `addresses`, each block on `replicas` of them."""

    is_blocking = True

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        replicas: int,
        security: Security,
        memory_limit_bytes: int,
        compression: str,
        retry_policy: RetryPolicy,
        application: str = "",
    ) -> None:
        if not addresses:
            raise ConfigError(
                "spark.volley.shuffle.store=service needs spark.volley.shuffle.service.",
                hint="Start servers with `volley shuffle-service`, or try `volley cluster --services 3`.",
            )
        self._client = ServiceClient(addresses, security, retry_policy)
        self._replicas = replicas
        self._budget = MemoryBudget(memory_limit_bytes, 1.0)
        self._codec = "lz4" if compression == "auto" else compression
        self._retry_policy = retry_policy
        self._application = application or f"application {secrets.token_hex(4)}"
        self._pool = ThreadPoolExecutor(_PUSHES, thread_name_prefix="volley-push")
        # An abandoned reader may be cleaned up on any thread, in the middle of anything.
        self._lock = threading.RLock()
        self._sinks: dict[AttemptId, ServiceSink] = {}
        self._fetches: dict[Fetch[Replica], frozenset[QueryId]] = {}
        self._over = Released()
        self._mine: set[QueryId] = set()
        self._lease_seconds = _FIRST_LEASE_SECONDS
        self._renewal: _Renewal | None = None

    # --------------------------------------------------------------------------------------------------- queries

    def begin(self, query: QueryId) -> None:
        with self._lock:
            self._mine.add(query)
        if not self._tell():
            with self._lock:
                self._mine.discard(query)
            raise ShuffleRefused(
                UNAVAILABLE,
                f"none of the shuffle servers answers: {', '.join(self._client.addresses)}.",
                hint="Look at them with `volley status`.",
            )
        with self._lock:
            if self._renewal is None:
                self._renewal = _Renewal(self)

    def leave(self, query: QueryId) -> None:
        with self._lock:
            self._over.add(query)
            mine = [attempt for attempt in self._sinks if attempt.query == query]
            sinks = [self._sinks.pop(attempt) for attempt in mine]
            fetches = [fetch for fetch, queries in list(self._fetches.items()) if query in queries]
        for sink in sinks:
            sink.stop()
        for fetch in fetches:
            fetch.fail(BlockMissing(f"query {query} is over."))

    def release(self, query: QueryId) -> None:
        self.leave(query)
        with self._lock:
            self._mine.discard(query)
            renewal = None
            if not self._mine:
                renewal, self._renewal = self._renewal, None
        if renewal is not None:
            renewal.stop()
        # A server that does not hear it now removes the query when its lease ends.
        self._client.call_all("release", query)

    def close(self) -> None:
        with self._lock:
            mine = set(self._mine)
            others = {attempt.query for attempt in self._sinks} - mine
        for query in mine:
            self.release(query)
        for query in others:
            self.leave(query)
        self._pool.shutdown(cancel_futures=True)

    @property
    def held_bytes(self) -> int:
        """What the servers that answer hold, of all applications."""
        found = self._client.call_all("health", AskHealth(), ServiceHealth).values()
        return sum(health.held_bytes for health in found if isinstance(health, ServiceHealth))

    def _tell(self) -> bool:
        """Show every server that this driver lives; whether one of them heard it."""
        with self._lock:
            message = KeepAlive(self._application, tuple(self._mine))
        kept: list[Kept] = list(self._client.call_all("keep", message, Kept).values())
        if kept:
            self._lease_seconds = min(answer.lease_seconds for answer in kept)
        # Where all agree it was this driver that was silent; one alone may have been paused itself.
        for query in set.intersection(*(set(answer.expired) for answer in kept)) if kept else ():
            _log.warning("query %s was removed: this driver has been silent for too long", query)
            with self._lock:
                self._mine.discard(query)
        return bool(kept)

    # --------------------------------------------------------------------------------------------------- writing

    def sink(self, attempt: AttemptId, partitions: int) -> ServiceSink:
        with self._lock:
            if attempt.query in self._over:
                raise BlockMissing(f"{attempt}: its query is over.")
            if attempt in self._sinks:
                raise ValueError(f"{attempt} has begun its output already")
            sink = self._sinks[attempt] = ServiceSink(
                attempt,
                partitions,
                client=self._client,
                replicas=self._replicas,
                budget=self._budget,
                codec=self._codec,
                pool=self._pool,
            )
            return sink

    # --------------------------------------------------------------------------------------------------- reading

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        return self.read_many((block,))

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        """One stream for all blocks that the same servers have: those of a partition are merged there."""
        with ExitStack() as under_way:
            wanted: dict[str, list[Block]] = {}
            for block in blocks:
                wanted.setdefault(block.location, []).append(block)
            fetches = {
                location: under_way.enter_context(self._fetching(of_location))
                for location, of_location in wanted.items()
            }
            taken = dict.fromkeys(fetches, 0)
            for block in blocks:
                yield from fetches[block.location].batches(taken[block.location])
                taken[block.location] += 1

    @contextmanager
    def _fetching(self, blocks: Sequence[Block]) -> Iterator[Fetch[Replica]]:
        queries = frozenset(block.attempt.query for block in blocks)
        holders = self._holders(blocks[0])
        with self._lock:
            for query in filter(self._over.__contains__, queries):
                raise BlockMissing(f"query {query} is over.")
            fetch = Fetch(
                holders,
                blocks,
                lambda replica: self._client.connect(replica.address),
                codec="none",
                budget_bytes=_BUDGET_BYTES,
                retry_policy=self._retry_policy,
            )
            self._fetches[fetch] = queries
        try:
            yield fetch
        finally:
            fetch.close()
            with self._lock:
                del self._fetches[fetch]

    def _holders(self, block: Block) -> list[Replica]:
        try:
            location = ServiceLocation.parse(block.location)
        except ValueError as error:
            raise BlockMissing(f"{block}: {error}.", attempt=block.attempt) from error
        live = self._client.live()
        # Those that are away are asked last.
        return [Replica(address) for address in sorted(location.addresses, key=lambda a: a not in live)]


class _Renewal:
    """The thread that tells the servers that this driver lives."""

    def __init__(self, store: ServiceStore) -> None:
        self._store = store
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="volley-leases", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._store._lease_seconds / 3):
            self._store._tell()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
