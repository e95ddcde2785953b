# SPDX-License-Identifier: Apache-2.0
"""Splits for attempts that no coordinator watches: what they want is asked of the driver that they name.

    attempt --- SplitRequest --->  Pulls  --- Pull --->  driver          again, as long as it says "not yet"
            <-- SplitBatch ---         <-- SplitBatch ---

A driver that does not answer for a while has lost this attempt, which then fails; so does one that the driver does not
know any more.
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

_WAIT_SECONDS = 2.0
_CALL_SECONDS = 10.0
_SILENCE_SECONDS = 30.0
_PAUSE_SECONDS = 0.2
# A thread waits for the answer to one want; an attempt has one under way for each scan that it reads.
_THREADS = 256


class Pulls:
    """Asks drivers in the name of the attempts of one worker, `name`. Lives on one event loop."""

    def __init__(self, name: str, security: Security) -> None:
        self._name = name
        self._security = security
        self._lock = threading.Lock()
        self._drivers: dict[str, Client] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="volley-pull")
        self._under_way: set[asyncio.Task[None]] = set()

    def follow(self, attempt: Attempt, driver: str) -> None:
        """Ask the driver at this address for everything that the attempt wants from now on."""

        def ask(want: SplitRequest) -> None:
            pulling = asyncio.create_task(self._pull(attempt, driver, want))
            self._under_way.add(pulling)
            pulling.add_done_callback(self._under_way.discard)

        attempt.on_want(ask)

    def close(self) -> None:
        """The loop has ended. Calls that are under way end by their deadline."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _pull(self, attempt: Attempt, driver: str, want: SplitRequest) -> None:
        pull = Pull(want, self._name, _WAIT_SECONDS)
        heard = time.monotonic()
        while not attempt.ended:
            try:
                answer = await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._ask, driver, pull
                )
            except PeerLost as error:
                if time.monotonic() - heard > _SILENCE_SECONDS:
                    gone = ConnectionError(
                        f"the driver at {driver}, which feeds this task, is silent: {error.message}"
                    )
                    attempt.fail_feed(want.feed, gone)
                    return
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            except QueryError as error:
                attempt.fail_feed(want.feed, error)
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
