# SPDX-License-Identifier: Apache-2.0
"""Batches from the event loop to a thread, bounded in bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from queue import SimpleQueue

import pyarrow as pa

from volley.byte_semaphore import ByteSemaphore
from volley.worker.split_queue import Stopped


class Channel:
    """`put` is awaited on the loop, `batches` is read by one thread, the rest may be called from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_bytes: int) -> None:
        self._loop = loop
        self._room = ByteSemaphore(limit_bytes)
        self._lump_bytes = limit_bytes // 8
        self._queue: SimpleQueue[pa.RecordBatch | None] = SimpleQueue()
        self._closed = False

    async def put(self, batch: pa.RecordBatch) -> None:
        await self._room.enter(batch.nbytes)
        self._queue.put(batch)

    def end(self) -> None:
        """No more batches come."""
        self._queue.put(None)

    def close(self) -> None:
        """Stop the reader, who raises Stopped."""
        self._closed = True
        self._queue.put(None)

    def batches(self) -> Iterator[pa.RecordBatch]:
        read_bytes = 0
        while (batch := self._queue.get()) is not None and not self._closed:
            read_bytes += batch.nbytes
            # Waking the loop costs more than many a batch.
            if read_bytes >= self._lump_bytes or self._queue.empty():
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for room
                    self._loop.call_soon_threadsafe(self._room.leave, read_bytes)
                read_bytes = 0
            yield batch
        if self._closed:
            raise Stopped
