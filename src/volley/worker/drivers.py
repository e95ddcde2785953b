# SPDX-License-Identifier: Apache-2.0
"""The drivers of a worker: what each is still to be told, and when it has been silent for too long.

A driver that dies cannot say so. It asks for news every second; one that has not asked for the length of a lease has
gone, and everything that it left here goes too. A driver that was only paused finds that the worker does not know it
any more, and starts over.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from volley.errors import QueryError
from volley.ids import AttemptId, QueryId
from volley.rpc.control import UNKNOWN_DRIVER, News, Outcome
from volley.rpc.messages import SplitRequest, TaskSpec
from volley.worker.slots import Attempt, Slots

LEASE_SECONDS = 60.0


class UnknownDriver(QueryError):
    code = UNKNOWN_DRIVER


class Drivers:
    """Puts the attempts of several drivers into the slots of one worker. On one event loop."""

    def __init__(self, slots: Slots, lease_seconds: float = LEASE_SECONDS) -> None:
        self._slots = slots
        self._lease_seconds = lease_seconds
        self._drivers: dict[str, _Driver] = {}

    def __len__(self) -> int:
        return len(self._drivers)

    async def hello(self, name: str, queries: frozenset[QueryId]) -> None:
        """A driver comes, or comes back: it counts on nothing that runs here, and on `queries` alone that is kept."""
        known = self._drivers.pop(name, None)
        if known:
            known.close()
            for attempt in list(known.attempts):
                await self._slots.cancel(attempt)
            for query in known.queries - queries:
                await self._slots.release(query)
        driver = self._drivers[name] = _Driver()
        driver.queries = (known.queries if known else set()) & queries

    def reserve(self, name: str, attempt: AttemptId) -> bool:
        driver = self._driver(name)
        if not self._slots.reserve(attempt):
            return False
        driver.queries.add(attempt.task.stage.query)
        driver.attempts.add(attempt)
        return True

    def adopt(self, name: str, query: QueryId) -> None:
        """What comes in for this query, from whomever, is the driver's."""
        self._driver(name).queries.add(query)

    def run(self, task: TaskSpec) -> None:
        """Start an attempt; its driver hears how it ended."""
        query = task.attempt.task.stage.query
        owner = next((driver for driver in self._drivers.values() if query in driver.queries), None)
        if owner is None:
            raise UnknownDriver(f"{self._slots.name} knows no driver of {task.attempt}.")
        attempt = self._slots.start(task)
        attempt.on_want(owner.wanted)
        attempt.on_end(owner.ended)

    async def watch(self, name: str, after: int, wait_seconds: float) -> News:
        driver = self._driver(name)
        outcomes, wants = await driver.news(after, wait_seconds)
        return News(outcomes, self._slots.draining, wants)

    async def release(self, query: QueryId) -> None:
        for driver in self._drivers.values():
            driver.forget(query)
        await self._slots.release(query)

    async def bye(self, name: str) -> None:
        driver = self._drivers.pop(name, None)
        if driver:
            driver.close()
            for query in list(driver.queries):
                await self._slots.release(query)

    async def expire_leases(self) -> None:
        """Runs as long as the worker does."""
        while True:
            await asyncio.sleep(min(1.0, self._lease_seconds / 4))
            now = time.monotonic()
            silent = [
                name for name, driver in self._drivers.items() if now - driver.heard > self._lease_seconds
            ]
            for name in silent:
                await self.bye(name)

    def wake(self) -> None:
        """Answer everybody who waits for news."""
        for driver in self._drivers.values():
            driver.wake()

    def _driver(self, name: str) -> _Driver:
        driver = self._drivers.get(name)
        if driver is None:
            raise UnknownDriver(f"{self._slots.name} does not know this driver, or no longer.")
        driver.heard = time.monotonic()
        return driver


class _Driver:
    def __init__(self) -> None:
        self.heard = time.monotonic()
        self.queries: set[QueryId] = set()
        self.attempts: set[AttemptId] = set()
        self._outcomes: deque[Outcome] = deque()
        self._wants: list[SplitRequest] = []
        self._last = 0
        self._changed = asyncio.Event()
        self._closed = False

    def ended(self, attempt: Attempt) -> None:
        self.attempts.discard(attempt.attempt)
        self._last += 1
        self._outcomes.append(Outcome(self._last, attempt.outcome))
        self._changed.set()

    def wanted(self, want: SplitRequest) -> None:
        self._wants.append(want)
        self._changed.set()

    async def news(
        self, after: int, wait_seconds: float
    ) -> tuple[tuple[Outcome, ...], tuple[SplitRequest, ...]]:
        while self._outcomes and self._outcomes[0].number <= after:
            self._outcomes.popleft()
        if not self._outcomes and not self._wants:
            self._changed.clear()
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._changed.wait()
            except TimeoutError:
                pass
        if self._closed:
            raise UnknownDriver("this driver said goodbye, or hello again.")
        self.heard = time.monotonic()
        wants, self._wants = tuple(self._wants), []
        return tuple(self._outcomes), wants

    def forget(self, query: QueryId) -> None:
        self.queries.discard(query)
        self.attempts = {attempt for attempt in self.attempts if attempt.task.stage.query != query}

    def wake(self) -> None:
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()
