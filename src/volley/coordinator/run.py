# SPDX-License-Identifier: Apache-2.0
"""The run of a query, top to bottom.

each stage, when the stages that it reads are finished:
    each task: place an attempt, start it, wait for its end, try again where that may help
    the first committed attempt of every task counts, until its output is lost
the result stage streams to the client instead, or is kept in the stores until the client has had it read
whatever happens: release everything, tell the client
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from volley.cancellation import CancellationToken
from volley.coordinator.answers import Answers
from volley.coordinator.launch import Launcher
from volley.coordinator.materialized_result import MaterializedResult
from volley.coordinator.materialized_stage import MaterializedStage
from volley.coordinator.result import ResultQueue, ResultStream
from volley.coordinator.stage import StageRun, until
from volley.errors import DeadlineExceeded, QueryError
from volley.events import EventLog, QueryFinished, QueryStarted
from volley.ids import QueryId, StageId
from volley.loop import LoopThread, shared_loop
from volley.plan.nodes import MaterializedInput
from volley.rpc.messages import TaskDone
from volley.stages.deferral import awaited
from volley.stages.graph import StageGraph
from volley.stages.limits import PlannerLimits
from volley.transport.base import Transport

RESULT_BUFFER_BYTES = 64 * 2**20
NOTHING_GIVEN: Mapping[int, Sequence[TaskDone]] = {}


def execute(
    graph: StageGraph,
    transport: Transport,
    *,
    query: QueryId,
    token: CancellationToken,
    timeout_seconds: float,
    attempts: int,
    events: EventLog,
    limits: PlannerLimits,
    result_buffer_bytes: int = RESULT_BUFFER_BYTES,
    absence_seconds: float = 0.0,
    given: Mapping[int, Sequence[TaskDone]] = NOTHING_GIVEN,
) -> ResultStream:
    """Start a query; its rows come from the stream that is returned, its failure is raised there.

    `given` are the outputs of stages that have run elsewhere, by the numbers of their `MaterializedInput`.
    When no worker is left it waits `absence_seconds` for one, which only makes sense where its data outlives workers.
    `limits` decide how stages adapt to the sizes of their inputs.
    Failures are `DataError` (the data is at fault: Spark can say how), `TaskError`, `BlockMissing`,
    `DeadlineExceeded` or `QueryCancelled`.
    """
    loop = shared_loop()
    batches = ResultQueue(loop, result_buffer_bytes)
    run = _Run(
        graph, transport, query, timeout_seconds, attempts, events, limits, batches, absence_seconds, given
    )
    finished = loop.submit(run.run(token, loop))
    deadline = time.monotonic() + timeout_seconds
    return ResultStream(query, graph.result.plan.output, batches, finished, token, deadline, events)


def keep(
    graph: StageGraph,
    transport: Transport,
    *,
    query: QueryId,
    token: CancellationToken,
    timeout_seconds: float,
    attempts: int,
    events: EventLog,
    limits: PlannerLimits,
    absence_seconds: float = 0.0,
    given: Mapping[int, Sequence[TaskDone]] = NOTHING_GIVEN,
) -> MaterializedResult:
    """Start a query whose last stage has an output as the others do: its blocks stay in the stores for others to read.

    The same as `execute` otherwise. The deadline counts until the end, when nobody reads them any more.
    """
    loop = shared_loop()
    batches = ResultQueue(loop, 0)
    run = _Run(
        graph, transport, query, timeout_seconds, attempts, events, limits, batches, absence_seconds, given
    )
    finished = loop.submit(run.run(token, loop))
    deadline = time.monotonic() + timeout_seconds
    return MaterializedResult(query, batches, finished, token, deadline, events)


class _Run:
    def __init__(
        self,
        graph: StageGraph,
        transport: Transport,
        query: QueryId,
        timeout_seconds: float,
        attempts: int,
        events: EventLog,
        limits: PlannerLimits,
        batches: ResultQueue,
        absence_seconds: float,
        given: Mapping[int, Sequence[TaskDone]],
    ) -> None:
        self._graph = graph
        self._transport = transport
        self._query = query
        self._timeout_seconds = timeout_seconds
        self._attempts = attempts
        self._events = events
        self._limits = limits
        self._batches = batches
        self._absence_seconds = absence_seconds
        self._given = given
        self._kept = False

    async def run(self, token: CancellationToken, loop: LoopThread) -> None:
        """All of it. Never raises: the client is told through the result queue."""
        started = time.monotonic()
        error: QueryError | None = None
        stages = asyncio.create_task(self._run_stages())
        token.on_fire(lambda: loop.call(stages.cancel))
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await stages
        except TimeoutError:
            error = DeadlineExceeded(
                f"query {self._query} took longer than {self._timeout_seconds:g} s.",
                hint="Raise spark.volley.timeoutSeconds if that is what it needs.",
            )
        except asyncio.CancelledError:
            # Who had the output kept ends the query when it has been read.
            error = None if self._kept and not token.cancelled else token.error()
        except QueryError as failure:
            error = failure
        except Exception as failure:
            error = QueryError(f"query {self._query}: {type(failure).__name__}: {failure}")
            error.__cause__ = failure
        finally:
            stages.cancel()
            await self._transport.release(self._query)
            seconds = time.monotonic() - started
            self._events.record(QueryFinished(self._query, seconds, error.code if error else None))
            self._batches.end(error)

    async def _run_stages(self) -> None:
        tasks = sum(
            stage.tasks for stage in self._graph.stages if not isinstance(stage.plan, MaterializedInput)
        )
        self._events.record(QueryStarted(self._query, len(self._graph.stages), tasks))
        launcher = Launcher(self._transport, self._events, self._batches, self._absence_seconds)
        runs: list[StageRun] = []
        for stage in self._graph.stages:
            producers = {node.stage: runs[node.stage] for node in stage.inputs}
            id = StageId(self._query, stage.id)
            if isinstance(stage.plan, MaterializedInput):
                outputs = self._given[stage.plan.number]
                runs.append(MaterializedStage(stage, id, outputs, launcher, self._events, self._limits))
                continue
            runs.append(StageRun(stage, id, producers, launcher, self._events, self._attempts, self._limits))
        for number, others in awaited(self._graph, self._limits).items():
            runs[number].awaits = [runs[other] for other in others]
        subqueries = {number: runs[number] for number in self._graph.subqueries}
        answers = Answers(subqueries, self._transport, self._attempts)
        for run in runs:
            run.answers = answers
        try:
            await until(run.run() for run in runs)
            if self._graph.result.output is not None:
                self._batches.keep(await runs[-1].whole())
                self._kept = True
                await asyncio.Event().wait()
        finally:
            for run in runs:
                await run.close()
