# SPDX-License-Identifier: Apache-2.0
"""Pulls splits for attempts that no driver watches, from the driver that their task names.

    attempt --- SplitRequest --->  Pulls  ------ Pull ------>  driver     repeated while the answer is "not yet"
            <--- SplitBatch ----          <--- SplitBatch ---

An attempt fails if its driver does not reply for a while, or no longer knows it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from volley.errors import PeerLost, QueryError
from volley.rpc.client import Client
from volley.rpc.control import Ack, Pull
from volley.rpc.messages import SplitBatch, SplitRequest
from volley.security import Security
from volley.worker.slots import Attempt

SILENCE_SECONDS = 30.0
"""Seconds without a reply before a driver is considered lost."""

_WAIT_SECONDS = 2.0
_CALL_SECONDS = 10.0
_PAUSE_SECONDS = 0.2
# One thread waits for each request; an attempt has one request in flight per scan.
_THREADS = 256


class Pulls:
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
            pulling = asyncio.create_task(self._pull(attempt, driver, request))
            self._under_way.add(pulling)
            pulling.add_done_callback(self._under_way.discard)

        attempt.on_request(ask)

    def close(self) -> None:
        """Stop, after the loop has ended. Calls in flight end by their deadline."""
        self._threads.shutdown(wait=False, cancel_futures=True)

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
        with self._lock:
            if driver not in self._drivers:
                self._drivers[driver] = Client(driver, self._security, role="driver")
            client = self._drivers[driver]
        seconds = _WAIT_SECONDS + _CALL_SECONDS
        answer: SplitBatch | Ack = client.call("pull", pull, SplitBatch | Ack, timeout_seconds=seconds)
        return answer
