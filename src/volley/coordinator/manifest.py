# SPDX-License-Identifier: Apache-2.0
"""Which attempt of a task counts: the first that committed, as long as its output exists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace

from volley.errors import BlockMissing
from volley.ids import AttemptId, StageId, TaskId
from volley.rpc.messages import TaskDone
from volley.shuffle.base import Block
from volley.stages.layout import Read


@dataclass(frozen=True)
class Manifest:
    """The output of a stage at one moment. Readers read the blocks that it names and nothing else.

    `outputs` are the blocks of each task by partition, None for a task without output. Reading such a task is an error
    unless it is in `unneeded`: the stage had enough rows without it. `winners` are the attempts that wrote them, each
    with the worker that holds its blocks in `made_by`.
    """

    stage: StageId
    outputs: tuple[tuple[Block, ...] | None, ...]
    unneeded: frozenset[int] = frozenset()
    winners: tuple[TaskDone, ...] = ()

    def take(self, reads: Iterable[Read]) -> tuple[Block, ...]:
        """The blocks for these reads, in order. Raises BlockMissing if one of them has no output."""
        return tuple(blocks[read.partition] for read in reads if (blocks := self._blocks_of(read.producer)))

    @property
    def blocks(self) -> tuple[tuple[Block, ...], ...]:
        """All blocks by task and partition; an unneeded task has none. Raises BlockMissing if an output is missing."""
        return tuple(self._blocks_of(task) for task in range(len(self.outputs)))

    def _blocks_of(self, task: int) -> tuple[Block, ...]:
        blocks = self.outputs[task]
        if blocks is None and task not in self.unneeded:
            raise BlockMissing(f"{TaskId(self.stage, task)} has no readable output.")
        return blocks or ()


class Election:
    """Collects the commits of a stage of `tasks` tasks."""

    def __init__(self, stage: StageId, tasks: int) -> None:
        self._stage = stage
        self._winners: list[TaskDone | None] = [None] * tasks
        self._unneeded: frozenset[int] = frozenset()

    def add_task(self) -> None:
        """Add one task to the stage."""
        self._winners.append(None)

    def commit(self, done: TaskDone) -> bool:
        """Register a commit. False if the task already has a winner: only the first commit counts."""
        task = done.attempt.task
        if task.stage != self._stage:
            raise ValueError(f"{done.attempt} does not belong to stage {self._stage}")
        if self._winners[task.task] is not None:
            return False
        self._winners[task.task] = done
        return True

    def adopt(self, outputs: Sequence[TaskDone]) -> None:
        """Accept outputs, one per task, that were computed elsewhere."""
        self._winners = list(outputs)

    def winner(self, task: int) -> TaskDone | None:
        return self._winners[task]

    @property
    def winners(self) -> frozenset[AttemptId]:
        return frozenset(winner.attempt for winner in self._winners if winner is not None)

    def skip_rest(self) -> None:
        """The winners gave enough rows: the other tasks are unneeded as long as no winner is lost."""
        self._unneeded = frozenset(self.missing()) | self._unneeded

    def is_missing(self, task: int) -> bool:
        """Whether the task has no winner and needs one."""
        return self._winners[task] is None and task not in self._unneeded

    def missing(self) -> list[int]:
        """The tasks that have no winner and need one."""
        return [task for task in range(len(self._winners)) if self.is_missing(task)]

    def forget(self, attempts: Set[AttemptId]) -> bool:
        """Drop these attempts, whose output is lost. Returns whether any of them was a winner."""
        lost = [
            number for number, winner in enumerate(self._winners) if winner and winner.attempt in attempts
        ]
        for number in lost:
            self._winners[number] = None
        if lost:
            # The remaining winners may not have enough rows.
            self._unneeded = frozenset()
        return bool(lost)

    @property
    def rows(self) -> int:
        return sum(winner.rows for winner in self._winners if winner is not None)

    @property
    def size_bytes(self) -> int:
        return sum(winner.size_bytes for winner in self._winners if winner is not None)

    def manifest(self, holder_of: Callable[[AttemptId], str | None] = lambda attempt: None) -> Manifest:
        """The output as it is now. `holder_of` tells who holds what an attempt wrote, if the attempt does not."""
        outputs = tuple(None if winner is None else winner.blocks for winner in self._winners)
        winners = (
            replace(winner, made_by=winner.made_by or holder_of(winner.attempt) or "")
            for winner in self._winners
            if winner is not None
        )
        return Manifest(self._stage, outputs, self._unneeded, tuple(winners))
