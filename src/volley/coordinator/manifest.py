# SPDX-License-Identifier: Apache-2.0
"""Which attempts count: of several at one task, the first that committed, for as long as its output is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from volley.errors import BlockMissing
from volley.ids import AttemptId, StageId, TaskId
from volley.rpc.messages import TaskDone
from volley.shuffle.base import Block
from volley.stages.layout import Read


@dataclass(frozen=True)
class Manifest:
    """The output of a stage at one moment; readers take what it names and nothing else.

    `outputs` are the blocks of each task by partition, None for a task without output. That is an error for whoever
    wants it, unless the task is in `unneeded`: the stage had enough rows without it.
    """

    stage: StageId
    outputs: tuple[tuple[Block, ...] | None, ...]
    unneeded: frozenset[int] = frozenset()

    def take(self, reads: Iterable[Read]) -> tuple[Block, ...]:
        """The blocks for these reads, in their order. BlockMissing if one of them has no output."""
        return tuple(blocks[read.partition] for read in reads if (blocks := self._of(read.producer)))

    @property
    def blocks(self) -> tuple[tuple[Block, ...], ...]:
        """All blocks by task and partition; an unneeded task has none. BlockMissing if a task has no output."""
        return tuple(self._of(task) for task in range(len(self.outputs)))

    def _of(self, task: int) -> tuple[Block, ...]:
        blocks = self.outputs[task]
        if blocks is None and task not in self.unneeded:
            raise BlockMissing(f"{TaskId(self.stage, task)} has no output that could be read.")
        return blocks or ()


class Election:
    """Collects the commits of a stage of `tasks` tasks."""

    def __init__(self, stage: StageId, tasks: int) -> None:
        self._stage = stage
        self._winners: list[TaskDone | None] = [None] * tasks
        self._unneeded: frozenset[int] = frozenset()

    def add_task(self) -> None:
        """One task more than there were."""
        self._winners.append(None)

    def commit(self, done: TaskDone) -> bool:
        """Whether this attempt is the one that counts. A later commit of the same task never is."""
        task = done.attempt.task
        if task.stage != self._stage:
            raise ValueError(f"{done.attempt} is not of stage {self._stage}")
        if self._winners[task.task] is not None:
            return False
        self._winners[task.task] = done
        return True

    def adopt(self, outputs: Sequence[TaskDone]) -> None:
        """Let outputs count, one for each task, that were made elsewhere."""
        self._winners = list(outputs)

    def winner(self, task: int) -> TaskDone | None:
        return self._winners[task]

    @property
    def winners(self) -> frozenset[AttemptId]:
        return frozenset(winner.attempt for winner in self._winners if winner is not None)

    def skip_the_rest(self) -> None:
        """The winners gave enough rows: the other tasks are not needed, as long as no winner is lost."""
        self._unneeded = frozenset(self.missing()) | self._unneeded

    def is_missing(self, task: int) -> bool:
        """Whether the task has no winner and needs one."""
        return self._winners[task] is None and task not in self._unneeded

    def missing(self) -> list[int]:
        """The tasks that have no winner and need one."""
        return [task for task in range(len(self._winners)) if self.is_missing(task)]

    def forget(self, attempts: Set[AttemptId]) -> bool:
        """Let these attempts no longer count, because their output is lost. Whether any of them did."""
        lost = [
            number for number, winner in enumerate(self._winners) if winner and winner.attempt in attempts
        ]
        for number in lost:
            self._winners[number] = None
        if lost:
            # What is left may not be enough rows.
            self._unneeded = frozenset()
        return bool(lost)

    @property
    def rows(self) -> int:
        return sum(winner.rows for winner in self._winners if winner is not None)

    @property
    def size_bytes(self) -> int:
        return sum(winner.size_bytes for winner in self._winners if winner is not None)

    def manifest(self) -> Manifest:
        outputs = tuple(None if winner is None else winner.blocks for winner in self._winners)
        return Manifest(self._stage, outputs, self._unneeded)
