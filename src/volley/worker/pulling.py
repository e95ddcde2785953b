# SPDX-License-Identifier: Apache-2.0
"""Splits for attempts that no coordinator watches: what they want is asked of the driver that they name.

    attempt --- SplitRequest --->  Pulls  --- Pull --->  driver          again, as long as it says "not yet"
            <-- SplitBatch ---         <-- SplitBatch ---

A driver that does not answer for a while has lost this attempt, which then fails; so does one that the driver does not
know any more.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow.flight as flight

from volley.errors import QueryError
from volley.security import Clients, Security
from volley.transport.codec import decode, encode
from volley.transport.control import Pull, Refused
from volley.transport.messages import SplitBatch, SplitRequest
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
        self._clients = Clients(security)
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
            except (flight.FlightError, OSError, ValueError) as error:
                if time.monotonic() - heard > _SILENCE_SECONDS:
                    reason = str(error).partition("\n")[0]
                    gone = ConnectionError(
                        f"the driver at {driver}, which feeds this task, is silent: {reason}"
                    )
                    attempt.fail_feed(want.feed, gone)
                    return
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            except QueryError as error:
                attempt.fail_feed(want.feed, error)
                return
            heard = time.monotonic()
            if isinstance(answer, Refused):
                attempt.fail_feed(want.feed, QueryError(f"the driver at {driver}: {answer.message}"))
                return
            if isinstance(answer, SplitBatch):
                await attempt.give(answer)
                return

    def _ask(self, driver: str, pull: Pull) -> Any:
        options = flight.FlightCallOptions(timeout=_WAIT_SECONDS + _CALL_SECONDS)
        (reply,) = self._clients[driver].do_action(flight.Action("pull", encode(pull)), options)
        return decode(reply.body.to_pybytes())
