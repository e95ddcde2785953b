# SPDX-License-Identifier: Apache-2.0
"""One stage of a running query: which attempt of each task counts, and what happens when its output is lost.

    run()              wait for what it reads, adapt to its sizes, compute every task
    absorb(producer)   do the work of a producer that has not begun, instead of reading its output
    go_on_from(...)    the same, as a single task
    output(task)       the winner of a task; computes it where there is none yet, or none any more
    lose(...)          these winners count no more: their output is gone
    roll_back()        no winner counts any more: they read what will be computed differently

Readers ask for `output` whenever they start an attempt, so what was lost is computed again when, and only if, somebody
needs it; what that computation reads is asked for in the same way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, replace
from typing import Any

from volley.coordinator.answers import Answers
from volley.coordinator.attempts import Attempts, error_of
from volley.coordinator.feeding import Feeding
from volley.coordinator.launch import Launched, Launcher
from volley.coordinator.manifest import Election, Manifest
from volley.errors import QueryError, ResultInterrupted
from volley.events import (
    EventLog,
    FeedFinished,
    SplitCounts,
    SplitProgress,
    StageAbsorbed,
    StageFinished,
    StageRolledBack,
    StageStarted,
    TaskFailed,
)
from volley.ids import AttemptId, StageId, TaskId
from volley.plan.nodes import MaterializedInput, Node, Partitioning
from volley.rpc.messages import Failure, InputBlocks, TaskDone, TaskFailure, TaskSpec
from volley.shuffle.base import Block
from volley.stages.adapt import Produced, absorbed, adapted, continued, small_inputs
from volley.stages.graph import Stage
from volley.stages.layout import Layout, Read
from volley.stages.limits import PlannerLimits
from volley.stages.repeatable import is_repeatable
from volley.stages.runtime_filters import Finished, limit_bytes, reduced
from volley.stages.selectivity import may_shrink
from volley.transport.base import RunningTask


class StageRun:
    """Lives on one event loop. `producers` are the runs of the stages that it reads, by their numbers."""

    def __init__(
        self,
        stage: Stage,
        id: StageId,
        producers: Mapping[int, StageRun],
        launcher: Launcher,
        events: EventLog,
        attempts_limit: int,
        limits: PlannerLimits,
    ) -> None:
        self.awaits: list[StageRun] = []
        self.answers: Answers | None = None
        self._planned_tasks = stage.tasks
        self._decisions = stage.decisions
        self._producers = dict(producers)
        self._readers: list[StageRun] = []
        self._launcher = launcher
        self._events = events
        self._attempts_limit = attempts_limit
        self._limits = limits
        self._made_by: dict[AttemptId, str] = {}
        self._outlive: set[AttemptId] = set()
        self._running: dict[int, asyncio.Task[TaskDone]] = {}
        self._gave_rows = False
        self.finished = asyncio.Event()
        self._id = id
        self._plan_for(stage, Layout(stage.tasks))
        for producer in producers.values():
            producer._readers.append(self)

    def _plan_for(self, stage: Stage, layout: Layout) -> None:
        """Nothing of it has begun yet."""
        self.stage = stage
        self._layout = layout
        self._repeatable = is_repeatable(stage)
        self._feeding: Feeding | None = None
        self._begin(self._id)

    def _begin(self, id: StageId) -> None:
        """A new epoch: no task has a winner, and each has all its attempts before it."""
        self._id = id
        self._election = Election(id, self.stage.tasks)
        self._attempts = [
            Attempts(TaskId(id, number), self._attempts_limit) for number in range(self.stage.tasks)
        ]

    async def run(self) -> None:
        """Until every task has a winner, or there are rows enough."""
        for producer in [*self._producers.values(), *self.awaits]:
            await producer.finished.wait()
        if self.answers:
            self.stage = await self.answers.filled(self.stage)
        reader = self._readers[0] if len(self._readers) == 1 else None
        if reader and reader.absorb(self):
            return
        if reader:
            self._reduce(reader)
        self._adapt()
        if reader and reader.go_on_from(self):
            return
        feeding = self._feed()
        started = time.monotonic()
        tasks, workers = self.stage.tasks, self._launcher.worker_count
        self._events.record(StageStarted(self._id, tasks, self._planned_tasks, self._decisions, workers))
        while missing := [] if self._has_enough() else self._election.missing():
            works = [self._finish(task) for task in missing]
            if feeding:
                works += [feeding.watch(), self._grow(feeding), feeding.tell(self._progress)]
            await until(works, self._is_done)
        self._election.skip_the_rest()
        await self._stop_running()
        await feeding.stop()
        if feeding:
            self._progress(feeding.counts())
        for source, status in feeding.status():
            self._events.record(FeedFinished(self._id, source, **asdict(status)))
        seconds = time.monotonic() - started
        election = self._election
        self._events.record(StageFinished(self._id, election.rows, election.size_bytes, seconds))
        self.finished.set()

    def _adapt(self) -> None:
        """Let the sizes of its inputs, which are known now, decide how many tasks there are and what each reads."""
        inputs = {number: producer.produced() for number, producer in self._producers.items()}
        new = adapted(self.stage, inputs, self._limits)
        self._decisions += new.decisions
        self._plan_for(new.stage, new.layout)

    def produced(self) -> Produced:
        """What it gave, when it is finished."""
        assert self.stage.output is not None
        outputs = self._election.manifest().outputs
        return Produced(
            self.stage.output,
            tuple(tuple(block.size_bytes for block in blocks or ()) for blocks in outputs),
        )

    def absorb(self, producer: StageRun) -> bool:
        """Take over the work of a producer that has not begun; False where its output has to be exchanged."""
        others = {number: run for number, run in self._producers.items() if run is not producer}
        outputs = {number: run.stage.output for number, run in self._producers.items() if run.stage.output}
        sizes = {number: run._election.size_bytes for number, run in others.items() if run.finished.is_set()}
        stage = absorbed(self.stage, producer.stage, outputs, sizes, self._limits)
        if stage is None:
            return False
        small = {number: sizes[number] for number in stage.whole & sizes.keys()}
        said = (
            f"{small_inputs(small)}: every task reads it whole, and does the work of stage {producer.stage.id} "
            "itself, whose rows are not exchanged"
        )
        self._take_over(producer, stage, said)
        return True

    def go_on_from(self, producer: StageRun) -> bool:
        """Become the one task that computes a producer, which has not begun, and goes on; False if not worth it."""
        others = [run for run in self._producers.values() if run is not producer]
        if not all(run.finished.is_set() for run in others):
            return False
        other_bytes = sum(run._election.size_bytes for run in others)
        stage = continued(self.stage, producer.stage, other_bytes, self._limits)
        if stage is None:
            return False
        said = f"the task of stage {producer.stage.id} is the only one and goes on with this stage itself"
        self._take_over(producer, stage, said)
        return True

    def _take_over(self, producer: StageRun, stage: Stage, said: str) -> None:
        """From now on this is `stage`, which does the work of `producer` too."""
        self._decisions = (*self._decisions, *producer._decisions, said)
        del self._producers[producer.stage.id]
        for number, run in producer._producers.items():
            self._producers[number] = run
            run._readers.remove(producer)
            if self not in run._readers:
                run._readers.append(self)
        self._plan_for(stage, Layout(stage.tasks, stage.whole))
        self._events.record(StageAbsorbed(producer._id, self._id))
        producer.finished.set()

    def _reduce(self, reader: StageRun) -> None:
        """Leave out rows that its reader, or whoever reads that, has no use for, if small finished outputs tell so."""
        runs = {number: run for number, run in reader._producers.items() if run.finished.is_set()}
        found = reduced(self.stage, reader.stage, _sizes(runs), self._limits)
        if found is None:
            top = reader._last_reader()
            runs = {number: run for number, run in top._upstream().items() if run.finished.is_set()}
            found = reduced(self.stage, top.stage, _sizes(runs), self._limits, self._look_into(top))
        if found is None:
            return
        self.stage, partners = found
        for number in partners:
            self._producers[number] = runs[number]
            runs[number]._readers.append(self)
        small = small_inputs({number: runs[number]._election.size_bytes for number in partners})
        self._decisions += (f"{small}: only rows with a partner there are exchanged",)

    def _last_reader(self) -> StageRun:
        """Itself, or its only reader, or the only reader of that, and so on."""
        return self._readers[0]._last_reader() if len(self._readers) == 1 else self

    def _upstream(self) -> dict[int, StageRun]:
        found: dict[int, StageRun] = {}
        ahead = [self]
        while ahead:
            new = {number: run for number, run in ahead.pop()._producers.items() if number not in found}
            found |= new
            ahead += new.values()
        return found

    def _look_into(self, top: StageRun) -> Callable[[int], Node | None]:
        """The work of the stages below `top`, but for those that are finished and small."""
        upstream, limit = top._upstream(), limit_bytes(self.stage, self._limits)

        def plan_of(number: int) -> Node | None:
            run = upstream[number]
            small = run.finished.is_set() and run._election.size_bytes <= limit
            return None if small or isinstance(run.stage.plan, MaterializedInput) else run.stage.plan

        return plan_of

    def _may_have_shrunk(self) -> bool:
        producers = self._producers.values()
        return may_shrink(self.stage.plan) or any(run._may_have_shrunk() for run in producers)

    def _feed(self) -> Feeding:
        """Begin to look for what its scans read. It starts with the tasks that are sure to have something to do;
        `_grow` adds more as work is found.
        """
        feeding = self._feeding = Feeding(
            self.stage, str(self._id), self._reads_alike(), self._launcher.equal_workers, self._limits
        )
        sure = max(1, min(feeding.known_splits(), self.stage.tasks))
        feeding.start()
        self._most_tasks = self.stage.tasks
        if feeding.may_grow:
            self.stage = replace(self.stage, tasks=sure)
            self._begin(self._id)
        return feeding

    async def _grow(self, feeding: Feeding) -> None:
        """Another task whenever splits wait and every task has its hands full, up to the number that was planned.

        That is one a worker: a task is as wide as its worker's cores.
        """
        if not feeding.may_grow or self.stage.tasks >= self._most_tasks:
            return
        if await feeding.surplus(self.stage.tasks):
            task = self.stage.tasks
            self.stage = replace(self.stage, tasks=task + 1)
            self._election.add_task()
            self._attempts.append(Attempts(TaskId(self._id, task), self._attempts_limit))
            await until([self._finish(task), self._grow(feeding)])

    def _progress(self, splits: SplitCounts) -> None:
        self._events.record(SplitProgress(self._id, splits))

    def _reads_alike(self) -> bool:
        """Whether what a task reads of other stages does not depend on how many tasks there are."""
        alike = (Partitioning.BROADCAST, Partitioning.SINGLE)
        return not self._layout.shares and all(
            number in self._layout.whole
            or (producer.stage.output is not None and producer.stage.output.partitioning in alike)
            for number, producer in self._producers.items()
        )

    async def close(self) -> None:
        await self._stop_running()
        if self._feeding is not None:
            await self._feeding.close()

    # ------------------------------------------------------------------------------------- outputs

    @property
    def winners(self) -> frozenset[AttemptId]:
        """The attempts that count now."""
        return self._election.winners

    def is_missing(self, task: int) -> bool:
        """Whether a reader of this task would have to wait for its output."""
        return self._election.is_missing(task)

    def take(self, reads: Iterable[Read]) -> tuple[Block, ...]:
        """The blocks that these reads name now. BlockMissing if an output is missing."""
        return self._election.manifest().take(reads)

    async def output(self, task: int) -> None:
        """Wait until a task has a winner, or is not needed because others gave rows enough."""
        while self._election.is_missing(task):
            if self.finished.is_set() and self._has_enough():
                self._election.skip_the_rest()
                return
            await self._compute(task)

    async def whole(self) -> Manifest:
        """All that it gave, when it is finished; what has been lost with a worker since is computed again."""
        self.lose()
        while missing := self._election.missing():
            await until(self._finish(task) for task in missing)
        return self._election.manifest()

    def maker(self, attempt: AttemptId) -> str | None:
        """The worker that computed a winner."""
        return self._made_by.get(attempt)

    def lose(
        self,
        attempts: Set[AttemptId] = frozenset(),
        worker: str | None = None,
        known: Set[AttemptId] = frozenset(),
    ) -> None:
        """The output of these attempts is gone, and all that an absent worker had made and kept.

        What `worker` had made and kept is gone too, as far as the reader that says so could know of it: its report may
        be late, and outputs that were made since are there.
        """
        if self._election.forget(self._lost(attempts, worker, known)) and not self._repeatable:
            for reader in self._readers:
                reader.roll_back()

    def _lost(self, attempts: Set[AttemptId], worker: str | None, known: Set[AttemptId]) -> Set[AttemptId]:
        present = self._launcher.present()
        return {
            winner
            for winner, maker in self._made_by.items()
            if winner in attempts
            or (
                winner not in self._outlive
                and (maker not in present or (maker == worker and winner in known))
            )
        }

    def made(self, attempt: AttemptId) -> bool:
        """Whether this is an attempt at one of its tasks."""
        stage = attempt.task.stage
        return (stage.query, stage.stage) == (self._id.query, self._id.stage)

    def roll_back(self) -> None:
        """What this stage has read will be computed differently: it and its readers begin again in a new epoch."""
        untouched = not self._running and len(self._election.missing()) == self.stage.tasks
        if untouched and not self._gave_rows:
            return
        if self._gave_rows:
            raise ResultInterrupted(
                f"{self._id}: exchanged data was lost that cannot be computed again with the same rows, "
                "and the client has some of the old ones.",
                hint="Run the query again.",
            )
        if self._id.epoch + 1 >= self._attempts_limit:
            raise QueryError(
                f"{self._id}: what it reads was lost and computed again {self._id.epoch + 1} times.",
                hint="Workers are lost faster than this query can run.",
            )
        for running in self._running.values():
            running.cancel()
        self._begin(replace(self._id, epoch=self._id.epoch + 1))
        self._events.record(StageRolledBack(self._id))
        for reader in self._readers:
            reader.roll_back()

    # ------------------------------------------------------------------------------------ computing

    async def _finish(self, task: int) -> None:
        await self.output(task)

    async def _compute(self, task: int) -> None:
        """Join the computation of a task, or begin one. Returns without a winner when it was rolled back."""
        running = self._running.get(task)
        if running is None:
            running = self._running[task] = asyncio.create_task(self._run_task(task))
        await asyncio.wait([running])
        if self._running.get(task) is running:
            del self._running[task]
        if not running.cancelled():
            running.result()

    async def _run_task(self, task: int) -> TaskDone:
        attempts = self._attempts[task]
        failed_on: set[str] = set()
        while True:
            inputs, known = await self._inputs(task)
            assert self._feeding is not None, "nobody asks for the output of a stage that has not begun"
            spec = TaskSpec(
                attempts.next(), self._feeding.plan_of(task), self.stage.output, self.stage.ordered, inputs
            )
            launched = await self._launcher.launch(spec, failed_on, self._serve)
            self._gave_rows |= launched.gave_rows
            outcome = launched.outcome
            if isinstance(outcome, TaskDone):
                self._made_by[outcome.attempt] = launched.worker
                if self._feeding is not None:
                    self._feeding.commit(task)
                if all(block.outlives_worker for block in outcome.blocks):
                    self._outlive.add(outcome.attempt)
                self._election.commit(outcome)
                return outcome
            self._failed(outcome, launched, attempts, known)
            if outcome.failure is not Failure.LOST_INPUT:
                failed_on.add(launched.worker)

    async def _serve(self, running: RunningTask, worker: str) -> None:
        if self._feeding is not None:
            await self._feeding.serve(running, worker, lambda: self.stage.tasks)

    def _failed(
        self, failure: TaskFailure, launched: Launched, attempts: Attempts, known: Set[AttemptId]
    ) -> None:
        """Make another attempt possible, or raise what ends the query. `known` are the outputs that were there when
        the attempt was given its input.
        """
        # Rows that the client has cannot be taken back, so an attempt that gave some is the last.
        final = launched.gave_rows or not attempts.may_retry(failure)
        self._events.record(TaskFailed(failure.attempt, failure.code, failure.message, final))
        if final and launched.gave_rows and failure.failure.may_pass:
            raise ResultInterrupted(f"{failure.attempt}: {failure.message}", hint="Run the query again.")
        if final:
            raise error_of(failure)
        if failure.lost is not None:
            owner = next(producer for producer in self._producers.values() if producer.made(failure.lost))
            worker = None if failure.damaged else owner.maker(failure.lost)
            owner.lose({failure.lost})
            # One attempt must not be spent on each input that the same worker held.
            for producer in self._producers.values():
                producer.lose(worker=worker, known=known)

    async def _inputs(self, task: int) -> tuple[tuple[InputBlocks, ...], frozenset[AttemptId]]:
        """Everything that a task reads, and which outputs of its producers there are at that moment."""
        reads = {number: self._reads(task, number) for number in self._producers}
        # While one output is computed, another may be lost: only a look at all of them at once counts.
        while missing := next(self._missing(reads), None):
            producer, needed = missing
            await producer.output(needed)
        inputs = tuple(
            InputBlocks(number, self._producers[number].take(wanted)) for number, wanted in reads.items()
        )
        return inputs, frozenset().union(*(producer.winners for producer in self._producers.values()))

    def _reads(self, task: int, number: int) -> tuple[Read, ...]:
        producer = self._producers[number].stage
        assert producer.output is not None
        return self._layout.reads(number, producer.output, producer.tasks, task)

    def _missing(self, reads: Mapping[int, Sequence[Read]]) -> Iterator[tuple[StageRun, int]]:
        for number, wanted in reads.items():
            producer = self._producers[number]
            for needed in sorted({read.producer for read in wanted}):
                if producer.is_missing(needed):
                    yield producer, needed

    def _has_enough(self) -> bool:
        wanted = self.stage.output.enough_rows if self.stage.output else None
        return wanted is not None and self._election.rows >= wanted

    def _is_done(self) -> bool:
        return self._has_enough() or not self._election.missing()

    async def _stop_running(self) -> None:
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _sizes(runs: Mapping[int, StageRun]) -> dict[int, Finished]:
    return {
        number: Finished(run._election.size_bytes, run._may_have_shrunk()) for number, run in runs.items()
    }


async def until(
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
