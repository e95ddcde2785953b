# SPDX-License-Identifier: Apache-2.0
"""Sends the output of one attempt to the servers that own its partitions.

    write   ->  chunks, each for the owners of its partition  ->  outboxes  ->  reserve, push
    commit  ->  one server after the other, in the same order for all attempts

A failed server is dropped. Its chunks are sent to the next owner if this process still has them; otherwise the other
replicas must do. If a partition has no complete replica left, the attempt fails, and the next one uses other servers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from volley.errors import BlockMissing, LeaseExpired, QueryError, ShuffleRefused
from volley.ids import AttemptId
from volley.rpc.shuffle_messages import (
    DAMAGED_ON_WAY,
    ELSEWHERE,
    FULL,
    UNAVAILABLE,
    CommitAttempt,
    CommittedBlock,
    Granted,
    PushChunks,
    PushedChunk,
    ReserveBytes,
)
from volley.shuffle.base import Block
from volley.shuffle.budget import MemoryBudget
from volley.shuffle.chunked_sink import ChunkedSink
from volley.shuffle.chunks import Chunk, seal
from volley.shuffle.service.client import ServerLost, ServiceClient
from volley.shuffle.service.location import ServiceLocation
from volley.shuffle.service.placement import rank_servers
from volley.shuffle.service.server import push_body

ROOM_SECONDS = 60.0
"""A server without room for this long is considered full."""

# Chunks for a server are collected until there is this much to push.
_PUSH_BYTES = 4 * 2**20
# Switching to another server is better than more retries.
_TRIES = 2
_FIRST_WAIT_SECONDS = 0.01
_LAST_WAIT_SECONDS = 0.5


@dataclass
class _Partition:
    """`kept` holds its chunks as long as this process has all of them, and is None afterwards."""

    holders: list[str]
    kept: list[pa.Buffer] | None = field(default_factory=list)
    kept_bytes: int = 0


@dataclass
class _Outbox:
    """Chunks still to be pushed to a server, and the pending push to it."""

    chunks: list[tuple[PushedChunk, pa.Buffer]] = field(default_factory=list)
    size_bytes: int = 0
    pending: Future[None] | None = None


class ServiceSink(ChunkedSink):
    """A `ShuffleSink`."""

    def __init__(
        self,
        attempt: AttemptId,
        partitions: int,
        *,
        client: ServiceClient,
        replicas: int,
        budget: MemoryBudget,
        codec: str,
        pool: ThreadPoolExecutor,
        room_seconds: float = ROOM_SECONDS,
    ) -> None:
        super().__init__(attempt, partitions, budget)
        self._client = client
        self._replicas = replicas
        self._budget = budget
        self._codec = codec
        self._pool = pool
        self._room_seconds = room_seconds
        live = client.live() or list(client.addresses)
        self._partitions = [_Partition(self._owners(number, live)) for number in range(partitions)]
        self._outboxes: dict[str, _Outbox] = {}
        self._failed: dict[str, QueryError] = {}
        self._committed_on: set[str] = set()

    # ---------------------------------------------------------------------------------------------- for the writer

    def write(self, partition: int, batch: pa.RecordBatch) -> None:
        with self._lock:
            self._check_open()
            self._send(self._builder.add(partition, batch))

    def flush(self) -> None:
        """Push everything that was written, and wait until the servers have it."""
        with self._lock:
            self._check_open()
            self._push_all()

    def commit(self) -> tuple[Block, ...]:
        with self._lock:
            self._check_open()
            self._push_all()
            packed = [self._index(number) for number in range(len(self._partitions))]
            # All attempts commit on the servers in the same order, so of two rivals the same one is first everywhere.
            while waiting := sorted(self._holders() - self._committed_on):
                self._commit_on(waiting[0], packed)
            self._is_committed = True
            self._free()
            return tuple(
                self._block(
                    number,
                    str(ServiceLocation(tuple(partition.holders))),
                    packed[number],
                    outlives_worker=True,
                )
                for number, partition in enumerate(self._partitions)
            )

    def abort(self) -> None:
        # Wakes a writer that waits for room.
        self._closed.set()
        with self._lock:
            if self._is_committed:
                return
            self._stop()
            for address in self._outboxes:
                # Best effort: releasing the query frees the rest.
                with suppress(QueryError):
                    self._client.call(address, "abort", self._attempt, tries=1)

    def stop(self) -> None:
        """Close the sink because its query is over. Later writes are refused."""
        self._closed.set()
        with self._lock:
            self._stop()

    # -------------------------------------------------------------------------------------------------- pushing

    def _send(self, ready: Iterable[tuple[int, pa.RecordBatch]]) -> None:
        for number, batch in ready:
            partition = self._partitions[number]
            sealed = seal(batch, self._codec)
            chunk = Chunk(0, len(self._chunks[number]), sealed.data.size, batch.num_rows, sealed.checksum)
            self._chunks[number].append(chunk)
            self._keep(partition, sealed.data)
            for address in list(partition.holders):
                self._put(address, number, chunk, sealed.data)

    def _put(self, address: str, partition: int, chunk: Chunk, data: pa.Buffer) -> None:
        if address in self._failed:
            return
        outbox = self._outboxes.setdefault(address, _Outbox())
        pushed = PushedChunk(partition, chunk.start, chunk.size_bytes, chunk.checksum)
        outbox.chunks.append((pushed, data))
        outbox.size_bytes += data.size
        if outbox.size_bytes >= _PUSH_BYTES:
            self._start(address)

    def _start(self, address: str) -> None:
        """Start pushing the collected chunks to a server, after the previous push."""
        if not self._finish(address):
            return
        outbox = self._outboxes[address]
        if not outbox.chunks:
            return
        chunks, outbox.chunks, outbox.size_bytes = outbox.chunks, [], 0
        outbox.pending = self._pool.submit(self._push, address, chunks)

    def _finish(self, address: str) -> bool:
        """Wait for the pending push. Returns False if the server failed and was replaced."""
        outbox = self._outboxes[address]
        pending, outbox.pending = outbox.pending, None
        if pending is None:
            return address not in self._failed
        try:
            pending.result()
        except QueryError as error:
            self._replace(address, error)
            return False
        return True

    def _push_all(self) -> None:
        self._send(self._builder.flush())
        self._empty_outboxes()

    def _empty_outboxes(self) -> None:
        """Push everything and wait for it, including pushes to servers that replaced others meanwhile."""
        while busy := [a for a, box in self._outboxes.items() if box.chunks or box.pending]:
            for address in busy:
                self._start(address)
            for address in busy:
                self._finish(address)

    def _push(self, address: str, chunks: list[tuple[PushedChunk, pa.Buffer]]) -> None:
        self._reserve(address, sum(data.size for _, data in chunks))
        message = PushChunks(self._attempt, tuple(chunk for chunk, _ in chunks))
        body = push_body(message, [data for _, data in chunks])
        for last in (False, True):
            try:
                self._client.call(address, "push", body, tries=_TRIES, stopped=self._closed.is_set)
                return
            except ShuffleRefused as error:
                # Retry once: the damage may have happened in transit.
                if error.code != DAMAGED_ON_WAY or last:
                    raise

    def _reserve(self, address: str, size_bytes: int) -> None:
        """Wait for room, so that no server gets more than it can hold."""
        deadline = time.monotonic() + self._room_seconds
        wait_seconds = _FIRST_WAIT_SECONDS
        while True:
            message = ReserveBytes(self._attempt, size_bytes)
            if self._client.call(
                address, "reserve", message, Granted, tries=_TRIES, stopped=self._closed.is_set
            ).size_bytes:
                return
            if time.monotonic() > deadline:
                raise ShuffleRefused(FULL, f"{address} had no room for {self._room_seconds:g} s.")
            if self._closed.wait(wait_seconds):
                raise BlockMissing(f"{self._attempt}: its output is closed.")
            wait_seconds = min(2 * wait_seconds, _LAST_WAIT_SECONDS)

    # ------------------------------------------------------------------------------------------------- replicas

    def _owners(self, partition: int, servers: Iterable[str]) -> list[str]:
        return rank_servers(servers, self._attempt.task.stage, partition)[: self._replicas]

    def _holders(self) -> set[str]:
        return {address for partition in self._partitions for address in partition.holders}

    def _replace(self, address: str, error: QueryError) -> None:
        """Continue without a server. Raises `error` if it is not the server's fault, or no replica is left."""
        # If the lease has expired on one server, that server may have been paused: others still have the query.
        elsewhere = isinstance(error, ServerLost | LeaseExpired)
        if not elsewhere and not (isinstance(error, ShuffleRefused) and error.code in ELSEWHERE):
            raise error
        self._failed[address] = error
        box = self._outboxes.get(address)
        if box is not None:
            box.chunks, box.size_bytes = [], 0
        usable = [
            other
            for other in self._client.live()
            if other not in self._failed and other not in self._committed_on
        ]
        for number, partition in enumerate(self._partitions):
            if address not in partition.holders:
                continue
            partition.holders.remove(address)
            if partition.kept is not None:
                others = [other for other in usable if other not in partition.holders]
                for other in self._owners(number, others)[:1]:
                    partition.holders.append(other)
                    for chunk, data in zip(self._chunks[number], partition.kept, strict=True):
                        self._put(other, number, chunk, data)
            if not partition.holders and isinstance(error, LeaseExpired):
                raise error
            if not partition.holders:
                raise ShuffleRefused(
                    UNAVAILABLE,
                    f"{self._attempt}: no server has a complete partition {number}. {error.message}",
                ) from error

    def _keep(self, partition: _Partition, data: pa.Buffer) -> None:
        if partition.kept is None:
            return
        if self._budget.admit(data.size):
            partition.kept.append(data)
            partition.kept_bytes += data.size
        else:
            self._forget(partition)

    def _forget(self, partition: _Partition) -> None:
        partition.kept = None
        self._budget.free(partition.kept_bytes)
        partition.kept_bytes = 0

    # --------------------------------------------------------------------------------------------------- commit

    def _commit_on(self, address: str, packed: list[bytes]) -> None:
        blocks = tuple(
            CommittedBlock(number, packed[number], tuple(partition.holders))
            for number, partition in enumerate(self._partitions)
            if address in partition.holders
        )
        try:
            self._client.call(
                address,
                "commit",
                CommitAttempt(self._attempt, blocks),
                tries=_TRIES,
                stopped=self._closed.is_set,
            )
        except QueryError as error:
            self._replace(address, error)
            self._empty_outboxes()
        else:
            self._outboxes.setdefault(address, _Outbox())
            self._committed_on.add(address)

    # -------------------------------------------------------------------------------------------------- helpers

    def _stop(self) -> None:
        for outbox in self._outboxes.values():
            outbox.chunks = []
            if outbox.pending is not None:
                with suppress(QueryError):
                    outbox.pending.result()
                outbox.pending = None
        self._free()

    def _free(self) -> None:
        self._builder.clear()
        for partition in self._partitions:
            self._forget(partition)
