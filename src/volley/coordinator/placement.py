# SPDX-License-Identifier: Apache-2.0
"""Task placement: which worker runs an attempt."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence, Set
from contextlib import suppress
from zlib import crc32

from volley.errors import NoWorkers
from volley.ids import AttemptId
from volley.rpc.messages import WorkerInfo
from volley.transport.base import ExplainsAbsence, Transport

_LOOK_AGAIN_SECONDS = 0.1


class Placement:
    """Reserves slots on workers for one query, least busy first, and waits while all are full.

    If there is no worker at all, it waits `absence_seconds` for one to join.
    """

    def __init__(self, transport: Transport, absence_seconds: float = 0.0) -> None:
        self._transport = transport
        self._absence_seconds = absence_seconds
        self._running: Counter[str] = Counter()
        self._names: frozenset[str] = frozenset()
        self._joined: set[str] = set()
        # How many attempts each worker got since the last one joined.
        self._placed: Counter[str] = Counter()
        self._room = asyncio.Event()

    async def place(self, attempt: AttemptId, avoid: Set[str] = frozenset()) -> str:
        """Reserve a slot and return its worker. A worker in `avoid` is used only if no other has a free slot."""
        absent_since: float | None = None
        while True:
            self._room.clear()
            workers = self._transport.workers()
            self._note_joined(workers)
            if workers:
                absent_since = None
            else:
                absent_since = time.monotonic() if absent_since is None else absent_since
                if time.monotonic() - absent_since >= self._absence_seconds:
                    raise self._absence()
            for worker in sorted(enumerate(workers), key=lambda item: self._rank(item, attempt, avoid)):
                name = worker[1].name
                if await self._transport.reserve(name, attempt):
                    self._running[name] += 1
                    self._placed[name] += 1
                    return name
            # Other queries and joining workers free slots too, without telling us: poll.
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._room.wait(), _LOOK_AGAIN_SECONDS)

    def release(self, worker: str) -> None:
        """Note that an attempt placed on `worker` has ended."""
        self._running[worker] -= 1
        self._room.set()

    def _absence(self) -> NoWorkers:
        if isinstance(self._transport, ExplainsAbsence):
            return self._transport.absence()
        return NoWorkers("no worker is available.")

    def _note_joined(self, workers: Sequence[WorkerInfo]) -> None:
        names = frozenset(worker.name for worker in workers)
        if self._names and (joined := names - self._names):
            self._joined |= joined
            self._placed.clear()
        self._names |= names

    def _rank(
        self, item: tuple[int, WorkerInfo], attempt: AttemptId, avoid: Set[str]
    ) -> tuple[bool, int, bool, bool]:
        number, worker = item
        # Put equal task numbers of two stages on one worker: much of what they exchange stays local. Each query starts
        # at another worker, or the first worker would get all single-task stages.
        first = crc32(attempt.task.stage.query.value.encode())
        home = number == (first + attempt.task.task) % max(1, len(self._transport.workers()))
        # A stage may have fewer tasks than there are workers now: a worker that joined would never be preferred.
        fewest = min((self._placed[name] for name in self._names - self._joined), default=0)
        is_due = worker.name in self._joined and self._placed[worker.name] <= fewest
        return worker.name in avoid, self._running[worker.name], not is_due, not home
