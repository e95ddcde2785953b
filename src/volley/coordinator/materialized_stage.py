# SPDX-License-Identifier: Apache-2.0
"""A stage that has run elsewhere: its outputs wait in the stores, and nobody here can compute them again."""

from __future__ import annotations

from collections.abc import Sequence, Set

from volley.coordinator.launch import Launcher
from volley.coordinator.manifest import Given
from volley.coordinator.stage import StageRun
from volley.errors import BlockMissing
from volley.events import EventLog, StageFinished, StageStarted
from volley.ids import AttemptId, StageId
from volley.rpc.messages import TaskDone
from volley.stages.graph import Stage
from volley.stages.limits import PlannerLimits


class MaterializedStage(StageRun):
    """`outputs` are finished; what is lost of them ends the query with `BlockMissing`."""

    def __init__(
        self,
        stage: Stage,
        id: StageId,
        outputs: Sequence[TaskDone],
        launcher: Launcher,
        events: EventLog,
        limits: PlannerLimits,
    ) -> None:
        super().__init__(stage, id, {}, launcher, events, attempts_limit=1, limits=limits)
        self._election = Given(id, outputs)
        for output in outputs:
            self._made_by[output.attempt] = output.made_by
            if all(block.outlives_worker for block in output.blocks):
                self._outlive.add(output.attempt)

    async def run(self) -> None:
        tasks = self.stage.tasks
        self._events.record(StageStarted(self._id, tasks, tasks, ("it was run by Spark",), 0))
        self._events.record(StageFinished(self._id, self._election.rows, self._election.size_bytes, 0.0))
        self.finished.set()

    def made(self, attempt: AttemptId) -> bool:
        return attempt in self._made_by

    def lose(
        self,
        attempts: Set[AttemptId] = frozenset(),
        worker: str | None = None,
        known: Set[AttemptId] = frozenset(),
    ) -> None:
        lost = self._lost(attempts, worker, known)
        if lost:
            raise BlockMissing(
                f"{self._id}: rows that Spark had handed over are lost with their holder.",
                hint="Only Spark can compute them again: run the query again.",
            )
