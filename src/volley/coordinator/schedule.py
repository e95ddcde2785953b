# SPDX-License-Identifier: Apache-2.0
"""Decides what runs, which attempt counts and what a loss means: a state machine without clock, event loop or workers.

    events                                          actions
    begin(stage)                                    Launch     an attempt, with exactly this input
    add(stage, outputs)     it ran elsewhere        Cancel     an attempt
    add_task(stage)                                 Completed  every task of a stage has an output or is unneeded
    finish(done)            an attempt committed    RolledBack, AttemptFailed    for reports
    fail(failure)           an attempt failed       Failed     the query is over
    deliver(attempt)        its rows reach the client
    pin, consume(stage)     its rows must not change
    lose(stage, attempts)   these outputs are lost
    demand(stage)           its whole output is needed
    close()                 the query was cancelled

These rules are applied together, at the end of every event:

    The tasks of an incomplete stage are wanted. A wanted task without a winner is launched as soon as all outputs that
    it reads exist; missing ones become wanted in turn. So a lost output is recomputed if and only if something needs
    it, and no attempt ever starts with less than its whole input.

    The first attempt that finishes wins, until its output is lost. A report of a loss says nothing about outputs that
    were produced after the reporting attempt was launched.

    If a lost output is not repeatable, every stage that has read from it restarts in a new epoch, and so do the stages
    that have read from those. No reader ever sees two versions of one output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

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
from volley.coordinator.attempts import Attempts, error_of
from volley.coordinator.manifest import Election, Manifest
from volley.errors import BlockMissing, CheckpointLost, QueryError, ResultInterrupted
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.rpc.messages import InputBlocks, TaskDone, TaskFailure
from volley.stages.layout import Read


class Schedule:
    """The stages of one query that have begun. A task fails for good after `limit` failures."""

    def __init__(self, query: QueryId, limit: int) -> None:
        self._query = query
        self._limit = limit
        self._stages: dict[int, _Stage] = {}
        self._actions: list[Action] = []
        self._is_over = False

    # ----------------------------------------------------------------------------------------------- events

    def begin(self, spec: StageSpec) -> list[Action]:
        """Begin a stage, all of whose inputs are complete."""
        self._stages[spec.number] = _Stage(spec, StageId(self._query, spec.number), self._limit)
        return self._react()

    def add(self, spec: StageSpec, outputs: Sequence[TaskDone], *, taken_over: bool = False) -> list[Action]:
        """Add a stage whose `outputs` were computed elsewhere. They cannot be recomputed here.

        `taken_over`: by an earlier run of the same query.
        """
        stage = _Stage(spec, StageId(self._query, spec.number), self._limit, outputs)
        stage.is_taken_over = taken_over
        self._stages[spec.number] = stage
        return self._react()

    def add_task(self, number: int) -> list[Action]:
        """Add one task to a stage, unless it is complete."""
        if not self._stages[number].is_complete:
            self._stages[number].add_task()
        return self._react()

    def finish(self, done: TaskDone, worker: str, launched: AttemptId | None = None) -> list[Action]:
        """An attempt committed its output, which `worker` holds.

        `launched` is the attempt that was launched, if the output names another one: Spark may run copies of an
        attempt, and the blocks carry the copy that wrote them.
        """
        stage = self._running(launched or done.attempt)
        if stage is not None:
            stage.commit(done, worker)
        return self._react()

    def fail(
        self, failure: TaskFailure, worker: str, present: Set[str], launched: AttemptId | None = None
    ) -> list[Action]:
        """An attempt on `worker` ended without output. `present` are the workers whose blocks can be read.

        `launched` as in `finish`.
        """
        stage = self._running(launched or failure.attempt)
        if stage is None:
            return self._react()
        attempt = stage.end(failure.attempt)
        task = failure.attempt.task.task
        # Rows that the client has cannot be taken back. A task that delivered some can only continue after them.
        may_retry = stage.attempts[task].may_retry(failure)
        final = (attempt.has_delivered and not stage.spec.resumable) or not may_retry
        self._actions.append(AttemptFailed(failure, final))
        if final and attempt.has_delivered and failure.failure.may_pass:
            return self._end(
                ResultInterrupted(f"{failure.attempt}: {failure.message}", hint="Run the query again.")
            )
        if final:
            return self._end(error_of(failure))
        if failure.lost is None:
            stage.failed_on[task].add(worker)
            return self._react()
        return self._lose_inputs(stage, failure, attempt.known, present)

    def deliver(self, attempt: AttemptId) -> list[Action]:
        """Rows of this attempt are about to reach the client."""
        stage = self._running(attempt)
        if stage is None or stage.running[attempt.task.task].has_delivered:
            return []
        stage.running[attempt.task.task].has_delivered = True
        stage.pinned = "and the client has some of the old rows"
        return self._react()

    def pin(self, number: int, reason: str) -> list[Action]:
        """Forbid a restart of this stage. `reason` completes the sentence of the error message."""
        self._stages[number].pinned = reason
        return self._react()

    def consume(self, number: int) -> list[Action]:
        """The current rows of a stage are in use outside the stages: it must never produce different ones."""
        stage = self._stages[number]
        stage.is_consumed = True
        stage.pinned = "and the old ones are in use"
        return self._react()

    def lose(self, number: int, attempts: Set[AttemptId], present: Set[str]) -> list[Action]:
        """The outputs of these attempts are lost, and so is everything that absent workers held of the stage."""
        try:
            stage = self._stages[number]
            self._drop(stage, attempts | stage.held_by_absent(present))
        except QueryError as error:
            return self._end(error)
        return self._react()

    def demand(self, number: int) -> list[Action]:
        """The whole output of a stage is needed: recompute what was lost."""
        self._stages[number].is_demanded = True
        return self._react()

    def close(self) -> list[Action]:
        """Cancel all attempts. The query is over."""
        self._is_over = True
        for stage in self._stages.values():
            self._actions += stage.cancel_all()
        return self._take_actions()

    # ------------------------------------------------------------------------------------------------ queries

    def manifest(self, number: int) -> Manifest:
        """The current output of a stage."""
        stage = self._stages[number]
        return stage.election.manifest(stage.maker)

    def has_all_outputs(self, number: int) -> bool:
        """Whether no output of a stage is missing."""
        return not self._stages[number].election.missing()

    def is_running(self, attempt: AttemptId) -> bool:
        """Whether an attempt was launched and has neither ended nor been cancelled."""
        return self._running(attempt) is not None

    def stage_id(self, number: int) -> StageId:
        return self._stages[number].id

    def tasks(self, number: int) -> int:
        return self._stages[number].tasks

    # ------------------------------------------------------------------------------------------------ reaction

    def _react(self) -> list[Action]:
        """Apply the rules to the current state and return the resulting actions."""
        if not self._is_over:
            for stage in self._stages.values():
                self._actions += stage.settle()
                if stage.is_complete and stage.spec.output is None:
                    return self.close()  # the client has all rows: losses no longer matter
            self._launch_wanted()
        return self._take_actions()

    def _end(self, error: QueryError) -> list[Action]:
        if self._is_over:
            return self._take_actions()
        actions = self.close()
        return [*actions, Failed(error)]

    def _take_actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def _launch_wanted(self) -> None:
        seen: set[tuple[int, int]] = set()
        wanted = [
            (stage, task)
            for stage in self._stages.values()
            if stage.is_wanted
            for task in stage.election.missing()
        ]
        while wanted:
            stage, task = wanted.pop(0)
            if (stage.number, task) in seen or task in stage.running:
                continue
            seen.add((stage.number, task))
            missing = list(self._missing(stage, task))
            if missing:
                wanted += missing
            else:
                self._launch(stage, task)

    def _missing(self, stage: _Stage, task: int) -> Iterator[tuple[_Stage, int]]:
        """The producer tasks whose outputs this task reads and that are missing."""
        for number, reads in self._reads(stage, task).items():
            producer = self._stages[number]
            for needed in sorted({read.producer for read in reads}):
                if producer.election.is_missing(needed):
                    yield producer, needed

    def _launch(self, stage: _Stage, task: int) -> None:
        inputs = tuple(
            InputBlocks(number, self.manifest(number).take(reads))
            for number, reads in self._reads(stage, task).items()
        )
        known = frozenset[AttemptId]().union(
            *(self._stages[number].election.winners for number in stage.spec.inputs)
        )
        attempt = stage.launch(task, known)
        self._actions.append(Launch(attempt, inputs, frozenset(stage.failed_on[task])))

    def _reads(self, stage: _Stage, task: int) -> Mapping[int, tuple[Read, ...]]:
        if task not in stage.reads:
            reads: dict[int, tuple[Read, ...]] = {}
            for number in stage.spec.inputs:
                producer = self._stages[number]
                assert producer.spec.output is not None, "nobody reads the result stage"
                reads[number] = stage.spec.layout.reads(number, producer.spec.output, producer.tasks, task)
            stage.reads[task] = reads
        return stage.reads[task]

    def _running(self, attempt: AttemptId) -> _Stage | None:
        """The stage of an attempt, if that attempt still counts."""
        stage = self._stages.get(attempt.task.stage.stage)
        if self._is_over or stage is None:
            return None
        running = stage.running.get(attempt.task.task)
        return stage if running is not None and running.id == attempt else None

    # -------------------------------------------------------------------------------------------------- losses

    def _lose_inputs(
        self, reader: _Stage, failure: TaskFailure, known: Set[AttemptId], present: Set[str]
    ) -> list[Action]:
        assert failure.lost is not None
        producers = [self._stages[number] for number in reader.spec.inputs]
        maker = next((made for stage in producers if (made := stage.maker(failure.lost))), None)
        # Drop all that the same worker held, or each such input would cost another attempt. A damaged block was
        # readable, so it says nothing about the worker's other blocks.
        suspect = None if failure.damaged else maker
        try:
            for stage in producers:
                lost = {failure.lost} | stage.held_by_absent(present)
                if suspect is not None:
                    lost |= stage.held_by(suspect) & known
                self._drop(stage, lost)
        except QueryError as error:
            return self._end(error)
        return self._react()

    def _drop(self, stage: _Stage, attempts: Set[AttemptId]) -> None:
        """Drop lost outputs, and roll back their readers if a rerun would produce different rows."""
        if not stage.election.winners & attempts:
            return
        if stage.is_taken_over:
            raise CheckpointLost(
                f"{stage.id}: its output was taken over from a checkpoint and cannot be read any more.",
                hint="Run the query again.",
            )
        if stage.is_materialized:
            raise BlockMissing(
                f"{stage.id}: rows of Spark or of a cached frame were lost with the worker that held them.",
                hint="Run the query again: they are computed anew.",
            )
        if stage.is_consumed and not stage.spec.repeatable:
            raise _interruption(stage.id, "and the old ones are in use")
        stage.election.forget(attempts)
        if not stage.spec.repeatable:
            self._roll_back_readers(stage)

    def _roll_back_readers(self, stage: _Stage) -> None:
        for reader in self._stages.values():
            # A stage that launched nothing in its epoch has read nothing, and nothing has read from it.
            if stage.number in reader.spec.inputs and reader.has_launched:
                self._actions += reader.roll_back()
                self._roll_back_readers(reader)


@dataclass
class _Attempt:
    """A running attempt. `known` are the outputs of its producers that existed when it was launched."""

    id: AttemptId
    known: frozenset[AttemptId]
    has_delivered: bool = False


@dataclass(frozen=True)
class _Made:
    worker: str
    outlives_worker: bool


class _Stage:
    """The state of one stage."""

    def __init__(
        self, spec: StageSpec, id: StageId, limit: int, outputs: Sequence[TaskDone] | None = None
    ) -> None:
        self.spec = spec
        self.number = spec.number
        self.tasks = spec.tasks
        self.is_materialized = outputs is not None
        self.is_taken_over = False
        self.is_complete = False
        self.is_demanded = False
        self.is_consumed = False
        # Why it cannot restart, once it cannot.
        self.pinned: str | None = None
        self.reads: dict[int, Mapping[int, tuple[Read, ...]]] = {}
        self._limit = limit
        self._made: dict[AttemptId, _Made] = {}
        self._begin(id)
        if outputs is not None:
            self.election.adopt(outputs)
            for done in outputs:
                self._remember(done, done.made_by)

    def _begin(self, id: StageId) -> None:
        """Start an epoch: no task has a winner, and each has its full number of attempts."""
        self.id = id
        self.has_launched = False
        self.running: dict[int, _Attempt] = {}
        self.launched: dict[int, AttemptId] = {}
        self.election = Election(id, self.tasks)
        self.attempts = [Attempts(TaskId(id, task), self._limit) for task in range(self.tasks)]
        self.failed_on: list[set[str]] = [set() for _ in range(self.tasks)]

    @property
    def is_wanted(self) -> bool:
        return not self.is_complete or self.is_demanded

    def add_task(self) -> None:
        self.election.add_task()
        self.attempts.append(Attempts(TaskId(self.id, self.tasks), self._limit))
        self.failed_on.append(set())
        self.tasks += 1

    def launch(self, task: int, known: frozenset[AttemptId]) -> AttemptId:
        attempt = self.attempts[task].next()
        self.running[task] = _Attempt(attempt, known)
        self.has_launched = True
        return attempt

    def end(self, attempt: AttemptId) -> _Attempt:
        return self.running.pop(attempt.task.task)

    def commit(self, done: TaskDone, worker: str) -> None:
        task = done.attempt.task.task
        ended = self.end(done.attempt)
        self.failed_on[task].clear()
        if self.election.commit(done):
            self.launched[task] = ended.id
        self._remember(done, worker)

    def _remember(self, done: TaskDone, worker: str) -> None:
        outlives = all(block.outlives_worker for block in done.blocks)
        self._made[done.attempt] = _Made(worker, outlives)

    def maker(self, attempt: AttemptId) -> str | None:
        return self._made[attempt].worker if attempt in self._made else None

    def held_by(self, worker: str) -> set[AttemptId]:
        """The outputs that are lost if this worker is."""
        return {
            attempt
            for attempt, made in self._made.items()
            if made.worker == worker and not made.outlives_worker
        }

    def held_by_absent(self, present: Set[str]) -> set[AttemptId]:
        return {
            attempt
            for attempt, made in self._made.items()
            if made.worker not in present and not made.outlives_worker
        }

    def settle(self) -> Iterator[Action]:
        """Cancel unneeded attempts, and emit `Completed` once no output is missing."""
        enough = self.spec.output.enough_rows if self.spec.output else None
        if enough is not None and self.election.rows >= enough:
            self.election.skip_rest()
            for task in [task for task in self.running if not self.election.is_missing(task)]:
                yield Cancel(self.running.pop(task).id)
        if self.election.missing():
            return
        self.is_demanded = False
        if not self.is_complete:
            self.is_complete = True
            winners = tuple(map(self.election.winner, range(self.tasks)))
            yield Completed(self.id, winners, tuple(map(self.launched.get, range(self.tasks))))

    def roll_back(self) -> Iterator[Action]:
        """Restart in a new epoch, because its input will be recomputed with different rows."""
        if self.pinned is not None:
            raise _interruption(self.id, self.pinned)
        if self.id.epoch + 1 >= self._limit:
            raise QueryError(
                f"{self.id}: its input was lost and recomputed {self.id.epoch + 1} times.",
                hint="Workers fail faster than this query can finish.",
            )
        yield from self.cancel_all()
        self._begin(replace(self.id, epoch=self.id.epoch + 1))
        yield RolledBack(self.id)

    def cancel_all(self) -> list[Action]:
        running, self.running = self.running, {}
        return [Cancel(attempt.id) for attempt in running.values()]


def _interruption(stage: StageId, reason: str) -> ResultInterrupted:
    return ResultInterrupted(
        f"{stage}: exchanged data was lost, a rerun would produce different rows, {reason}.",
        hint="Run the query again.",
    )
