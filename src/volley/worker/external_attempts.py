# SPDX-License-Identifier: Apache-2.0
"""Attempts without a driver that watches them: the Spark task that started one polls for its outcome.

A killed Spark task cannot say so. An attempt that nobody has polled for a while is cancelled, and its rows are dropped.
"""

from __future__ import annotations

import asyncio
import time

from volley.ids import AttemptId
from volley.rpc.messages import TaskDone, TaskFailure, TaskSpec
from volley.worker.slots import Slots
from volley.worker.split_puller import SplitPuller

POLL_TIMEOUT_SECONDS = 10.0


class ExternalAttempts:
    """Runs attempts in the slots of a worker for callers that poll. Lives on one event loop."""

    def __init__(
        self, slots: Slots, pulls: SplitPuller, poll_timeout_seconds: float = POLL_TIMEOUT_SECONDS
    ) -> None:
        self._slots = slots
        self._pulls = pulls
        self._poll_timeout_seconds = poll_timeout_seconds
        self._asked: dict[AttemptId, float] = {}

    def start(self, task: TaskSpec) -> bool:
        """Start an attempt. False if no slot is free or the worker already knows this attempt."""
        if not self._slots.reserve(task.attempt):
            return False
        self._pulls.follow(self._slots.start(task), task.driver)
        self._asked[task.attempt] = time.monotonic()
        return True

    async def wait(self, attempt: AttemptId, wait_seconds: float) -> TaskDone | TaskFailure | None:
        """The outcome, or None if the attempt still runs after `wait_seconds`. QueryError if it is not here."""
        running = self._slots[attempt]
        try:
            self._asked[attempt] = time.monotonic() + wait_seconds
            return await asyncio.wait_for(running.done(), wait_seconds)
        except asyncio.TimeoutError:
            return None
        finally:
            self._asked[attempt] = time.monotonic()
            if running.ended:
                del self._asked[attempt]

    async def cancel_abandoned(self) -> None:
        """Cancel attempts that nobody polls. Runs as long as the worker does."""
        while True:
            await asyncio.sleep(self._poll_timeout_seconds / 4)
            now = time.monotonic()
            abandoned = [a for a, asked in self._asked.items() if now - asked > self._poll_timeout_seconds]
            for attempt in abandoned:
                del self._asked[attempt]
                await self._slots.cancel(attempt)
