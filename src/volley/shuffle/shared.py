# SPDX-License-Identifier: Apache-2.0
"""Stores beside the workers as processes have them: the driver owns the data of a query, workers visit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa

from volley.errors import VolleyError
from volley.ids import AttemptId, QueryId
from volley.loop import Work, run_blocking
from volley.shuffle.base import Block, SharedStore, ShuffleSink

_log = logging.getLogger(__name__)


class WorkerView:
    """A shared store as one worker has it: a query that ends here ends for this worker alone.

    A worker may take a query for over because it is cut off from the driver; the data is not its to remove.
    """

    def __init__(self, store: SharedStore) -> None:
        self._store = store

    @property
    def is_blocking(self) -> bool:
        return self._store.is_blocking

    def sink(self, attempt: AttemptId, partitions: int) -> ShuffleSink:
        return self._store.sink(attempt, partitions)

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        return self._store.read(block)

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        return self._store.read_many(blocks)

    def release(self, query: QueryId) -> None:
        self._store.leave(query)

    @property
    def held_bytes(self) -> int:
        return self._store.held_bytes


class QueryLease:
    """The data of one query as its driver has it: begun before the first task that writes, released at the end."""

    def __init__(self, store: SharedStore) -> None:
        self.store = store
        self._begun = False
        self._lock = asyncio.Lock()

    async def begin(self, query: QueryId) -> None:
        async with self._lock:
            if not self._begun:
                # Also when this fails half-way there may be something to release.
                self._begun = True
                await run_blocking(Work.STORE, self.store.begin, query)

    async def release(self, query: QueryId) -> None:
        if not self._begun:
            return
        try:
            await run_blocking(Work.STORE, self.store.release, query)
        except (VolleyError, OSError) as error:
            # The rows are right all the same; what is left is removed when the lease has ended.
            _log.warning("query %s: its exchanged data could not be removed: %s", query, error)
