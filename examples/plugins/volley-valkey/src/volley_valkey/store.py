# SPDX-License-Identifier: Apache-2.0
"""`ValkeyStore`: a shared store whose data is on a Valkey or Redis server."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pyarrow as pa

from volley.ended_queries import EndedQueries
from volley.errors import BlockMissing, ConfigError
from volley.ids import AttemptId, QueryId
from volley.security import Security
from volley.shuffle import Block, ShuffleConfig
from volley_valkey.lease import Leases
from volley_valkey.server import Server
from volley_valkey.sink import ValkeySink, chunk_field, read_marker, unseal

LEASE_SECONDS = 60.0
_CHUNKS_AT_ONCE = 4


class ValkeyStore:
    """A `SharedStore` on the server at `valkey://host:port/db`, or at `spark.volley.plugin.valkey.url`."""

    protocol_version = 1
    is_blocking = True

    def __init__(
        self,
        config: ShuffleConfig,
        *,
        security: Security,
        memory_limit_bytes: int,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._server = Server(_url(config), config.retry)
        self._codec = config.codec
        self._memory_limit_bytes = memory_limit_bytes
        self._leases = Leases(self._server, lease_seconds)
        self._lock = threading.Lock()
        self._sinks: dict[AttemptId, ValkeySink] = {}
        self._ended = EndedQueries()

    # ---------------------------------------------------------------------------------------------------- queries

    def begin(self, query: QueryId) -> None:
        self._leases.begin(query)

    def leave(self, query: QueryId) -> None:
        with self._lock:
            self._ended.add(query)
            mine = [attempt for attempt in self._sinks if attempt.query == query]
            sinks = [self._sinks.pop(attempt) for attempt in mine]
        for sink in sinks:
            sink.stop()

    def release(self, query: QueryId) -> None:
        self.leave(query)
        self._leases.end(query)
        self._server.release(query)

    def close(self) -> None:
        with self._lock:
            queries = {attempt.query for attempt in self._sinks}
        for query in queries:
            self.leave(query)
        for query in self._leases.queries:
            self.release(query)
        self._server.close()

    @property
    def held_bytes(self) -> int:
        """Bytes that this process has written."""
        with self._lock:
            return sum(sink.held_bytes for sink in self._sinks.values())

    # ---------------------------------------------------------------------------------------------------- writing

    def sink(self, attempt: AttemptId, partitions: int) -> ValkeySink:
        self._check(attempt.query)
        self._server.check(attempt.query)
        with self._lock:
            if attempt in self._sinks:
                raise ValueError(f"{attempt} already has a sink")
            sink = self._sinks[attempt] = ValkeySink(
                attempt, partitions, self._server, self._codec, self._memory_limit_bytes, self._forget
            )
            return sink

    def _forget(self, attempt: AttemptId) -> None:
        with self._lock:
            self._sinks.pop(attempt, None)

    # ---------------------------------------------------------------------------------------------------- reading

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        if block.location != self._server.url:
            raise BlockMissing(f"{block} is not on {self._server.url}.", attempt=block.attempt)
        query, attempt = block.attempt.query, block.attempt
        self._check(query)
        chunks = read_marker(self._server.get(query, [str(attempt)])[0], block)
        for first in range(0, chunks, _CHUNKS_AT_ONCE):
            numbers = range(first, min(first + _CHUNKS_AT_ONCE, chunks))
            fields = [chunk_field(attempt, block.handle, block.partition, number) for number in numbers]
            for value in self._server.get(query, fields):
                yield from unseal(value, block)

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        for block in blocks:
            yield from self.read(block)

    def _check(self, query: QueryId) -> None:
        with self._lock:
            if query in self._ended:
                raise BlockMissing(f"query {query} is over.")


def _url(config: ShuffleConfig) -> str:
    _, separator, rest = config.store.partition("://")
    url = f"redis://{rest}" if separator else dict(config.plugin).get("valkey.url", "")
    if not url:
        raise ConfigError(
            "the shuffle store valkey needs the URL of its server.",
            hint="Set spark.volley.shuffle.store=valkey://host:port/0, or spark.volley.plugin.valkey.url.",
        )
    return url
