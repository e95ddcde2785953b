# SPDX-License-Identifier: Apache-2.0
"""The open sinks and fetches of a store, by query. Those of a query end together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import pyarrow as pa

from volley.ended_queries import EndedQueries
from volley.errors import BlockMissing
from volley.ids import AttemptId, QueryId
from volley.shuffle.base import Block, ShuffleSink
from volley.shuffle.location import Place

if TYPE_CHECKING:
    from volley.shuffle.fetch import Fetch

Sink = TypeVar("Sink", bound=ShuffleSink)


class ActiveQueries(Generic[Sink, Place]):
    """May be used from any thread."""

    def __init__(self) -> None:
        # Reentrant: garbage collection can close an abandoned reader on any thread, even one that holds the lock.
        self._lock = threading.RLock()
        self._sinks: dict[AttemptId, Sink] = {}
        self._fetches: dict[Fetch[Place], frozenset[QueryId]] = {}
        self._ended = EndedQueries()

    def open_sink(self, attempt: AttemptId, make: Callable[[], Sink]) -> Sink:
        """Create the sink of an attempt. ValueError if it has one, BlockMissing if its query is over."""
        with self._lock:
            if attempt.query in self._ended:
                raise BlockMissing(f"{attempt}: its query is over.")
            if attempt in self._sinks:
                raise ValueError(f"{attempt} already has a sink")
            sink = self._sinks[attempt] = make()
            return sink

    def sink(self, attempt: AttemptId) -> Sink | None:
        with self._lock:
            return self._sinks.get(attempt)

    def sinks(self, query: QueryId | None = None) -> list[Sink]:
        """The sinks of a query, or all sinks."""
        with self._lock:
            return [sink for attempt, sink in self._sinks.items() if query in (None, attempt.query)]

    def forget_sink(self, attempt: AttemptId) -> None:
        with self._lock:
            self._sinks.pop(attempt, None)

    def is_over(self, query: QueryId) -> bool:
        with self._lock:
            return query in self._ended

    @property
    def queries(self) -> set[QueryId]:
        """Queries that have open sinks or fetches."""
        with self._lock:
            return {attempt.query for attempt in self._sinks}.union(*self._fetches.values())

    def end(self, query: QueryId) -> list[Sink]:
        """Refuse further work of a query and end its fetches. Returns its sinks, for the store to close."""
        with self._lock:
            self._ended.add(query)
            mine = [attempt for attempt in self._sinks if attempt.query == query]
            sinks = [self._sinks.pop(attempt) for attempt in mine]
            fetches = [fetch for fetch, queries in list(self._fetches.items()) if query in queries]
        for fetch in fetches:
            fetch.fail(BlockMissing(f"query {query} is over."))
        return sinks

    def read(
        self,
        blocks: Sequence[Block],
        holders: Callable[[Block], Sequence[Place]],
        fetch: Callable[[Sequence[Place], Sequence[Block]], Fetch[Place]],
        read_local: Callable[[Block], Iterator[pa.RecordBatch]],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the blocks in order, with one `fetch` for all blocks that have the same location.

        `holders` returns the processes to fetch a block from; if there are none, `read_local` reads it.
        """
        wanted: dict[str, list[Block]] = {}
        for block in blocks:
            wanted.setdefault(block.location, []).append(block)
        with ExitStack() as resources:
            fetches = {
                location: resources.enter_context(self._fetching(partial(fetch, places, mine), mine))
                for location, mine in wanted.items()
                if (places := holders(mine[0]))
            }
            taken = dict.fromkeys(fetches, 0)
            for block in blocks:
                if block.location in fetches:
                    yield from fetches[block.location].batches(taken[block.location])
                    taken[block.location] += 1
                else:
                    yield from read_local(block)

    @contextmanager
    def _fetching(self, start: Callable[[], Fetch[Place]], blocks: Sequence[Block]) -> Iterator[Fetch[Place]]:
        queries = frozenset(block.attempt.query for block in blocks)
        with self._lock:
            for query in filter(self._ended.__contains__, queries):
                raise BlockMissing(f"query {query} is over.")
            fetch = start()
            self._fetches[fetch] = queries
        try:
            yield fetch
        finally:
            fetch.close()
            with self._lock:
                del self._fetches[fetch]
