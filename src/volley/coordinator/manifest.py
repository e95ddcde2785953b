# SPDX-License-Identifier: Apache-2.0
"""Which attempts count: of several at one task, the first that committed, for as long as its output is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from volley.ids import AttemptId, StageId
from volley.rpc.messages import TaskDone
from volley.shuffle.base import Block
from volley.stages.layout import Read


@dataclass(frozen=True)
class Manifest:
    """The output of a finished stage; readers take what it names and nothing else.

    `blocks` are by task and partition. A task that was stopped because the stage had rows enough has none.
    """

    stage: StageId
    blocks: tuple[tuple[Block, ...], ...]

    def take(self, reads: Iterable[Read]) -> tuple[Block, ...]:
        """The blocks for these reads, in their order."""
        return tuple(
            self.blocks[read.producer][read.partition] for read in reads if self.blocks[read.producer]
        )


class Election:
    """Collects the commits of a stage of `tasks` tasks."""

    def __init__(self, stage: StageId, tasks: int) -> None:
        self._stage = stage
        self._winners: list[TaskDone | None] = [None] * tasks

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

    def winner(self, task: int) -> TaskDone | None:
        return self._winners[task]

    def missing(self) -> list[int]:
        """The tasks without a winner."""
        return [number for number, winner in enumerate(self._winners) if winner is None]

    def forget(self, attempts: Set[AttemptId]) -> bool:
        """Let these attempts no longer count, because their output is lost. Whether any of them did."""
        lost = [
            number for number, winner in enumerate(self._winners) if winner and winner.attempt in attempts
        ]
        for number in lost:
            self._winners[number] = None
        return bool(lost)

    @property
    def rows(self) -> int:
        return sum(winner.rows for winner in self._winners if winner is not None)

    @property
    def size_bytes(self) -> int:
        return sum(winner.size_bytes for winner in self._winners if winner is not None)

    def manifest(self) -> Manifest:
        return Manifest(
            self._stage, tuple(() if winner is None else winner.blocks for winner in self._winners)
        )


class Given(Election):
    """The outputs of a stage that nobody here has run; they are there from the beginning."""

    def __init__(self, stage: StageId, outputs: Sequence[TaskDone]) -> None:
        super().__init__(stage, len(outputs))
        self._winners = list(outputs)
