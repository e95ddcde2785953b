# SPDX-License-Identifier: Apache-2.0
"""A shared store as a worker and as a driver use it: the driver owns the data of a query, workers do not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa

from volley.errors import VolleyError
from volley.ids import AttemptId, QueryId
from volley.process.log_format import about
from volley.process.loop import Work, run_blocking
from volley.shuffle.base import Block, SharedStore, ShuffleSink

_log = logging.getLogger(__name__)


class WorkerView:
    """A shared store as one worker uses it: releasing a query here only ends it for this worker.

    A worker that is cut off from the driver considers the query over, so it must not remove its data.
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
    """The driver's lease on the data of one query, from before the first task that writes to the end."""

    def __init__(self, store: SharedStore) -> None:
        self.store = store
        self._begun = False
        self._lock = asyncio.Lock()

    async def begin(self, query: QueryId) -> None:
        async with self._lock:
            if not self._begun:
                # Even if this fails half-way there may be data to release.
                self._begun = True
                await run_blocking(Work.STORE, self.store.begin, query)

    async def release(self, query: QueryId) -> None:
        if not self._begun:
            return
        try:
            await run_blocking(Work.STORE, self.store.release, query)
        except (VolleyError, OSError) as error:
            # The result is correct. The rest is removed when the lease expires.
            _log.warning(
                "query %s: its exchanged data could not be removed: %s", query, error, extra=about(query)
            )
