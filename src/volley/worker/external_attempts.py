# SPDX-License-Identifier: Apache-2.0
"""Attempts that somebody stays to wait for: a Spark task that stands for one asks again and again how it is.

Who is killed cannot say so. An attempt that nobody has asked about for a while is ended; its rows and blocks go.
"""

from __future__ import annotations

import asyncio
import time

from volley.ids import AttemptId
from volley.rpc.messages import TaskDone, TaskFailure, TaskSpec
from volley.worker.pulling import Pulls
from volley.worker.slots import Slots

PATIENCE_SECONDS = 10.0


class ExternalAttempts:
    """Runs attempts in the slots of a worker for callers that wait. On one event loop."""

    def __init__(self, slots: Slots, pulls: Pulls, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._slots = slots
        self._pulls = pulls
        self._patience_seconds = patience_seconds
        self._asked: dict[AttemptId, float] = {}

    def start(self, task: TaskSpec) -> bool:
        """False when there is no room now, or this attempt had its turn."""
        if not self._slots.reserve(task.attempt):
            return False
        self._pulls.follow(self._slots.start(task), task.driver)
        self._asked[task.attempt] = time.monotonic()
        return True

    async def wait(self, attempt: AttemptId, wait_seconds: float) -> TaskDone | TaskFailure | None:
        """How it ended; None when it still runs after `wait_seconds`. QueryError when it is not here."""
        running = self._slots[attempt]
        try:
            self._asked[attempt] = time.monotonic() + wait_seconds
            return await asyncio.wait_for(running.done(), wait_seconds)
        except TimeoutError:
            return None
        finally:
            self._asked[attempt] = time.monotonic()
            if running.ended:
                del self._asked[attempt]

    async def end_the_forgotten(self) -> None:
        """Runs as long as the worker does."""
        while True:
            await asyncio.sleep(self._patience_seconds / 4)
            now = time.monotonic()
            forgotten = [a for a, asked in self._asked.items() if now - asked > self._patience_seconds]
            for attempt in forgotten:
                del self._asked[attempt]
                await self._slots.cancel(attempt)
