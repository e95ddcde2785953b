# SPDX-License-Identifier: Apache-2.0
"""Pulls splits for attempts that no driver watches, from the driver that their task names.

    attempt --- SplitRequest ---> SplitPuller ------ Pull ------>  driver     repeated while the answer is "not yet"
            <--- SplitBatch ----          <--- SplitBatch ---

An attempt fails if its driver does not reply for a while, or no longer knows it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from volley.errors import PeerLost, QueryError
from volley.rpc.client import Client
from volley.rpc.control import Ack, Progress, Pull
from volley.rpc.messages import SplitBatch, SplitRequest
from volley.security import Security
from volley.worker.slots import Attempt

SILENCE_SECONDS = 30.0
"""Seconds without a reply before a driver is considered lost."""

_WAIT_SECONDS = 2.0
_CALL_SECONDS = 10.0
_PAUSE_SECONDS = 0.2
_PROGRESS_SECONDS = 1.0
# One thread waits for each request; an attempt has one request in flight per scan.
_THREADS = 256


class SplitPuller:
    """Pulls splits for the attempts of the worker called `name`. Lives on one event loop."""

    def __init__(self, name: str, security: Security, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._name = name
        self._security = security
        self._silence_seconds = silence_seconds
        self._lock = threading.Lock()
        self._drivers: dict[str, Client] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="volley-pull")
        self._under_way: set[asyncio.Task[None]] = set()

    def follow(self, attempt: Attempt, driver: str) -> None:
        """Forward all split requests of the attempt to the driver at this address."""

        def ask(request: SplitRequest) -> None:
            self._spawn(self._pull(attempt, driver, request))

        attempt.on_request(ask)
        self._spawn(self._report(attempt, driver))

    def close(self) -> None:
        """Stop, after the loop has ended. Calls in flight end by their deadline."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _report(self, attempt: Attempt, driver: str) -> None:
        """Report to the driver, now and then, what the attempt has read. Best effort."""
        await asyncio.sleep(_PROGRESS_SECONDS)
        while not attempt.ended:
            if (found := attempt.progress()) is not None:
                progress = Progress(attempt.attempt, found.rows, found.size_bytes)
                loop = asyncio.get_running_loop()
                with suppress(QueryError):
                    await loop.run_in_executor(self._threads, self._tell, driver, progress)
            await asyncio.sleep(_PROGRESS_SECONDS)

    async def _pull(self, attempt: Attempt, driver: str, request: SplitRequest) -> None:
        pull = Pull(request, self._name, _WAIT_SECONDS)
        heard = time.monotonic()
        while not attempt.ended:
            try:
                answer = await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._ask, driver, pull
                )
            except PeerLost as error:
                if time.monotonic() - heard > self._silence_seconds:
                    gone = ConnectionError(
                        f"the driver at {driver}, which feeds this task, does not reply: {error.message}"
                    )
                    attempt.fail_feed(request.feed, gone)
                    return
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            except QueryError as error:
                attempt.fail_feed(request.feed, error)
                return
            heard = time.monotonic()
            if isinstance(answer, SplitBatch):
                await attempt.give(answer)
                return

    def _ask(self, driver: str, pull: Pull) -> SplitBatch | Ack:
        seconds = _WAIT_SECONDS + _CALL_SECONDS
        answer: SplitBatch | Ack = self._client(driver).call(
            "pull", pull, SplitBatch | Ack, timeout_seconds=seconds
        )
        return answer

    def _tell(self, driver: str, progress: Progress) -> None:
        self._client(driver).call("progress", progress, timeout_seconds=_CALL_SECONDS)

    def _client(self, driver: str) -> Client:
        with self._lock:
            if driver not in self._drivers:
                self._drivers[driver] = Client(driver, self._security, role="driver")
            return self._drivers[driver]
