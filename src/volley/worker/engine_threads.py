# SPDX-License-Identifier: Apache-2.0
"""Keeps some of DataFusion's threads free while fed scans and Python operators wait for rows.

A stream of a fed scan blocks the thread that polls it. Below an operator that merges partitions, DataFusion polls it
again and again and never yields the thread. Opening the file of a split needs a thread, too: if waiting streams held
all of them, none would ever get a row.

So a process runs a limited number of fed scans at a time, and a stream beyond the limit ends at once. That is correct
because the streams of a scan share one queue, and its first stream always runs. The same holds for Python operators,
whose plans below need threads.
"""

from __future__ import annotations

import asyncio
import os
import threading

from volley.process.runtime import Phase, Shared

THREADS = "TOKIO_WORKER_THREADS"
"""The environment variable that sets the number of threads of DataFusion's runtime, which reads it when it starts."""

_POLL_SECONDS = 0.002


class EngineThreads:
    """Counts the threads that fed scans may hold, of all tasks of a process. Methods may be called from any thread."""

    def __init__(self, threads: int) -> None:
        self.table_limit = max(1, threads - 2)
        """The most scans and Python operators of a task: each holds a thread, and one must be left."""
        self._scan_limit = max(1, threads // 4)
        self._stream_limit = max(1, threads // 2)
        self._scans = 0
        self._streams = 0
        self._lock = threading.Lock()

    async def admit(self, scans: int) -> None:
        """Wait until this many more scans may run. A task with more than the limit runs when no other does."""
        while not self._try_admit(scans):
            await asyncio.sleep(_POLL_SECONDS)

    def leave(self, scans: int) -> None:
        with self._lock:
            self._scans -= scans

    def try_hold(self) -> bool:
        """Whether another stream of a scan that has one already may hold a thread."""
        with self._lock:
            if self._streams >= self._stream_limit:
                return False
            self._streams += 1
            return True

    def hold(self) -> None:
        """Hold a thread for the first stream of a scan."""
        with self._lock:
            self._streams += 1

    def release(self) -> None:
        with self._lock:
            self._streams -= 1

    def _try_admit(self, scans: int) -> bool:
        with self._lock:
            if scans and self._scans and self._scans + scans > self._scan_limit:
                return False
            self._scans += scans
            return True


_threads: Shared[None, EngineThreads] = Shared(Phase.ENGINE, close=lambda _: None)


def engine_threads() -> EngineThreads:
    """The threads of this process."""
    return _threads.get(None, lambda: EngineThreads(int(os.environ[THREADS])))
