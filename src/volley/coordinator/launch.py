# SPDX-License-Identifier: Apache-2.0
"""One attempt from its placement to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Set
from dataclasses import dataclass
from typing import Any

from volley.coordinator.placement import Placement
from volley.coordinator.result import ResultQueue
from volley.events import EventLog, TaskFinished, TaskStarted
from volley.rpc.messages import TaskDone, TaskFailure, TaskSpec
from volley.transport.base import RunningTask, Transport

Serve = Callable[[RunningTask, str], Coroutine[Any, Any, None]]
"""Answers what an attempt on a worker wants, until it ends."""


@dataclass(frozen=True)
class Launched:
    """How an attempt ended, and where. `gave_rows`: some of its rows are with the client, who keeps them."""

    outcome: TaskDone | TaskFailure
    worker: str
    gave_rows: bool


class Launcher:
    """Places attempts of one query on workers, starts them and waits for their end."""

    def __init__(
        self, transport: Transport, events: EventLog, batches: ResultQueue, absence_seconds: float = 0.0
    ) -> None:
        self._transport = transport
        self._placement = Placement(transport, absence_seconds)
        self._events = events
        self._batches = batches

    def present(self) -> frozenset[str]:
        """The workers that can be reached now."""
        return frozenset(worker.name for worker in self._transport.workers())

    @property
    def worker_count(self) -> int:
        return len(self._transport.workers())

    @property
    def equal_workers(self) -> bool:
        """Whether none of those that can be reached has more cores than another."""
        return len({worker.cores for worker in self._transport.workers()}) <= 1

    async def launch(self, task: TaskSpec, avoid: Set[str], serve: Serve) -> Launched:
        """Run an attempt to its end; `serve` answers what it wants meanwhile."""
        attempt = task.attempt
        worker = await self._placement.place(attempt, avoid)
        gave_rows = False
        try:
            running = await self._transport.start(worker, task)
            self._events.record(TaskStarted(attempt, worker))
            serving = asyncio.create_task(serve(running, worker))
            try:
                if task.output is None:
                    async for batch in running.batches():
                        await self._batches.put(batch)
                        gave_rows = True
                outcome = await running.done()
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
                await running.cancel()
        finally:
            self._placement.ended(worker)
        if isinstance(outcome, TaskDone):
            self._events.record(
                TaskFinished(
                    attempt,
                    outcome.rows,
                    outcome.size_bytes,
                    outcome.seconds,
                    outcome.operators,
                    outcome.operator_spilled_bytes,
                    outcome.shuffle_spilled_bytes,
                )
            )
            worker = outcome.made_by or worker
        return Launched(outcome, worker, gave_rows)
