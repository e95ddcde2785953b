# SPDX-License-Identifier: Apache-2.0
"""Places and runs one attempt, and waits for its outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Set
from dataclasses import dataclass
from typing import Any

from volley.coordinator.placement import Placement
from volley.coordinator.result import ResultQueue
from volley.errors import TaskError, VolleyError
from volley.events import EventLog, TaskFinished, TaskStarted
from volley.ids import AttemptId
from volley.rpc.messages import TaskDone, TaskFailure, TaskSpec
from volley.transport.base import NoRoom, ReportsProgress, RunningTask, Transport

_PROGRESS_SECONDS = 0.5
# Reading progress takes at most 1 / this of the time.
_PROGRESS_SHARE = 20

Serve = Callable[[RunningTask, str], Coroutine[Any, Any, None]]
"""Answers the split requests of an attempt on a worker, until it ends."""


@dataclass(frozen=True)
class AttemptResult:
    """How an attempt ended, and on which worker."""

    outcome: TaskDone | TaskFailure
    worker: str


class Launcher:
    """Places the attempts of one query on workers, starts them and waits for them to end."""

    def __init__(
        self, transport: Transport, events: EventLog, batches: ResultQueue, absence_seconds: float = 0.0
    ) -> None:
        self._transport = transport
        self._placement = Placement(transport, absence_seconds)
        self._events = events
        self._batches = batches

    def holders(self) -> Set[str]:
        """The workers whose blocks can be read now."""
        return self._transport.holders()

    @property
    def worker_count(self) -> int:
        return len(self._transport.workers())

    @property
    def equal_workers(self) -> bool:
        """Whether all reachable workers have the same number of cores."""
        return len({worker.cores for worker in self._transport.workers()}) <= 1

    async def launch(
        self, task: TaskSpec, avoid: Set[str], serve: Serve, deliver: Callable[[], bool]
    ) -> AttemptResult:
        """Run an attempt to its end. `serve` answers its split requests; if that fails, so does the query.
        `deliver` is asked before rows go to the client; False means that the attempt no longer counts.
        """
        try:
            ended = await self._run(task, avoid, serve, deliver)
        except BaseException:
            if task.output is None:
                self._batches.drop(task.attempt)
            raise
        if task.output is None and isinstance(ended.outcome, TaskDone):
            self._batches.finish(task.attempt, ended.outcome.rows)
        elif task.output is None:
            self._batches.drop(task.attempt)
        return ended

    def resume_rows(self) -> None:
        """An attempt of the result that runs again continues where the lost one stood. Call it before the first."""
        self._batches.resume()

    def commit_rows(self, rows: Mapping[AttemptId, int]) -> None:
        """The result is complete: it consists of the rows of these attempts, so many of each."""
        self._batches.commit(rows)

    async def _run(
        self, task: TaskSpec, avoid: Set[str], serve: Serve, deliver: Callable[[], bool]
    ) -> AttemptResult:
        while True:
            worker = await self._placement.place(task.attempt, avoid)
            try:
                return await self._run_on(worker, task, serve, deliver)
            except NoRoom:
                continue
            finally:
                self._placement.release(worker)

    async def _run_on(
        self, worker: str, task: TaskSpec, serve: Serve, deliver: Callable[[], bool]
    ) -> AttemptResult:
        attempt = task.attempt
        running = await self._transport.start(worker, task)
        self._events.record(TaskStarted(attempt, worker))
        serving = asyncio.create_task(serve(running, worker))
        working = asyncio.create_task(self._outcome(task, running, deliver))
        reporting = asyncio.create_task(self._report_progress(running))
        try:
            await asyncio.wait({working, serving}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                _raise_serving_error(attempt, serving)
            outcome = await working
        finally:
            for part in (working, serving, reporting):
                part.cancel()
            await asyncio.gather(working, serving, reporting, return_exceptions=True)
            await running.cancel()
        if isinstance(outcome, TaskDone):
            self._events.record(TaskFinished(attempt, outcome.metrics))
            worker = outcome.made_by or worker
        return AttemptResult(outcome, worker)

    async def _report_progress(self, running: RunningTask) -> None:
        pause = _PROGRESS_SECONDS
        while isinstance(running, ReportsProgress):
            await asyncio.sleep(pause)
            began = time.perf_counter()
            if progress := running.progress():
                self._events.announce(progress)
            # A plan over many files has many metrics, and the loop waits while they are read.
            pause = max(_PROGRESS_SECONDS, _PROGRESS_SHARE * (time.perf_counter() - began))

    async def _outcome(
        self, task: TaskSpec, running: RunningTask, deliver: Callable[[], bool]
    ) -> TaskDone | TaskFailure:
        if task.output is None:
            async for batch in running.batches():
                await self._batches.put(task.attempt, batch, deliver)
        return await running.done()


def _raise_serving_error(attempt: AttemptId, serving: asyncio.Task[None]) -> None:
    """Raise the error that ended `serving` while the attempt still runs: it would wait forever for splits."""
    error = serving.exception()
    if isinstance(error, VolleyError):
        raise error
    if error is not None:
        raise TaskError(
            attempt, f"its splits could not be served: {type(error).__name__}: {error}"
        ) from error
