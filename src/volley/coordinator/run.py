# SPDX-License-Identifier: Apache-2.0
"""Runs a query from start to end.

    driver     acts: attempts on workers, feeds, events
    schedule   decides: which task runs, which attempt counts, what a loss means
    adaptive   plans: how the sizes of finished stages change the next ones

The rows of the result stage stream to the client, or stay in the stores until the client is done with them. Whatever
happens, all resources are released and the client learns the outcome.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future

from volley.coordinator.driver import Driver
from volley.coordinator.launch import Launcher
from volley.coordinator.materialized_result import MaterializedResult
from volley.coordinator.options import NO_INPUTS, RunOptions
from volley.coordinator.result import ResultQueue, ResultStream
from volley.coordinator.result_rows import HeldRows, PassedRows
from volley.errors import DeadlineExceeded, QueryError
from volley.events import QueryFinished, QueryStarted
from volley.plan.nodes import MaterializedInput
from volley.process.loop import shared_loop
from volley.python_versions import Timeout, timeout
from volley.stages.graph import StageGraph
from volley.transport.base import Transport

__all__ = ["NO_INPUTS", "RunOptions", "execute", "materialize"]


def execute(graph: StageGraph, transport: Transport, options: RunOptions) -> ResultStream:
    """Start a query. The returned stream yields its rows and raises its failure.

    Failures are `DataError` (the data is at fault; Spark can report the exact error), `TaskError`, `BlockMissing`,
    `ResultInterrupted`, `DeadlineExceeded` or `QueryCancelled`.
    """
    run = _Run(graph, transport, options)
    return ResultStream(
        options.query,
        graph.result.plan.output,
        run.batches,
        run.start(),
        options.token,
        run.deadline,
        options.events,
    )


def materialize(graph: StageGraph, transport: Transport, options: RunOptions) -> MaterializedResult:
    """Start a query whose result stays in the shuffle stores, as blocks for others to read.

    Otherwise like `execute`. The deadline also covers the time until the result is closed, unless it is kept.
    """
    run = _Run(graph, transport, options)
    return MaterializedResult(
        options.query, run.batches, run.start(), options.token, run.deadline, options.events
    )


class _Run:
    def __init__(self, graph: StageGraph, transport: Transport, options: RunOptions) -> None:
        self._graph = graph
        self._transport = transport
        self._options = options
        self._query = options.query
        self._events = options.events
        self._loop = shared_loop()
        self._is_materialized = False
        self._started = time.monotonic()
        self._timeout: Timeout | None = None
        self.deadline = time.monotonic() + options.timeout_seconds
        # A result that is resumed says so when its stage begins: only then is it known whether it can be.
        rows = HeldRows() if options.holds_result else PassedRows()
        self.batches = ResultQueue(self._loop, options.result_buffer_bytes, rows)

    def start(self) -> Future[None]:
        return self._loop.submit(self._run())

    async def _run(self) -> None:
        """Run the whole query. Never raises: errors reach the client through the result queue."""
        token, timeout_seconds = self._options.token, self._options.timeout_seconds
        error: QueryError | None = None
        stages = asyncio.create_task(self._run_stages())
        token.on_fire(lambda: self._loop.call(stages.cancel))
        try:
            async with timeout(timeout_seconds) as self._timeout:
                await stages
        except asyncio.TimeoutError:
            error = DeadlineExceeded(
                f"query {self._query} took longer than {timeout_seconds:g} s.",
                hint="Raise spark.volley.timeoutSeconds if the query needs more time.",
            )
        except asyncio.CancelledError:
            # Closing a materialized result ends its query; that is not an error.
            error = None if self._is_materialized and not token.cancelled else token.error()
        except QueryError as failure:
            error = failure
        except Exception as failure:
            error = QueryError(f"query {self._query}: {type(failure).__name__}: {failure}")
            error.__cause__ = failure
        finally:
            stages.cancel()
            await self._transport.release(self._query)
            if not (self._is_materialized and self._options.keeps_result):
                self._record_end(error)
            self.batches.end(error)

    def _record_end(self, error: QueryError | None) -> None:
        seconds = time.monotonic() - self._started
        self._events.record(QueryFinished(self._query, seconds, error.code if error else None))

    async def _run_stages(self) -> None:
        graph, options = self._graph, self._options
        tasks = sum(stage.tasks for stage in graph.stages if not isinstance(stage.plan, MaterializedInput))
        self._events.record(QueryStarted(self._query, len(graph.stages), tasks))
        launcher = Launcher(self._transport, self._events, self.batches, options.absence_seconds)
        driver = Driver(graph, self._transport, launcher, options)
        try:
            await driver.run()
            if graph.result.output is not None:
                self.batches.put_manifest(await driver.complete_output(graph.result.id))
                self._is_materialized = True
                if options.keeps_result and self._timeout is not None:
                    self._timeout.reschedule(None)
                    self._record_end(None)
                await asyncio.Event().wait()
        finally:
            await driver.close()
