"""The run of a query, top to bottom.

each stage, when its inputs have manifests:
    each task: place an attempt, start it, wait for its end, try again where that may help
    the first committed attempt of every task makes the stage's manifest
the result stage streams to the client instead
whatever happens: release everything, tell the client
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any

from volley.cancellation import CancellationToken
from volley.coordinator.attempts import Attempts, error_of
from volley.coordinator.manifest import Election, Manifest
from volley.coordinator.placement import Placement
from volley.coordinator.result import ResultQueue, ResultStream
from volley.errors import DeadlineExceeded, QueryError
from volley.events import (
    EventLog,
    QueryFinished,
    QueryStarted,
    StageFinished,
    StageStarted,
    TaskFailed,
    TaskFinished,
    TaskStarted,
)
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.loop import LoopThread, shared_loop
from volley.plan.nodes import FileScan, Node, transform, walk
from volley.splits.feed import Feed
from volley.splits.files import FileSource
from volley.stages.graph import Stage, StageGraph
from volley.stages.layout import reads
from volley.transport.base import Transport
from volley.transport.messages import InputBlocks, TaskDone, TaskSpec

RESULT_BUFFER_BYTES = 64 * 2**20


def execute(
    graph: StageGraph,
    transport: Transport,
    *,
    query: QueryId,
    token: CancellationToken,
    timeout_seconds: float,
    attempts: int,
    events: EventLog,
    result_buffer_bytes: int = RESULT_BUFFER_BYTES,
) -> ResultStream:
    """Start a query; its rows come from the stream that is returned, its failure is raised there.

    Failures are `DataError` (the data is at fault: Spark can say how), `TaskError`, `BlockMissing`,
    `DeadlineExceeded` or `QueryCancelled`.
    """
    loop = shared_loop()
    batches = ResultQueue(loop, result_buffer_bytes)
    run = _Run(graph, transport, query, timeout_seconds, attempts, events, batches)
    finished = loop.submit(run.run(token, loop))
    deadline = time.monotonic() + timeout_seconds
    return ResultStream(query, graph.result.plan.output, batches, finished, token, deadline, events)


class _Run:
    def __init__(
        self,
        graph: StageGraph,
        transport: Transport,
        query: QueryId,
        timeout_seconds: float,
        attempts: int,
        events: EventLog,
        batches: ResultQueue,
    ) -> None:
        self._graph = graph
        self._transport = transport
        self._query = query
        self._timeout_seconds = timeout_seconds
        self._attempts = attempts
        self._events = events
        self._batches = batches

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
            error = token.error()
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
        tasks = sum(stage.tasks for stage in self._graph.stages)
        self._events.record(QueryStarted(self._query, len(self._graph.stages), tasks))
        self._placement = Placement(self._transport)
        loop = asyncio.get_running_loop()
        self._manifests: dict[int, asyncio.Future[Manifest]] = {
            stage.id: loop.create_future() for stage in self._graph.stages
        }
        await _until(self._run_stage(stage) for stage in self._graph.stages)

    async def _run_stage(self, stage: Stage) -> None:
        manifests = {node.stage: await self._manifests[node.stage] for node in stage.inputs}
        id = StageId(self._query, stage.id)
        started = time.monotonic()
        self._events.record(StageStarted(id, stage.tasks))
        scans = [node for node in walk(stage.plan) if isinstance(node, FileScan)]
        feeds = [Feed(number, FileSource(scan), stage.tasks) for number, scan in enumerate(scans)]
        plan = _without_files(stage.plan)
        election = Election(id, stage.tasks)

        async def run_task(number: int) -> None:
            inputs = tuple(self._input(stage, number, manifest) for manifest in manifests.values())

            def spec(attempt: AttemptId) -> TaskSpec:
                units = tuple(feed.take(attempt) for feed in feeds)
                return TaskSpec(attempt, plan, stage.output, stage.ordered, inputs, units)

            election.commit(await self._run_task(TaskId(id, number), spec, stage.output is None))

        def enough() -> bool:
            wanted = stage.output.enough_rows if stage.output else None
            return wanted is not None and election.rows >= wanted

        await _until((run_task(number) for number in range(stage.tasks)), enough)
        seconds = time.monotonic() - started
        self._events.record(StageFinished(id, election.rows, election.size_bytes, seconds))
        self._manifests[stage.id].set_result(election.manifest())

    def _input(self, stage: Stage, task: int, manifest: Manifest) -> InputBlocks:
        producer = self._graph[manifest.stage.stage]
        assert producer.output is not None
        wanted = reads(producer.output, producer.tasks, task, stage.tasks)
        return InputBlocks(producer.id, manifest.take(wanted))

    async def _run_task(
        self, task: TaskId, spec: Callable[[AttemptId], TaskSpec], is_result: bool
    ) -> TaskDone:
        attempts = Attempts(task, self._attempts)
        failed_on: set[str] = set()
        while True:
            attempt = attempts.next()
            worker = await self._placement.place(attempt, failed_on)
            given = False
            try:
                running = await self._transport.start(worker, spec(attempt))
                self._events.record(TaskStarted(attempt, worker))
                try:
                    if is_result:
                        async for batch in running.batches():
                            await self._batches.put(batch)
                            given = True
                    outcome = await running.done()
                finally:
                    await running.cancel()
            finally:
                self._placement.ended(worker)
            if isinstance(outcome, TaskDone):
                self._events.record(
                    TaskFinished(
                        attempt, outcome.rows, outcome.size_bytes, outcome.seconds, outcome.operators
                    )
                )
                return outcome
            # Rows that the client has cannot be taken back, so an attempt that gave some is the last.
            final = given or not attempts.may_retry(outcome)
            self._events.record(TaskFailed(attempt, outcome.code, outcome.message, final))
            if final:
                raise error_of(outcome)
            failed_on.add(worker)


def _without_files(plan: Node) -> Node:
    """What a task is told of a scan: its files come as units, and a task need not know those of the others."""
    return transform(plan, lambda node: replace(node, files=()) if isinstance(node, FileScan) else node)


async def _until(
    works: Iterable[Coroutine[Any, Any, None]], enough: Callable[[], bool] = lambda: False
) -> None:
    """Run all of `works` at once, until they are done, one fails or there is `enough`; then none runs any more."""
    pending = {asyncio.create_task(work) for work in works}
    everything = set(pending)
    try:
        while pending and not enough():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*everything, return_exceptions=True)
