# SPDX-License-Identifier: Apache-2.0
"""Decides what runs, which attempt counts and what a loss means: a state machine without a clock, a loop or a worker.

    events                                      actions
    begin(stage, layout)                        Launch    an attempt, with exactly this input
    add(stage, outputs)     it ran elsewhere    Cancel    an attempt
    add_task(stage)                             Completed every task of a stage has an output, or is not needed
    finish(done)            an attempt won      RolledBack, AttemptFailed    to be reported
    fail(failure)           an attempt failed   Failed    the query is over
    deliver(attempt)        rows leave the query
    lose(attempt)           an output is gone
    demand(stage)           somebody wants all of it
    close()                 cancelled

The rules, all applied in one step at the end of every event:

    Tasks of a stage that is not complete are wanted. A wanted task without a winner is launched as soon as all outputs
    that it reads are there; those that are not there are wanted in turn. So a lost output is computed again when, and
    only if, somebody needs it, and no attempt ever starts with less than its whole input.

    The first attempt that finishes wins, until its output is lost. A report of a loss says nothing about outputs that
    were made after the reporting attempt was launched.

    When an output is lost that would not be the same another time, every stage that has read from it begins again, in a
    new epoch, and so does what has read from that. Nobody sees two versions of one output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from volley.coordinator.attempts import Attempts, error_of
from volley.coordinator.manifest import Election, Manifest
from volley.errors import BlockMissing, QueryError, ResultInterrupted
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.rpc.messages import InputBlocks, TaskDone, TaskFailure
from volley.stages.graph import Output
from volley.stages.layout import Layout, Read


@dataclass(frozen=True)
class Launch:
    """Start an attempt. `inputs` are all that it reads; workers in `avoid` failed at the task before."""

    attempt: AttemptId
    inputs: tuple[InputBlocks, ...]
    avoid: frozenset[str]


@dataclass(frozen=True)
class Cancel:
    """Stop an attempt: what it gives does not count any more."""

    attempt: AttemptId


@dataclass(frozen=True)
class Completed:
    """All that a stage gives is there. Said once, even if some of it is lost and computed again later."""

    stage: StageId
    outputs: tuple[TaskDone | None, ...]
    """By task; None for one that was not needed."""


@dataclass(frozen=True)
class RolledBack:
    """A stage begins again, in the epoch of `stage`."""

    stage: StageId


@dataclass(frozen=True)
class AttemptFailed:
    """`final`: the task is not tried again."""

    failure: TaskFailure
    final: bool


@dataclass(frozen=True)
class Failed:
    """The query is over."""

    error: QueryError


Action = Launch | Cancel | Completed | RolledBack | AttemptFailed | Failed


@dataclass(frozen=True)
class StageSpec:
    """What the schedule has to know of a stage.

    `inputs` are the outputs of the stages that it reads, by their numbers. `repeatable`: a task that runs again over
    the same input gives the same rows in the same partitions.
    """

    number: int
    tasks: int
    output: Output | None
    repeatable: bool
    layout: Layout
    inputs: tuple[int, ...] = ()


class Schedule:
    """The stages of one query that have begun. An attempt is the last of its task after `limit` failures."""

    def __init__(self, query: QueryId, limit: int) -> None:
        self._query = query
        self._limit = limit
        self._stages: dict[int, _Stage] = {}
        self._actions: list[Action] = []
        self._is_over = False

    # ----------------------------------------------------------------------------------------------- events

    def begin(self, spec: StageSpec) -> list[Action]:
        """All stages that this one reads are complete."""
        self._stages[spec.number] = _Stage(spec, StageId(self._query, spec.number), self._limit)
        return self._react()

    def add(self, spec: StageSpec, outputs: Sequence[TaskDone]) -> list[Action]:
        """A stage whose `outputs` were made elsewhere. Nobody here can compute them again."""
        stage = _Stage(spec, StageId(self._query, spec.number), self._limit, outputs)
        self._stages[spec.number] = stage
        return self._react()

    def add_task(self, number: int) -> list[Action]:
        """One task more than there were, for a stage that is not complete."""
        if not self._stages[number].is_complete:
            self._stages[number].add_task()
        return self._react()

    def finish(self, done: TaskDone, worker: str) -> list[Action]:
        """An attempt has committed its output, which `worker` holds."""
        stage = self._running(done.attempt)
        if stage is not None:
            stage.commit(done, worker)
        return self._react()

    def fail(self, failure: TaskFailure, worker: str, present: Set[str]) -> list[Action]:
        """An attempt on `worker` has ended without output. `present` are the workers that can be reached."""
        stage = self._running(failure.attempt)
        if stage is None:
            return self._react()
        attempt = stage.end(failure.attempt)
        task = failure.attempt.task.task
        # Rows that have left the query cannot be taken back, so an attempt that gave some is the last.
        final = attempt.has_delivered or not stage.attempts[task].may_retry(failure)
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
        """Rows of this attempt leave the query."""
        stage = self._running(attempt)
        if stage is None or stage.running[attempt.task.task].has_delivered:
            return []
        stage.running[attempt.task.task].has_delivered = True
        stage.pinned = "and the client has some of the old rows"
        return self._react()

    def pin(self, number: int, reason: str) -> list[Action]:
        """From now on a stage cannot begin again; `reason` completes a sentence that says so."""
        self._stages[number].pinned = reason
        return self._react()

    def consume(self, number: int) -> list[Action]:
        """The rows of a stage, as they are now, are used outside of the stages: there must be no others."""
        stage = self._stages[number]
        stage.is_consumed = True
        stage.pinned = "and the old ones are in use"
        return self._react()

    def lose(self, number: int, attempts: Set[AttemptId], present: Set[str]) -> list[Action]:
        """The outputs of these attempts are gone, and all of the stage that absent workers held."""
        try:
            stage = self._stages[number]
            self._drop(stage, attempts | stage.held_by_absent(present))
        except QueryError as error:
            return self._end(error)
        return self._react()

    def demand(self, number: int) -> list[Action]:
        """Somebody wants all that a stage has given: compute again what was lost."""
        self._stages[number].is_demanded = True
        return self._react()

    def close(self) -> list[Action]:
        """Nothing runs any more."""
        self._is_over = True
        for stage in self._stages.values():
            self._actions += stage.cancel_all()
        return self._taken_actions()

    # ---------------------------------------------------------------------------------------------- questions

    def manifest(self, number: int) -> Manifest:
        """What a stage has given, as it is now."""
        return self._stages[number].election.manifest()

    def is_whole(self, number: int) -> bool:
        """Whether every output of a stage is there."""
        return not self._stages[number].election.missing()

    def is_running(self, attempt: AttemptId) -> bool:
        """Whether an attempt was launched, has not ended and was not cancelled."""
        return self._running(attempt) is not None

    def stage_id(self, number: int) -> StageId:
        return self._stages[number].id

    def tasks(self, number: int) -> int:
        return self._stages[number].tasks

    # ------------------------------------------------------------------------------------------------ reaction

    def _react(self) -> list[Action]:
        """What the state asks for now."""
        if not self._is_over:
            for stage in self._stages.values():
                self._actions += stage.settle()
                if stage.is_complete and stage.spec.output is None:
                    return self.close()  # the client has all rows: whatever is lost now does not matter
            self._launch_wanted()
        return self._taken_actions()

    def _end(self, error: QueryError) -> list[Action]:
        if self._is_over:
            return self._taken_actions()
        actions = self.close()
        return [*actions, Failed(error)]

    def _taken_actions(self) -> list[Action]:
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
        """The tasks whose outputs a task needs and cannot have."""
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
        """The stage of an attempt that still counts."""
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
        # One attempt must not be spent on each input that the same worker held. What is damaged was there, and nothing
        # follows from it for others.
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
        """These outputs count no more."""
        if not stage.election.winners & attempts:
            return
        if stage.is_foreign:
            raise BlockMissing(
                f"{stage.id}: rows that Spark had handed over are lost with their holder.",
                hint="Only Spark can compute them again: run the query again.",
            )
        if stage.is_consumed and not stage.spec.repeatable:
            raise _interrupted(stage.id, "and the old ones are in use")
        stage.election.forget(attempts)
        if not stage.spec.repeatable:
            self._roll_back_readers(stage)

    def _roll_back_readers(self, stage: _Stage) -> None:
        for reader in self._stages.values():
            # One that has launched nothing in its epoch has seen nothing, and so has nobody of it.
            if stage.number in reader.spec.inputs and reader.has_launched:
                self._actions += reader.roll_back()
                self._roll_back_readers(reader)


@dataclass
class _Attempt:
    """An attempt that runs. `known` are the outputs of its producers that were there when it was launched."""

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
        self.is_foreign = outputs is not None
        self.is_complete = False
        self.is_demanded = False
        self.is_consumed = False
        # Why it cannot begin again, once it cannot.
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
        """A new epoch: no task has a winner, and each has all its attempts before it."""
        self.id = id
        self.has_launched = False
        self.running: dict[int, _Attempt] = {}
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
        self.end(done.attempt)
        self.failed_on[done.attempt.task.task].clear()
        self.election.commit(done)
        self._remember(done, worker)

    def _remember(self, done: TaskDone, worker: str) -> None:
        outlives = all(block.outlives_worker for block in done.blocks)
        self._made[done.attempt] = _Made(worker, outlives)

    def maker(self, attempt: AttemptId) -> str | None:
        return self._made[attempt].worker if attempt in self._made else None

    def held_by(self, worker: str) -> set[AttemptId]:
        """The outputs that are gone if a worker is."""
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
        """Stop what is not needed, and say when everything is there."""
        enough = self.spec.output.enough_rows if self.spec.output else None
        if enough is not None and self.election.rows >= enough:
            self.election.skip_the_rest()
            for task in [task for task in self.running if not self.election.is_missing(task)]:
                yield Cancel(self.running.pop(task).id)
        if self.election.missing():
            return
        self.is_demanded = False
        if not self.is_complete:
            self.is_complete = True
            yield Completed(self.id, tuple(map(self.election.winner, range(self.tasks))))

    def roll_back(self) -> Iterator[Action]:
        """What it has read will be computed differently: begin again."""
        if self.pinned is not None:
            raise _interrupted(self.id, self.pinned)
        if self.id.epoch + 1 >= self._limit:
            raise QueryError(
                f"{self.id}: what it reads was lost and computed again {self.id.epoch + 1} times.",
                hint="Workers are lost faster than this query can run.",
            )
        yield from self.cancel_all()
        self._begin(replace(self.id, epoch=self.id.epoch + 1))
        yield RolledBack(self.id)

    def cancel_all(self) -> list[Action]:
        running, self.running = self.running, {}
        return [Cancel(attempt.id) for attempt in running.values()]


def _interrupted(stage: StageId, reason: str) -> ResultInterrupted:
    return ResultInterrupted(
        f"{stage}: exchanged data was lost that cannot be computed again with the same rows, {reason}.",
        hint="Run the query again.",
    )
