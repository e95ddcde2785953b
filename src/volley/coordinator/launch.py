# SPDX-License-Identifier: Apache-2.0
"""One attempt from its placement to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Set
from dataclasses import dataclass
from typing import Any

from volley.coordinator.placement import Placement
from volley.coordinator.result import ResultQueue
from volley.errors import TaskError, VolleyError
from volley.events import EventLog, TaskFinished, TaskStarted
from volley.ids import AttemptId
from volley.rpc.messages import TaskDone, TaskFailure, TaskSpec
from volley.transport.base import RunningTask, Transport

Serve = Callable[[RunningTask, str], Coroutine[Any, Any, None]]
"""Answers what an attempt on a worker wants, until it ends."""


@dataclass(frozen=True)
class Launched:
    """How an attempt ended, and where."""

    outcome: TaskDone | TaskFailure
    worker: str


class Launcher:
    """Places attempts of one query on workers, starts them and waits for their end."""

    def __init__(
        self, transport: Transport, events: EventLog, batches: ResultQueue, absence_seconds: float = 0.0
    ) -> None:
        self._transport = transport
        self._placement = Placement(transport, absence_seconds)
        self._events = events
        self._batches = batches

    def present(self) -> Set[str]:
        """Those whose blocks can be read now."""
        return self._transport.holders()

    @property
    def worker_count(self) -> int:
        return len(self._transport.workers())

    @property
    def equal_workers(self) -> bool:
        """Whether none of those that can be reached has more cores than another."""
        return len({worker.cores for worker in self._transport.workers()}) <= 1

    async def launch(
        self, task: TaskSpec, avoid: Set[str], serve: Serve, deliver: Callable[[], bool]
    ) -> Launched:
        """Run an attempt to its end. `serve` answers what it wants meanwhile: if that fails, so does the query.
        `deliver` is asked before the client is given rows; False: the attempt does not count any more.
        """
        attempt = task.attempt
        worker = await self._placement.place(attempt, avoid)
        try:
            running = await self._transport.start(worker, task)
            self._events.record(TaskStarted(attempt, worker))
            serving = asyncio.create_task(serve(running, worker))
            working = asyncio.create_task(self._outcome(task, running, deliver))
            try:
                await asyncio.wait({working, serving}, return_when=asyncio.FIRST_COMPLETED)
                if not working.done():
                    _check(attempt, serving)
                outcome = await working
            finally:
                for part in (working, serving):
                    part.cancel()
                await asyncio.gather(working, serving, return_exceptions=True)
                await running.cancel()
        finally:
            self._placement.ended(worker)
        if isinstance(outcome, TaskDone):
            self._events.record(TaskFinished(attempt, outcome.metrics))
            worker = outcome.made_by or worker
        return Launched(outcome, worker)

    async def _outcome(
        self, task: TaskSpec, running: RunningTask, deliver: Callable[[], bool]
    ) -> TaskDone | TaskFailure:
        if task.output is None:
            async for batch in running.batches():
                await self._batches.put(batch, deliver)
        return await running.done()


def _check(attempt: AttemptId, serving: asyncio.Task[None]) -> None:
    """Raise what ended the serving of an attempt that still runs: it would wait for ever."""
    error = serving.exception()
    if isinstance(error, VolleyError):
        raise error
    if error is not None:
        raise TaskError(
            attempt, f"its splits could not be served: {type(error).__name__}: {error}"
        ) from error
