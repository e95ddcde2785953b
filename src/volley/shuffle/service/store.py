# SPDX-License-Identifier: Apache-2.0
"""The client side of the shuffle service, as a store.

driver    begin(query), renew its lease on every server, release(query)
worker    sink(attempt): push to the owners of each partition;  read: from any replica, resuming at the next on failure
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NoReturn

import pyarrow as pa

from volley.errors import BlockMissing, ConfigError, QueryError, ShuffleRefused
from volley.ids import AttemptId, QueryId
from volley.process.log_format import about
from volley.rpc.control import AskHealth
from volley.rpc.shuffle_messages import (
    UNAVAILABLE,
    AskCheckpoints,
    CheckpointInfo,
    CheckpointList,
    DropCheckpoint,
    FindStage,
    FoundStage,
    KeepAlive,
    KeepStage,
    Kept,
    Replicate,
    ServiceHealth,
)
from volley.security import Security
from volley.shuffle.active_queries import ActiveQueries
from volley.shuffle.base import Block
from volley.shuffle.budget import MemoryBudget
from volley.shuffle.checkpoint_ids import public_id
from volley.shuffle.config import ShuffleConfig
from volley.shuffle.fetch import Fetch
from volley.shuffle.service.client import ServiceClient
from volley.shuffle.service.location import Replica, ServiceLocation
from volley.shuffle.service.placement import rank_servers
from volley.shuffle.service.sink import ROOM_SECONDS, ServiceSink

_log = logging.getLogger(__name__)

# Concurrent pushes, over all attempts of this process.
_PUSHES = 16
_FIRST_LEASE_SECONDS = 15.0
# A server that did not answer so many renewals in a row is lost, and its blocks need another replica.
_SILENT_RENEWALS = 2
_REPLICATE_SECONDS = 5.0


class ServiceStore:
    """A `SharedStore` on the servers of `config`, each block on `replicas` of them."""

    is_blocking = True

    def __init__(
        self,
        config: ShuffleConfig,
        security: Security,
        *,
        memory_limit_bytes: int,
        application: str = "",
        room_seconds: float = ROOM_SECONDS,
    ) -> None:
        if not config.servers:
            raise ConfigError(
                "spark.volley.shuffle.store=service needs spark.volley.shuffle.service.",
                hint="Start servers with `volley shuffle-service`, or try `volley cluster --services 3`.",
            )
        self._config = config
        self._room_seconds = room_seconds
        self._client = ServiceClient(config.servers, security, config.retry)
        self._budget = MemoryBudget(memory_limit_bytes)
        self._application = application or f"application {secrets.token_hex(4)}"
        self._pool = ThreadPoolExecutor(_PUSHES, thread_name_prefix="volley-push")
        self._active: ActiveQueries[ServiceSink, Replica] = ActiveQueries()
        self._lock = threading.Lock()
        self._mine: set[QueryId] = set()
        self._silent: Counter[str] = Counter()
        self._lease_seconds = _FIRST_LEASE_SECONDS
        self._renewal: _Renewal | None = None

    # --------------------------------------------------------------------------------------------------- queries

    def begin(self, query: QueryId) -> None:
        with self._lock:
            self._mine.add(query)
        if not self.renew_leases():
            with self._lock:
                self._mine.discard(query)
            raise self._none_answers()
        with self._lock:
            if self._renewal is None:
                self._renewal = _Renewal(self)

    def _none_answers(self) -> ShuffleRefused:
        addresses = ", ".join(self._client.addresses)
        return ShuffleRefused(
            UNAVAILABLE,
            f"none of the shuffle servers answers: {addresses}.",
            hint="Look at them with `volley status`.",
        )

    def leave(self, query: QueryId) -> None:
        for sink in self._active.end(query):
            sink.stop()

    def release(self, query: QueryId) -> None:
        self.leave(query)
        with self._lock:
            self._mine.discard(query)
        self._stop_renewal()
        # A server that does not get this call removes the query when its lease expires.
        self._client.call_all("release", query)

    def close(self) -> None:
        mine = self.leased_queries
        for query in mine:
            self.release(query)
        for query in self._active.queries - mine:
            self.leave(query)
        # The last lease may have expired instead of being released.
        self._stop_renewal()
        self._pool.shutdown(cancel_futures=True)

    def _stop_renewal(self) -> None:
        """Stop renewing unless there still are leases."""
        with self._lock:
            if self._mine:
                return
            renewal, self._renewal = self._renewal, None
        if renewal is not None:
            renewal.stop()

    @property
    def held_bytes(self) -> int:
        """Bytes on the servers that answer, of all applications."""
        found = self._client.call_all("health", AskHealth(), ServiceHealth).values()
        return sum(health.held_bytes for health in found if isinstance(health, ServiceHealth))

    @property
    def leased_queries(self) -> frozenset[QueryId]:
        """The queries whose leases this store renews."""
        with self._lock:
            return frozenset(self._mine)

    def renew_leases(self) -> bool:
        """Renew the leases of this driver on every server. Returns whether any server answered."""
        with self._lock:
            message = KeepAlive(self._application, tuple(self._mine))
        answers: dict[str, Kept] = self._client.call_all("keep", message, Kept)
        kept = list(answers.values())
        if kept:
            self._lease_seconds = min(answer.lease_seconds for answer in kept)
        self._restore_replicas(answers)
        # If all servers agree, this driver was silent. A single server may have been paused itself.
        for query in set.intersection(*(set(answer.expired) for answer in kept)) if kept else ():
            _log.warning(
                "query %s was removed: this driver did not renew its lease in time", query, extra=about(query)
            )
            with self._lock:
                self._mine.discard(query)
        return bool(kept)

    def _restore_replicas(self, answers: Mapping[str, Kept]) -> None:
        """Tell the servers that answer which ones do not, or are about to leave."""
        with self._lock:
            for address in self._client.addresses:
                self._silent[address] = 0 if address in answers else self._silent[address] + 1
            gone = tuple(address for address, times in self._silent.items() if times >= _SILENT_RENEWALS)
            queries = tuple(self._mine)
        leaving = tuple(address for address, answer in answers.items() if answer.draining)
        if not queries or not (gone or leaving):
            return
        takers = tuple(address for address in answers if address not in leaving)
        for address in answers:
            message = Replicate(address, queries, gone, leaving, takers, self._config.replicas)
            # The next renewal asks again.
            with suppress(QueryError):
                self._client.call(address, "replicate", message, tries=1, timeout_seconds=_REPLICATE_SECONDS)

    # ----------------------------------------------------------------------------------------------- checkpoints

    def keep_stage(self, stage: KeepStage, locations: Collection[str]) -> None:
        # A server that has none of its blocks keeps the record, so that any of them can be asked.
        answers = self._client.call_all("keep-stage", stage)
        holders = {address for location in locations for address in ServiceLocation.parse(location).addresses}
        missing = sorted(holders - answers.keys())
        if missing or not answers:
            # What others have kept is of no use. One that does not get this call removes it when its time is up.
            self._client.call_all("release", stage.kept)
            addresses = ", ".join(missing or self._client.addresses)
            raise ShuffleRefused(UNAVAILABLE, f"{stage.kept} is not kept by {addresses}.")

    def find_stage(self, wanted: FindStage) -> bytes | None:
        answers: Iterable[FoundStage] = self._client.call_all("find-stage", wanted, FoundStage).values()
        # A server that was away has missed later ones.
        newest = max(answers, key=lambda found: (bool(found.record), found.kept_at), default=FoundStage())
        return newest.record or None

    def checkpoints(self) -> tuple[CheckpointInfo, ...]:
        answers: dict[str, CheckpointList] = self._client.call_all(
            "checkpoints", AskCheckpoints(), CheckpointList
        )
        if not answers:
            raise self._none_answers()
        merged: dict[str, CheckpointInfo] = {}
        for info in (info for answer in answers.values() for info in answer.checkpoints):
            known = merged.get(info.id, CheckpointInfo(info.id, 0, 0, 0.0))
            # Every server has the records of all stages, and its replicas of their blocks.
            merged[info.id] = CheckpointInfo(
                info.id,
                max(known.stages, info.stages),
                known.size_bytes + info.size_bytes,
                max(known.seconds_left, info.seconds_left),
            )
        return tuple(merged.values())

    def drop_checkpoint(self, checkpoint: str) -> bool:
        known = {info.id for info in self.checkpoints()}
        answers = self._client.call_all("drop-checkpoint", DropCheckpoint(checkpoint))
        silent = [address for address in self._client.addresses if address not in answers]
        if silent:
            raise ShuffleRefused(
                UNAVAILABLE,
                f"these shuffle servers do not answer, and may keep stages of the checkpoint: {', '.join(silent)}.",
                hint="Remove it again when they do.",
            )
        return public_id(checkpoint) in known

    # --------------------------------------------------------------------------------------------------- writing

    def sink(self, attempt: AttemptId, partitions: int) -> ServiceSink:
        return self._active.open_sink(
            attempt,
            lambda: ServiceSink(
                attempt,
                partitions,
                client=self._client,
                replicas=self._config.replicas,
                budget=self._budget,
                codec=self._config.codec,
                pool=self._pool,
                room_seconds=self._room_seconds,
            ),
        )

    # --------------------------------------------------------------------------------------------------- reading

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        return self.read_many((block,))

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        """Like the protocol's; blocks of a partition are merged on a server, so one stream reads them all."""
        return self._active.read(blocks, self._holders, self._fetch, _refuse_unplaced)

    def _fetch(self, holders: Sequence[Replica], blocks: Sequence[Block]) -> Fetch[Replica]:
        return Fetch(
            holders,
            blocks,
            lambda replica: self._client.connect(replica.address),
            codec="none",
            budget_bytes=self._config.fetch_budget_bytes,
            retry_policy=self._config.retry,
            max_message_bytes=self._config.max_message_bytes,
        )

    def _holders(self, block: Block) -> list[Replica]:
        try:
            location = ServiceLocation.parse(block.location)
        except ValueError as error:
            raise BlockMissing(f"{block}: {error}.", attempt=block.attempt) from error
        live = self._client.live()
        # Servers that recently failed are asked last; others may have got a replica since.
        named = sorted(location.addresses, key=lambda a: a not in live)
        others = [address for address in live if address not in named]
        ranked = rank_servers(others, block.attempt.task.stage, block.partition)
        return [Replica(address) for address in (*named, *ranked)]


def _refuse_unplaced(block: Block) -> NoReturn:
    raise BlockMissing(f"{block} names no server.", attempt=block.attempt)


class _Renewal:
    """The thread that renews the leases of this driver."""

    def __init__(self, store: ServiceStore) -> None:
        self._store = store
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="volley-leases", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._store._lease_seconds / 3):
            self._store.renew_leases()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
