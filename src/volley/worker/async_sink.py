# SPDX-License-Identifier: Apache-2.0
"""Rows on their way from the event loop to a store that packs, hashes and writes them.

The loop of a worker also answers its drivers and polls its other tasks, so it must not do that work itself. A thread
does, for one attempt at a time; batches are gathered first, because the way to a thread costs more than a small batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from volley.loop import Work, run_blocking
from volley.shuffle.base import Block, ShuffleSink, ShuffleStore

# Some hundred times what the way to the thread and back costs.
_GATHERED_BYTES = 2**20


class AsyncSink:
    """The sink of one attempt, to be used on an event loop; nothing of it runs any more when a call is cancelled."""

    def __init__(self, store: ShuffleStore) -> None:
        self._call: Callable[..., Any] = self._on_thread if store.is_blocking else _now
        self._gathered_bytes = _GATHERED_BYTES if store.is_blocking else 0
        self._store = store
        self._sink: ShuffleSink
        self._waiting: list[tuple[int, pa.RecordBatch]] = []
        self._waiting_bytes = 0
        # A sink is used by one thread at a time.
        self._turn = asyncio.Lock()

    async def open(self, *arguments: Any) -> None:
        """Begin; `arguments` are those of `ShuffleStore.sink`."""
        if self._store.is_blocking:
            self._sink = await run_blocking(Work.SINK, self._store.sink, *arguments)
        else:
            self._sink = self._store.sink(*arguments)

    async def write(self, partition: int, batch: pa.RecordBatch) -> None:
        """Add a batch to a partition. Waits while the sink is behind."""
        self._waiting.append((partition, batch))
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= self._gathered_bytes:
            await self._flush()

    async def commit(self) -> tuple[Block, ...]:
        await self._flush()
        blocks: tuple[Block, ...] = await self._call(self._sink.commit)
        return blocks

    async def abort(self) -> None:
        async with self._turn:
            await self._call(self._sink.abort)

    async def _flush(self) -> None:
        async with self._turn:
            batches, self._waiting, self._waiting_bytes = self._waiting, [], 0
            if batches:
                await self._call(self._write_all, batches)

    async def _on_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        # A write may wait for room that comes to nobody who is cancelled.
        return await run_blocking(Work.SINK, function, *arguments, on_cancel=self._sink.abort)

    def _write_all(self, batches: list[tuple[int, pa.RecordBatch]]) -> None:
        for partition, batch in batches:
            self._sink.write(partition, batch)


async def _now(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)
