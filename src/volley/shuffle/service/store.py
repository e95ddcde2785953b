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
from typing import NoReturn

import pyarrow as pa

from volley.errors import BlockMissing, ConfigError, ShuffleRefused
from volley.ids import AttemptId, QueryId
from volley.rpc.control import AskHealth
from volley.rpc.service import UNAVAILABLE, KeepAlive, Kept, ServiceHealth
from volley.security import Security
from volley.shuffle.base import Block
from volley.shuffle.budget import MemoryBudget
from volley.shuffle.config import ShuffleConfig
from volley.shuffle.fetch import Fetch
from volley.shuffle.service.client import ServiceClient
from volley.shuffle.service.location import Replica, ServiceLocation
from volley.shuffle.service.sink import ServiceSink
from volley.shuffle.under_way import UnderWay

_log = logging.getLogger(__name__)

# Pushes at a time, over all attempts of this process.
_PUSHES = 16
_FIRST_LEASE_SECONDS = 15.0


class ServiceStore:
    """A `SharedStore` on the servers of `config`, each block on `replicas` of them."""

    is_blocking = True

    def __init__(
        self, config: ShuffleConfig, security: Security, *, memory_limit_bytes: int, application: str = ""
    ) -> None:
        if not config.servers:
            raise ConfigError(
                "spark.volley.shuffle.store=service needs spark.volley.shuffle.service.",
                hint="Start servers with `volley shuffle-service`, or try `volley cluster --services 3`.",
            )
        self._config = config
        self._client = ServiceClient(config.servers, security, config.retry)
        self._budget = MemoryBudget(memory_limit_bytes, 1.0)
        self._application = application or f"application {secrets.token_hex(4)}"
        self._pool = ThreadPoolExecutor(_PUSHES, thread_name_prefix="volley-push")
        self._under_way: UnderWay[ServiceSink, Replica] = UnderWay()
        self._lock = threading.Lock()
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
        for sink in self._under_way.end(query):
            sink.stop()

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
        for query in mine:
            self.release(query)
        for query in self._under_way.queries - mine:
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
        return self._under_way.open_sink(
            attempt,
            lambda: ServiceSink(
                attempt,
                partitions,
                client=self._client,
                replicas=self._config.replicas,
                budget=self._budget,
                codec=self._config.codec,
                pool=self._pool,
            ),
        )

    # --------------------------------------------------------------------------------------------------- reading

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        return self.read_many((block,))

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        """One stream for all blocks that the same servers have: those of a partition are merged there."""
        return self._under_way.read(blocks, self._holders, self._fetch, _nowhere)

    def _fetch(self, holders: Sequence[Replica], blocks: Sequence[Block]) -> Fetch[Replica]:
        return Fetch(
            holders,
            blocks,
            lambda replica: self._client.connect(replica.address),
            codec="none",
            budget_bytes=self._config.fetch_budget_bytes,
            retry_policy=self._config.retry,
        )

    def _holders(self, block: Block) -> list[Replica]:
        try:
            location = ServiceLocation.parse(block.location)
        except ValueError as error:
            raise BlockMissing(f"{block}: {error}.", attempt=block.attempt) from error
        live = self._client.live()
        # Those that are away are asked last.
        return [Replica(address) for address in sorted(location.addresses, key=lambda a: a not in live)]


def _nowhere(block: Block) -> NoReturn:
    raise BlockMissing(f"{block} names no server.", attempt=block.attempt)


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
