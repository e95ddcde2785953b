# SPDX-License-Identifier: Apache-2.0
"""Tables whose rows come from threads of the task, in passes: each time such a table is read, it is computed again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

import pyarrow as pa

from volley.batches import empty_batch
from volley.lower.streams import StreamTable
from volley.worker.batch_queue import NOTHING, BatchQueue, PartitionQueue
from volley.worker.engine_threads import EngineThreads
from volley.worker.split_queue import Stopped

# How long DataFusion's thread waits for a batch before it does other work: see `worker.scan`.
_TURN_SECONDS = 0.001
_LONGEST_SECONDS = 0.02
_POLL_SECONDS = 0.002


class Pass(Protocol):
    """Rows that are being computed."""

    @property
    def output(self) -> BatchQueue | PartitionQueue: ...

    @property
    def busy(self) -> bool:
        """Whether threads or plans of it still run."""
        ...

    def start(self) -> None: ...

    def close(self) -> None:
        """Tell it to stop."""
        ...


class Passes:
    """The passes that one run of an attempt has begun."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passes: list[Pass] = []
        self._closed = False

    def start(self, make: Callable[[], Pass]) -> Pass:
        """Begin a pass. `make` is called by one thread at a time."""
        with self._lock:
            if self._closed:
                raise Stopped
            started = make()
            self._passes.append(started)
            started.start()
        return started

    def close(self) -> None:
        with self._lock:
            self._closed = True
            passes = list(self._passes)
        for item in passes:
            item.close()

    async def wait_closed(self, seconds: float) -> None:
        """Wait for them to stop, but not for longer than that: one may be in a call that cannot be interrupted."""
        deadline = time.monotonic() + seconds
        while any(item.busy for item in self._passes) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)


class PassTable:
    """A table of `width` streams. `begin` starts a pass, on a thread of DataFusion's."""

    def __init__(
        self, schema: pa.Schema, width: int, begin: Callable[[], Pass], threads: EngineThreads
    ) -> None:
        self._schema = schema
        self._begin = begin
        self._threads = threads
        self._lock = threading.Lock()
        self._passes: list[Pass] = []
        self._read = [0] * width

    def streams(self) -> StreamTable:
        return StreamTable(
            self._schema, [partial(self._batches, number) for number in range(len(self._read))]
        )

    def _batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """Rows for one of DataFusion's streams, which share them: any of them may end early, but for the first."""
        with self._lock:
            place = self._read[number]
            self._read[number] += 1
            if place == len(self._passes):
                self._passes.append(self._begin())
                self._threads.hold()
            elif not self._threads.try_hold():
                return
        nothing = empty_batch(self._schema)
        wait_seconds = _TURN_SECONDS
        try:
            while (batch := self._passes[place].output.get(wait_seconds)) is not None:
                # Polling a slow function a thousand times a second costs more than it gains.
                wait_seconds = min(2 * wait_seconds, _LONGEST_SECONDS) if batch is NOTHING else _TURN_SECONDS
                yield nothing if batch is NOTHING else batch
        finally:
            self._threads.release()
