# SPDX-License-Identifier: Apache-2.0
"""A cluster without processes: it drives the scheduler through events in any order, and knows each reader's input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
from volley.coordinator.schedule import Schedule
from volley.errors import QueryError
from volley.events import TaskMetrics
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.plan.nodes import Partitioning
from volley.rpc.messages import Failure, InputBlocks, TaskDone, TaskFailure
from volley.shuffle.base import Block
from volley.stages.graph import Output
from volley.stages.layout import Layout

QUERY = QueryId("q")


WORKERS = ("w0", "w1", "w2")


HASH = Output(Partitioning.HASH, 2)


def spec(
    number: int,
    tasks: int = 2,
    inputs: tuple[int, ...] = (),
    output: Output | None = HASH,
    repeatable: bool = True,
    whole: frozenset[int] = frozenset(),
) -> StageSpec:
    return StageSpec(number, tasks, output, repeatable, Layout(tasks, whole), inputs)


@dataclass(frozen=True)
class Plan:
    """Stages, the last of which gives the result. Those in `foreign` ran elsewhere, those in `growing` may grow.

    `holds`: the client takes no rows before the end, so the schedule is not told of rows on their way.
    """

    stages: tuple[StageSpec, ...]
    foreign: frozenset[int] = frozenset()
    growing: frozenset[int] = frozenset()
    attempts: int = 4
    holds: bool = False


_WEIGHTS = {
    "finish": 12,
    "miss": 5,
    "crash": 1,
    "deliver": 1,
    "late": 1,
    "restart": 2,
    "leave": 1,
    "join": 4,
    "damage": 4,
    "grow": 1,
    "read": 1,
}


Version = tuple[object, ...]
"""What an output is made of: two outputs with the same version have the same rows in the same partitions."""


@dataclass
class Cluster:
    """Runs what the schedule launches, in whatever order it is told, and checks everything that the schedule says."""

    plan: Plan
    schedule: Schedule = field(init=False)
    running: dict[AttemptId, tuple[Launch, str]] = field(default_factory=dict)
    cancelled: list[AttemptId] = field(default_factory=list)
    done: dict[AttemptId, TaskDone] = field(default_factory=dict)
    versions: dict[AttemptId, Version] = field(default_factory=dict)
    lineage: dict[AttemptId, frozenset[tuple[TaskId, Version]]] = field(default_factory=dict)
    gone: set[AttemptId] = field(default_factory=set)
    damaged: set[AttemptId] = field(default_factory=set)
    reported: set[AttemptId] = field(default_factory=set)
    present: set[str] = field(default_factory=lambda: set(WORKERS))
    completed: dict[int, Completed] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)
    epochs: dict[int, int] = field(default_factory=dict)
    tasks: dict[int, int] = field(default_factory=dict)
    delivered: set[AttemptId] = field(default_factory=set)
    pinned: list[frozenset[tuple[TaskId, Version]]] = field(default_factory=list)
    error: QueryError | None = None
    is_closed: bool = False
    launches: int = 0

    def __post_init__(self) -> None:
        self.schedule = Schedule(QUERY, self.plan.attempts)
        self.tasks = {stage.number: stage.tasks for stage in self.plan.stages}
        self._begin_ready()

    @property
    def is_over(self) -> bool:
        return self.is_closed or self.error is not None or self.result in self.completed

    @property
    def result(self) -> int:
        return self.plan.stages[-1].number

    # ------------------------------------------------------------------------------------ what can happen

    def choose(self, choice: int) -> tuple[str, object]:
        """One of the things that could happen next."""
        possible = {name: items for name, items in self.possible().items() if items}
        # What happens without faults is likely, so that many runs come to their end.
        names = [name for name in possible for _ in range(_WEIGHTS[name])]
        name = names[choice % len(names)]
        items = possible[name]
        return name, items[choice // len(names) % len(items)]

    def possible(self) -> dict[str, Sequence[object]]:
        readable = {attempt for attempt, (launch, _) in self.running.items() if not self.unreadable(launch)}
        placed = {attempt for attempt, (_, worker) in self.running.items() if worker in self.present}
        here = [worker for worker in WORKERS if worker in self.present]
        return {
            "finish": [attempt for attempt in self.running if attempt in readable & placed],
            "miss": [attempt for attempt in self.running if attempt not in readable],
            "crash": list(self.running),
            "deliver": [
                attempt
                for attempt in self.running
                if attempt.task.stage.stage == self.result and not self.plan.holds
            ],
            "late": self.cancelled[-2:],
            "restart": here,
            "leave": here[1:],
            "join": [worker for worker in WORKERS if worker not in self.present],
            "damage": [attempt for attempt in self.done if attempt not in self.gone],
            "grow": [
                number
                for number in sorted((self.begun & self.plan.growing) - self.completed.keys())
                if self.tasks[number] < 4
            ],
            "read": sorted(self.completed.keys() - {self.result}),
        }

    def step(self, name: str, what: object) -> None:
        match name, what:
            case "finish", AttemptId() as attempt:
                self.finish(attempt)
            case "miss", AttemptId() as attempt:
                self.miss(attempt)
            case "crash", AttemptId() as attempt:
                self.crash(attempt)
            case "deliver", AttemptId() as attempt:
                self.delivered.add(attempt)
                self.perform(self.schedule.deliver(attempt))
            case "late", AttemptId() as attempt:
                # Cancelled, and done before it noticed.
                self.perform(self.schedule.finish(self.output_of(attempt), "w0"))
            case "restart", str() as worker:
                self.lose(worker)
            case "leave", str() as worker:
                self.present.discard(worker)
                self.lose(worker)
            case "join", str() as worker:
                self.present.add(worker)
            case "damage", AttemptId() as attempt:
                self.gone.add(attempt)
                self.damaged.add(attempt)
            case "grow", int() as number:
                self.tasks[number] += 1
                self.perform(self.schedule.add_task(number))
            case "read", int() as number:
                self.read(number)
            case _:
                raise AssertionError(name)

    def finish(self, attempt: AttemptId) -> None:
        launch, worker = self.running.pop(attempt)
        done = self.output_of(attempt)
        stage = self.plan.stages[attempt.task.stage.stage]
        read = [block.attempt for input in launch.inputs for block in input.blocks]
        made_of = tuple((block, self.versions[block]) for block in sorted(set(read)))
        tasks = tuple((block.task.stage.stage, block.task.task, version) for block, version in made_of)
        task = (attempt.task.stage.stage, attempt.task.task)
        self.versions[attempt] = (task, tasks) if stage.repeatable else (task, tasks, attempt)
        self.lineage[attempt] = frozenset[tuple[TaskId, Version]]().union(
            {(TaskId(StageId(QUERY, task[0]), task[1]), self.versions[attempt])},
            *(self.lineage[block] for block in read),
        )
        self.done[attempt] = done
        self.perform(self.schedule.finish(done, worker))

    def output_of(self, attempt: AttemptId) -> TaskDone:
        stage = self.plan.stages[attempt.task.stage.stage]
        partitions = stage.output.partitions if stage.output else 0
        # How many rows a task of a LIMIT finds differs from task to task and from attempt to attempt.
        rows = (attempt.task.task + attempt.attempt + attempt.task.stage.epoch) % 3
        blocks = tuple(Block(attempt, partition, "here", rows, 8) for partition in range(partitions))
        return TaskDone(attempt, blocks, TaskMetrics(rows, 8, 0.0))

    def miss(self, attempt: AttemptId) -> None:
        """An attempt finds an output gone."""
        launch, worker = self.running.pop(attempt)
        lost = self.unreadable(launch)[0]
        self.reported.add(lost)
        failure = TaskFailure(
            attempt, Failure.LOST_INPUT, "MISSING", "gone", lost, damaged=lost in self.damaged
        )
        self.perform(self.schedule.fail(failure, worker, frozenset(self.present)))

    def crash(self, attempt: AttemptId) -> None:
        _, worker = self.running.pop(attempt)
        failure = TaskFailure(attempt, Failure.WORKER, "CRASHED", "gone")
        self.perform(self.schedule.fail(failure, worker, frozenset(self.present)))

    def lose(self, worker: str) -> None:
        """A worker starts anew or leaves: what it held is gone, and what it ran fails."""
        self.gone |= {attempt for attempt in self.done if self.holder(attempt) == worker}
        for attempt in [attempt for attempt, (_, place) in self.running.items() if place == worker]:
            if attempt in self.running and not self.is_over:
                self.crash(attempt)

    def read(self, number: int) -> None:
        """The coordinator itself reads what a stage gave, as it does with a subquery, and keeps to that."""
        self.perform(self.schedule.demand(number))
        if self.error is not None or not self.schedule.has_all_outputs(number):
            return
        attempts = {block.attempt for blocks in self.schedule.manifest(number).blocks for block in blocks}
        if missing := attempts & self.gone:
            self.reported |= missing
            self.perform(self.schedule.lose(number, missing, frozenset(self.present)))
            return
        self.perform(self.schedule.consume(number))
        if number not in self.plan.foreign:
            self.pinned += [self.lineage[attempt] for attempt in attempts]

    def holder(self, attempt: AttemptId) -> str:
        return WORKERS[(attempt.task.task + attempt.attempt) % 2]

    def unreadable(self, launch: Launch) -> list[AttemptId]:
        read = (block.attempt for input in launch.inputs for block in input.blocks)
        return [attempt for attempt in dict.fromkeys(read) if attempt in self.gone]

    # ---------------------------------------------------------------------------------- what the schedule says

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Launch():
                    self.launch(action)
                case Cancel(attempt):
                    assert attempt in self.running
                    del self.running[attempt]
                    self.cancelled.append(attempt)
                case Completed(stage):
                    assert stage.stage not in self.completed
                    self.completed[stage.stage] = action
                    if stage.stage == self.result:
                        self.check_result(action)
                case RolledBack(stage):
                    assert stage.epoch == self.epochs.get(stage.stage, 0) + 1
                    self.epochs[stage.stage] = stage.epoch
                    assert not [id for id in self.running if id.task.stage.stage == stage.stage]
                case AttemptFailed():
                    pass
                case Failed(error):
                    assert self.error is None
                    self.error = error
                    assert not self.running
        if not self.is_over:
            self._begin_ready()

    def _begin_ready(self) -> None:
        for stage in self.plan.stages:
            if stage.number in self.begun or not self.completed.keys() >= set(stage.inputs):
                continue
            self.begun.add(stage.number)
            if stage.number in self.plan.foreign:
                outputs = [self.foreign_output(stage, task) for task in range(stage.tasks)]
                self.perform(self.schedule.add(stage, outputs))
            else:
                self.perform(self.schedule.begin(stage))
            return

    def foreign_output(self, stage: StageSpec, task: int) -> TaskDone:
        attempt = AttemptId(TaskId(StageId(QueryId("spark"), stage.number), task), 0)
        assert stage.output is not None
        blocks = tuple(
            Block(attempt, partition, "here", 1, 8) for partition in range(stage.output.partitions)
        )
        self.done[attempt] = TaskDone(attempt, blocks, TaskMetrics(1, 8, 0.0), self.holder(attempt))
        self.versions[attempt] = ("spark", stage.number, task)
        self.lineage[attempt] = frozenset()
        return self.done[attempt]

    def launch(self, launch: Launch) -> None:
        attempt = launch.attempt
        stage = self.plan.stages[attempt.task.stage.stage]
        assert attempt.task.stage.epoch == self.epochs.get(stage.number, 0)
        assert attempt not in self.done
        assert attempt not in self.cancelled
        assert not [id for id in self.running if id.task == attempt.task]
        assert not self.is_over
        assert tuple(input.stage for input in launch.inputs) == stage.inputs
        for input in launch.inputs:
            self.check_input(stage, attempt.task.task, input)
        self.running[attempt] = launch, self.holder(attempt)
        self.launches += 1

    def check_input(self, reader: StageSpec, task: int, input: InputBlocks) -> None:
        """Exactly one block of every output that is wanted, of an attempt that counts."""
        producer = self.plan.stages[input.stage]
        assert producer.output is not None
        wanted = reader.layout.reads(input.stage, producer.output, self.tasks[input.stage], task)
        by_place = {(block.attempt.task.task, block.partition): block for block in input.blocks}
        assert len(by_place) == len(input.blocks)
        places = [(read.producer, read.partition) for read in wanted]
        assert [place for place in places if place in by_place] == list(by_place)
        skipped = {read.producer for read in wanted if (read.producer, read.partition) not in by_place}
        if skipped:
            enough = producer.output.enough_rows
            assert enough is not None, f"{reader.number}/{task} runs without {input.stage}: {skipped}"
            assert sum(block.rows for block in input.blocks) >= enough
        for block in input.blocks:
            assert block.attempt in self.done
            assert block.attempt not in self.reported
            if input.stage not in self.plan.foreign:
                assert block.attempt.task.stage == StageId(
                    QUERY, input.stage, self.epochs.get(input.stage, 0)
                )

    def check_result(self, completed: Completed) -> None:
        winners = [done.attempt for done in completed.outputs if done is not None]
        # A client that holds the rows of all attempts keeps those of these.
        assert [attempt for attempt in completed.launched if attempt is not None] == winners
        assert len(winners) == self.tasks[self.result]
        # What the client has taken of an attempt that does not count would be rows that it has twice.
        assert self.delivered <= set(winners)
        seen: dict[TaskId, Version] = {}
        for lineage in [*(self.lineage[attempt] for attempt in winners), *self.pinned]:
            for task, version in lineage:
                assert seen.setdefault(task, version) == version, f"two versions of {task}"


def drive(plan: Plan, choices: list[int], close_at: int | None = None) -> Cluster:
    """Let things happen as chosen, then let all faults end: the query must end too."""
    cluster = Cluster(plan)
    for number, choice in enumerate(choices):
        if cluster.is_over:
            break
        if number == close_at:
            cluster.is_closed = True
            cluster.perform(cluster.schedule.close())
            assert not cluster.running
            assert cluster.schedule.close() == []
            return cluster
        cluster.step(*cluster.choose(choice))
    cluster.present |= set(WORKERS)
    for _ in range(10_000):
        if cluster.is_over:
            return cluster
        assert cluster.running, "nothing runs, and the query is not over"
        attempt, (launch, _) = next(iter(cluster.running.items()))
        cluster.step("miss" if cluster.unreadable(launch) else "finish", attempt)
    raise AssertionError("the query does not end")
