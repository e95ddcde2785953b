# SPDX-License-Identifier: Apache-2.0
"""The drivers of a worker: the news that waits for each, and their leases.

A driver that dies cannot say so. When its call for news breaks, what it runs is cancelled, so that its slots are free
for others. It polls for news every second; when it has not polled for the length of a lease, the worker forgets it and
frees everything that it left. A driver that was only paused is then unknown and reconnects.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque

from volley.errors import QueryError
from volley.ids import AttemptId, QueryId
from volley.python_versions import timeout
from volley.rpc.control import UNKNOWN_DRIVER, News, Outcome, Progress
from volley.rpc.messages import SplitRequest, TaskSpec
from volley.worker.slots import Attempt, Slots

_log = logging.getLogger(__name__)

LEASE_SECONDS = 60.0
_PROGRESS_SECONDS = 0.5


class UnknownDriver(QueryError):
    code = UNKNOWN_DRIVER


class Drivers:
    """Runs the attempts of several drivers in the slots of one worker. Lives on one event loop."""

    def __init__(self, slots: Slots, lease_seconds: float = LEASE_SECONDS) -> None:
        self._slots = slots
        self._lease_seconds = lease_seconds
        self._drivers: dict[str, _Driver] = {}

    def __len__(self) -> int:
        return len(self._drivers)

    async def hello(self, name: str, queries: frozenset[QueryId]) -> None:
        """A driver connects or reconnects. Cancels its attempts here and frees all its queries except `queries`."""
        known = self._drivers.pop(name, None)
        if known:
            known.close()
            for attempt in list(known.attempts):
                await self._slots.cancel(attempt)
            for query in known.queries - queries:
                await self._slots.release(query)
        _log.info("driver %s %sconnected", name, "re" if known else "")
        driver = self._drivers[name] = _Driver()
        driver.queries = {query for query in known.queries if query in queries} if known else set()

    def reserve(self, name: str, attempt: AttemptId) -> bool:
        driver = self._driver(name)
        if not self._slots.reserve(attempt):
            return False
        driver.queries.add(attempt.task.stage.query)
        driver.attempts.add(attempt)
        return True

    def start(self, name: str, task: TaskSpec, is_reserved: bool) -> bool:
        """Start an attempt, in its reserved slot or else in any that is free. False if there is none."""
        if not is_reserved and not self.reserve(name, task.attempt):
            return False
        self.run(task)
        return True

    def adopt(self, name: str, query: QueryId) -> None:
        """Make the driver the owner of rows that others push for this query."""
        self._slots.admit(query)
        self._driver(name).queries.add(query)

    def run(self, task: TaskSpec) -> None:
        """Start an attempt. Its outcome becomes news for its driver."""
        query = task.attempt.task.stage.query
        owner = next((driver for driver in self._drivers.values() if query in driver.queries), None)
        if owner is None:
            raise UnknownDriver(f"{self._slots.name} knows no driver for {task.attempt}.")
        attempt = self._slots.start(task)
        attempt.on_request(owner.add_request)
        attempt.on_end(owner.add_outcome)

    async def watch(self, name: str, after: int, wait_seconds: float) -> News:
        driver = self._driver(name)
        try:
            outcomes, requests = await driver.news(after, wait_seconds)
        except asyncio.CancelledError:
            # The call broke. If the driver lives, it says hello again, which would cancel its attempts too.
            for attempt in list(driver.attempts):
                await self._slots.cancel(attempt)
            raise
        return News(outcomes, self._slots.draining, requests, self._progress(driver))

    def _progress(self, driver: _Driver) -> tuple[Progress, ...]:
        """What the driver's attempts have read. Nothing if it was told a moment ago: it asks at every event."""
        now = time.monotonic()
        if now < driver.told + _PROGRESS_SECONDS:
            return ()
        driver.told = now
        return tuple(filter(None, map(self._slots.progress, driver.attempts)))

    async def release(self, query: QueryId) -> None:
        self._slots.check_key(query)
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
        """Forget drivers whose lease has expired. Runs as long as the worker does."""
        while True:
            await asyncio.sleep(min(1.0, self._lease_seconds / 4))
            await self.expire(time.monotonic())

    async def expire(self, now: float) -> None:
        """Forget the drivers that have been silent for longer than a lease at the monotonic time `now`."""
        silent = [name for name, driver in self._drivers.items() if now - driver.heard > self._lease_seconds]
        for name in silent:
            _log.warning(
                "driver %s has been silent for %g s: its queries are freed", name, self._lease_seconds
            )
            await self.bye(name)

    def wake(self) -> None:
        """Answer all pending `watch` calls now."""
        for driver in self._drivers.values():
            driver.wake()

    def _driver(self, name: str) -> _Driver:
        driver = self._drivers.get(name)
        if driver is None:
            raise UnknownDriver(f"{self._slots.name} does not know this driver, or has forgotten it.")
        driver.heard = time.monotonic()
        return driver


class _Driver:
    def __init__(self) -> None:
        self.heard = time.monotonic()
        self.queries: set[QueryId] = set()
        self.attempts: set[AttemptId] = set()
        self.told = self.heard
        """When it was last told of progress."""
        self._outcomes: deque[Outcome] = deque()
        self._requests: list[SplitRequest] = []
        self._last = 0
        self._changed = asyncio.Event()
        self._closed = False

    def add_outcome(self, attempt: Attempt) -> None:
        self.attempts.discard(attempt.attempt)
        self._last += 1
        self._outcomes.append(Outcome(self._last, attempt.outcome))
        self._changed.set()

    def add_request(self, request: SplitRequest) -> None:
        self._requests.append(request)
        self._changed.set()

    async def news(
        self, after: int, wait_seconds: float
    ) -> tuple[tuple[Outcome, ...], tuple[SplitRequest, ...]]:
        while self._outcomes and self._outcomes[0].number <= after:
            self._outcomes.popleft()
        if not self._outcomes and not self._requests:
            self._changed.clear()
            try:
                async with timeout(wait_seconds):
                    await self._changed.wait()
            except asyncio.TimeoutError:
                pass
        if self._closed:
            raise UnknownDriver("this driver has disconnected or reconnected.")
        self.heard = time.monotonic()
        requests, self._requests = tuple(self._requests), []
        return tuple(self._outcomes), requests

    def forget(self, query: QueryId) -> None:
        self.queries.discard(query)
        self.attempts = {attempt for attempt in self.attempts if attempt.task.stage.query != query}

    def wake(self) -> None:
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()
