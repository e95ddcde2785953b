# SPDX-License-Identifier: Apache-2.0
"""Carries out what the schedule decides: reports every event to it and performs the actions that it returns.

    adaptive plan   a stage may begin         -> start its feeds, add it to the schedule
    schedule        Launch, Cancel            -> start or cancel an attempt on a worker
                    Completed                 -> stop the feeds, adapt the plan to the output sizes
                    Failed                    -> end the query

The driver makes no scheduling decisions. It lives on one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from volley.batches import make_batch
from volley.coordinator.actions import (
    Action,
    AttemptFailed,
    Cancel,
    Completed,
    Failed,
    Launch,
    RolledBack,
    StageSpec,
)
from volley.coordinator.checkpoint import Checkpoint
from volley.coordinator.feeding import Feeding
from volley.coordinator.launch import Launcher
from volley.coordinator.manifest import Manifest
from volley.coordinator.options import RunOptions
from volley.coordinator.schedule import Schedule
from volley.errors import BlockMissing, EngineError
from volley.events import (
    FeedFinished,
    SplitCounts,
    SplitProgress,
    StageAbsorbed,
    StageFinished,
    StageRolledBack,
    StageStarted,
    TaskFailed,
)
from volley.ids import AttemptId, StageId
from volley.plan.nodes import MaterializedInput, Partitioning
from volley.process.loop import Work, run_blocking
from volley.rpc.messages import TaskDone, TaskSpec
from volley.stages.adaptive import AdaptivePlan, adapt, answer
from volley.stages.deferral import defer
from volley.stages.graph import Output, Stage, StageGraph, result_schema
from volley.stages.layout import Layout
from volley.stages.repeatable import is_repeatable
from volley.stages.resize import Produced
from volley.transport.base import RunningTask, Transport


class Driver:
    """Drives one query."""

    def __init__(
        self, graph: StageGraph, transport: Transport, launcher: Launcher, options: RunOptions
    ) -> None:
        self._graph = graph
        self._transport = transport
        self._launcher = launcher
        self._query = options.query
        self._attempts_limit = options.attempts
        self._limits = options.limits
        self._materialized = options.materialized_inputs
        self._events = options.events
        self._traceparent = options.traceparent
        self._settings = options.settings
        self._sorts_joins = options.sorts_joins
        self._holds_result = options.holds_result
        self._resumes_result = options.resumes_result and not options.holds_result
        self._stores = options.stores
        self._checkpoint = options.checkpoint
        self._keys: dict[int, str | None] = {}
        self._taken_over: set[int] = set()
        self._keeping: list[asyncio.Task[None]] = []
        self._files = options.files
        deferred = options.deferred if options.deferred is not None else defer(graph, options.limits)
        self._plan = AdaptivePlan.start(graph, deferred)
        self._schedule = Schedule(options.query, options.attempts)
        self._finished: dict[int, Produced] = {}
        self._stages: dict[int, _Stage] = {}
        self._attempts: dict[AttemptId, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Run until the result stage is complete. Raises the error that fails the query."""
        self._adapt()
        await self._wait_until(lambda: self._graph.result.id in self._finished)
        await asyncio.gather(*self._keeping)

    async def complete_output(self, number: int) -> Manifest:
        """The complete output of a finished stage. Recomputes whatever has been lost since."""
        self._perform(self._schedule.lose(number, frozenset(), self._launcher.holders()))
        self._perform(self._schedule.demand(number))
        await self._wait_until(lambda: self._schedule.has_all_outputs(number))
        return self._schedule.manifest(number)

    async def close(self) -> None:
        """Cancel everything that runs and close the feeds."""
        self._schedule.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stage in self._stages.values():
            if stage.feeding is not None:
                await stage.feeding.close()

    # -------------------------------------------------------------------------------------------------- planning

    def _adapt(self) -> None:
        """Begin the stages that are ready, adapted to the sizes of the finished ones."""
        before, self._plan = self._plan, adapt(self._plan, self._finished, self._limits)
        for number, reader in self._plan.absorbed.items():
            if number not in before.absorbed:
                absorbed, by = StageId(self._query, number), StageId(self._query, reader)
                self._events.record(StageAbsorbed(absorbed, by))
        for number, layout in self._plan.layouts.items():
            if number not in before.layouts:
                stage = self._plan[number]
                if self._checkpoint is None or isinstance(stage.plan, MaterializedInput) or not stage.output:
                    self._begin(stage, layout)
                else:
                    self._spawn(self._take_over(stage, layout, self._checkpoint))

    async def _take_over(self, stage: Stage, layout: Layout, checkpoint: Checkpoint) -> None:
        """Use the output of an earlier run; begin the stage if there is none."""
        inputs = {node.stage: self._keys.get(node.stage) for node in stage.inputs}
        key = self._keys[stage.id] = await checkpoint.key_of(stage, layout, inputs)
        outputs = await checkpoint.find(key) if key is not None else None
        if outputs is None:
            self._begin(stage, layout)
            return
        self._taken_over.add(stage.id)
        self._stages[stage.id] = _Stage(stage)
        id = StageId(self._query, stage.id)
        decisions = (*stage.decisions, "taken over from the checkpoint")
        self._events.record(StageStarted(id, len(outputs), stage.tasks, decisions, taken_over=True))
        spec = StageSpec(stage.id, len(outputs), stage.output, repeatable=True, layout=layout)
        self._perform(self._schedule.add(spec, outputs, taken_over=True))

    def _begin(self, stage: Stage, layout: Layout) -> None:
        inputs = tuple(dict.fromkeys(node.stage for node in stage.inputs))
        planned_tasks = self._graph[stage.id].tasks
        id = StageId(self._query, stage.id)
        if isinstance(stage.plan, MaterializedInput):
            self._stages[stage.id] = _Stage(stage)
            self._events.record(StageStarted(id, stage.tasks, planned_tasks, ("computed by Spark",), 0))
            spec = StageSpec(stage.id, stage.tasks, stage.output, repeatable=False, layout=layout)
            self._perform(self._schedule.add(spec, self._materialized[stage.plan.number]))
            return
        outputs = {number: output for number in inputs if (output := self._plan[number].output)}
        reads_alike, equal_workers = layout.is_same_for_all(outputs), self._launcher.equal_workers
        feeding = Feeding(stage, str(id), reads_alike, equal_workers, self._limits, self._files)
        running = self._stages[stage.id] = _Stage(stage, feeding)
        # Start only the tasks that are certain to have work; `_grow` adds more as splits are discovered.
        tasks = max(1, min(feeding.known_splits(), stage.tasks)) if feeding.may_grow else stage.tasks
        feeding.start()
        workers = self._launcher.worker_count
        self._events.record(
            StageStarted(
                id,
                tasks,
                planned_tasks,
                stage.decisions,
                workers,
                inputs,
                pruned_files=stage.pruned_files,
            )
        )
        if feeding:
            progress = feeding.report_progress(lambda counts: self._progress(id, counts))
            running.background = [
                self._spawn(work) for work in (feeding.watch(), self._grow(stage), progress)
            ]
        repeatable = is_repeatable(stage)
        resumable = stage.output is None and repeatable and self._resumes_result
        if resumable:
            self._launcher.resume_rows()
        spec = StageSpec(
            stage.id,
            tasks,
            stage.output,
            repeatable,
            layout,
            inputs,
            resumable=resumable,
        )
        self._perform(self._schedule.begin(spec))

    async def _grow(self, stage: Stage) -> None:
        """Add a task whenever splits are queued and every task is busy, up to the planned number.

        That is one task per worker: a task uses all cores of its worker.
        """
        feeding = self._stages[stage.id].feeding
        assert feeding is not None
        while feeding.may_grow and (tasks := self._schedule.tasks(stage.id)) < stage.tasks:
            if not await feeding.wait_for_surplus(tasks):
                return
            self._perform(self._schedule.add_task(stage.id))

    def _progress(self, id: StageId, counts: SplitCounts) -> None:
        self._events.record(SplitProgress(id, counts))

    # ----------------------------------------------------------------------------------------------------- actions

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Launch(attempt):
                    self._attempts[attempt] = self._spawn(self._attempt(action))
                case Cancel(attempt):
                    self._attempts[attempt].cancel()
                case Completed(stage):
                    for task in self._stages[stage.stage].background:
                        task.cancel()
                    self._spawn(self._finish(action))
                case RolledBack(stage):
                    self._events.record(StageRolledBack(stage))
                case AttemptFailed(failure, final):
                    self._events.record(TaskFailed(failure.attempt, failure.code, failure.message, final))
                case Failed(error):
                    self._fail(error)
        self._changed.set()

    async def _attempt(self, launch: Launch) -> None:
        """Run one attempt and report how it ended."""
        attempt = launch.attempt
        number, task = attempt.task.stage.stage, attempt.task.task
        stage, feeding = self._stages[number].stage, self._stages[number].feeding
        assert feeding is not None, "a materialized stage has no attempts"

        async def serve(running: RunningTask, worker: str) -> None:
            await feeding.serve(running, worker, lambda: self._schedule.tasks(number))

        def deliver() -> bool:
            if not self._schedule.is_running(attempt):
                return False  # rolled back: another attempt delivers these rows
            if self._holds_result:
                return True  # the client has seen nothing of them when they are dropped
            self._perform(self._schedule.deliver(attempt))
            return True

        stores = await asyncio.to_thread(self._stores) if self._stores is not None else ()
        spec = TaskSpec(
            attempt,
            feeding.plan_of(task),
            stage.output,
            stage.ordered,
            launch.inputs,
            trace=self._traceparent(attempt.task.stage),
            settings=self._settings,
            sorts_joins=self._sorts_joins,
            stores=stores,
        )
        ended = await self._launcher.launch(spec, launch.avoid, serve, deliver)
        if isinstance(ended.outcome, TaskDone):
            feeding.commit(task)
            self._perform(self._schedule.finish(ended.outcome, ended.worker, attempt))
        else:
            present = self._launcher.holders()
            self._perform(self._schedule.fail(ended.outcome, ended.worker, present, attempt))

    async def _finish(self, completed: Completed) -> None:
        """Stop what still runs for a complete stage, then begin the stages that waited for it."""
        id, number = completed.stage, completed.stage.stage
        stage = self._stages[number]
        attempts = [task for attempt, task in self._attempts.items() if attempt.task.stage.stage == number]
        await asyncio.gather(*attempts, *stage.background, return_exceptions=True)
        if stage.feeding is not None:
            await self._stop_feeding(id, stage.feeding)
        outputs = [done for done in completed.outputs if done is not None]
        size_bytes = sum(done.size_bytes for done in outputs)
        self._events.record(StageFinished(id, sum(done.rows for done in outputs), size_bytes, stage.seconds))
        if (
            self._checkpoint is not None
            and (key := self._keys.get(number))
            and number not in self._taken_over
        ):
            self._keeping.append(self._spawn(self._keep(key, stage.stage, id, outputs, self._checkpoint)))
        if stage.stage.output is None:
            rows_by_attempt = zip(completed.launched, completed.outputs, strict=True)
            self._launcher.commit_rows({id: done.rows for id, done in rows_by_attempt if id and done})
        if number in self._graph.subqueries:
            rows = await self._result_of(number)
            # Other stages may have changed the plan while this one waited.
            self._plan = answer(self._plan, number, rows)
        self._finished[number] = _measure_output(stage.stage, completed)
        self._adapt()
        self._changed.set()

    async def _keep(
        self, key: str, stage: Stage, id: StageId, outputs: Sequence[TaskDone], checkpoint: Checkpoint
    ) -> None:
        """Keep the output of a complete stage for later runs, unless its files have changed while they were read."""
        layout = self._plan.layouts[stage.id]
        inputs = {node.stage: self._keys.get(node.stage) for node in stage.inputs}
        if await checkpoint.key_of(stage, layout, inputs) == key:
            await checkpoint.keep(key, id, outputs)

    async def _stop_feeding(self, id: StageId, feeding: Feeding) -> None:
        await feeding.stop()
        if feeding:
            self._progress(id, feeding.counts())
        for status in feeding.status():
            self._events.record(FeedFinished(id, status))
        if not feeding.is_exhausted:
            # The splits read so far gave enough rows. A rerun over other inputs might not, and the feeds are stopped.
            self._perform(self._schedule.pin(id.stage, "and some of its splits were never read"))

    async def _result_of(self, number: int) -> pa.Table:
        """Fetch the rows of a subquery and pin them: a later rerun must not produce different ones."""
        missing: BlockMissing | None = None
        for _ in range(self._attempts_limit):
            manifest = await self.complete_output(number)
            try:
                batches = await run_blocking(Work.FETCH, self._fetch, manifest)
            except BlockMissing as error:
                missing = error
                lost = frozenset({error.attempt} if error.attempt else ())
                self._perform(self._schedule.lose(number, lost, self._launcher.holders()))
                continue
            if self._schedule.manifest(number) != manifest:
                continue  # it was recomputed while we read it
            self._perform(self._schedule.consume(number))
            schema = result_schema(self._stages[number].stage.plan.output)
            return pa.Table.from_batches(
                [make_batch(batch.columns, schema, batch.num_rows) for batch in batches], schema
            )
        raise missing or BlockMissing(
            f"{self._schedule.stage_id(number)}: its result changed {self._attempts_limit} times while it was read."
        )

    def _fetch(self, manifest: Manifest) -> list[pa.RecordBatch]:
        return [
            batch
            for task in manifest.blocks
            for block in task
            if block.rows
            for batch in self._transport.fetch(block)
        ]

    # ---------------------------------------------------------------------------------------------------- waiting

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run background everything else; an error ends the query."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)
        self._changed.set()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._changed.set()

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until an event makes `condition` true. Raises the error that ends the query before that."""
        while True:
            if self._error is not None:
                raise self._error
            if condition():
                return
            if not self._tasks:
                # Only tasks change anything, so this would never end. Fail instead of hanging: it is a defect.
                raise EngineError(f"query {self._query} is stuck: nothing runs, and nothing else can start.")
            self._changed.clear()
            await self._changed.wait()


@dataclass
class _Stage:
    """A stage that has begun. `background` runs alongside its attempts; a materialized stage has no `feeding`."""

    stage: Stage
    feeding: Feeding | None = None
    background: list[asyncio.Task[None]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started if self.feeding is not None else 0.0


def _measure_output(stage: Stage, completed: Completed) -> Produced:
    # The result stage has no output, and nobody needs its size.
    output = stage.output or Output(Partitioning.SINGLE)
    return Produced(
        output,
        tuple(
            tuple(block.size_bytes for block in done.blocks) if done is not None else ()
            for done in completed.outputs
        ),
    )
