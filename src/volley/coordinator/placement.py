# SPDX-License-Identifier: Apache-2.0
"""Which worker runs an attempt."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Set
from contextlib import suppress
from zlib import crc32

from volley.errors import QueryError
from volley.ids import AttemptId
from volley.rpc.messages import WorkerInfo
from volley.transport.base import Transport

_LOOK_AGAIN_SECONDS = 0.1


class Placement:
    """Reserves room on workers for one query, the least busy first, and waits when all are full.

    When none is there it waits `absence_seconds` for one to come.
    """

    def __init__(self, transport: Transport, absence_seconds: float = 0.0) -> None:
        self._transport = transport
        self._absence_seconds = absence_seconds
        self._running: Counter[str] = Counter()
        self._room = asyncio.Event()

    async def place(self, attempt: AttemptId, avoid: Set[str] = frozenset()) -> str:
        """The worker that keeps room for the attempt; one of `avoid` only when no other has room."""
        absent_since: float | None = None
        while True:
            self._room.clear()
            workers = self._transport.workers()
            if workers:
                absent_since = None
            else:
                absent_since = time.monotonic() if absent_since is None else absent_since
                if time.monotonic() - absent_since >= self._absence_seconds:
                    raise QueryError("there is no worker to run on.")
            for worker in sorted(enumerate(workers), key=lambda item: self._rank(item, attempt, avoid)):
                name = worker[1].name
                if await self._transport.reserve(name, attempt):
                    self._running[name] += 1
                    return name
            # Room is also made by other queries and by workers that join: look again soon.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._room.wait(), _LOOK_AGAIN_SECONDS)

    def ended(self, worker: str) -> None:
        """An attempt that was placed on `worker` has ended."""
        self._running[worker] -= 1
        self._room.set()

    def _rank(
        self, item: tuple[int, WorkerInfo], attempt: AttemptId, avoid: Set[str]
    ) -> tuple[bool, int, bool]:
        number, worker = item
        # Equal task numbers of two stages on one worker: much of what they exchange need not leave it. Another query
        # begins with another worker, or the first would have all single tasks.
        first = crc32(attempt.task.stage.query.value.encode())
        home = number == (first + attempt.task.task) % max(1, len(self._transport.workers()))
        return worker.name in avoid, self._running[worker.name], not home
