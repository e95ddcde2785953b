# SPDX-License-Identifier: Apache-2.0
"""Writes rows from the event loop to a shuffle sink that encodes, checksums and stores them.

A worker's loop also answers drivers and polls other tasks, so it must not block on that work. A thread does it, one
call at a time per attempt. Small batches are collected first: a switch to the thread costs more than writing one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from volley.process.loop import Work, run_blocking
from volley.shuffle.base import Block, ShuffleSink, ShuffleStore

# Writing this much takes about a hundred times as long as the switch to the thread and back.
_FLUSH_BYTES = 2**20


class AsyncSink:
    """The sink of one attempt, for use on an event loop. After a cancelled call, no thread works for it any more."""

    def __init__(self, store: ShuffleStore) -> None:
        self._call: Callable[..., Any] = self._run_on_thread if store.is_blocking else _run_inline
        self._flush_bytes = _FLUSH_BYTES if store.is_blocking else 0
        self._store = store
        self._sink: ShuffleSink
        self._waiting: list[tuple[int, pa.RecordBatch]] = []
        self._waiting_bytes = 0
        # A sink is used by one thread at a time.
        self._turn = asyncio.Lock()

    async def open(self, *arguments: Any) -> None:
        """Open the sink. `arguments` are those of `ShuffleStore.sink`."""
        if self._store.is_blocking:
            self._sink = await run_blocking(Work.SINK, self._store.sink, *arguments)
        else:
            self._sink = self._store.sink(*arguments)

    async def write(self, partition: int, batch: pa.RecordBatch) -> None:
        """Add a batch to a partition. Waits while the sink is behind."""
        self._waiting.append((partition, batch))
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= self._flush_bytes:
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

    async def _run_on_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        # Abort on cancellation: a write may be waiting for room, which a cancelled attempt never gets.
        return await run_blocking(Work.SINK, function, *arguments, on_cancel=self._sink.abort)

    def _write_all(self, batches: list[tuple[int, pa.RecordBatch]]) -> None:
        for partition, batch in batches:
            self._sink.write(partition, batch)


async def _run_inline(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)
