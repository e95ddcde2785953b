# SPDX-License-Identifier: Apache-2.0
"""Cached frames in the stores of workers in other processes: computed there once, and read by later queries.

    fill plan  -->  stages  -->  blocks in the workers' stores, until the frame is dropped
    scan       -->  an input of those blocks, under the ids of the scan

The stores keep blocks in memory while there is room, and on disk otherwise. A frame with blocks of a lost worker is
computed again by the next query that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import partial

from volley.bridge.frame_scans import CachedFrames, FrameFill
from volley.coordinator.manifest import Manifest
from volley.coordinator.materialized_result import MaterializedResult
from volley.frame_cache.store import FrameLabel, frame_cache
from volley.plan.expressions import Alias
from volley.plan.nodes import CachedRows, MaterializedInput, Node, Project
from volley.rpc.messages import TaskDone

# Rows of Spark are numbered from zero, and sent frames from a million.
_FIRST_NUMBER = 2_000_000

Materialize = Callable[[Node], tuple[MaterializedResult, Manifest]]
"""Runs a plan whose rows stay in the stores as long as the result exists."""


@dataclass(frozen=True, eq=False)
class RemoteFrame:
    """`result` keeps the blocks of `outputs`: they are freed with the last reference to it."""

    fill: FrameFill
    label: FrameLabel
    partitions: int
    outputs: tuple[TaskDone, ...]
    result: MaterializedResult

    @property
    def rows(self) -> int:
        return sum(done.rows for done in self.outputs)

    @property
    def memory_bytes(self) -> int:
        return sum(done.size_bytes for done in self.outputs) - self.disk_bytes

    @property
    def disk_bytes(self) -> int:
        # What is spilled may be compressed.
        spilled = (block for done in self.outputs for block in done.blocks if block.spilled_bytes)
        return sum(block.size_bytes for block in spilled)

    def is_lost(self, holders: Set[str]) -> bool:
        """Whether a block cannot be read any more. `holders` are the workers whose blocks can be."""
        return any(
            done.made_by not in holders and not all(block.outlives_worker for block in done.blocks)
            for done in self.outputs
        )


class RemoteFrames:
    """The stored frames of one query. They are `held` until it ends.

    `budget_bytes` limits the memory that all frames take in the stores; None: the stores have limits of their own.
    """

    def __init__(
        self,
        frames: CachedFrames,
        materialize: Materialize,
        holders: Callable[[], Set[str]],
        budget_bytes: int | None,
    ) -> None:
        self.outputs: dict[int, tuple[TaskDone, ...]] = {}
        """What plans read, by the numbers of the `MaterializedInput`."""
        self._frames = frames
        self._materialize = materialize
        self._holders = holders
        self._budget_bytes = budget_bytes
        self._numbers: dict[RemoteFrame, int] = {}

    def can_store(self, node: CachedRows) -> bool:
        """Whether the frame of a scan is one of those that workers keep."""
        if node.frame in self._frames.stored:
            return True
        fill = self._frames.fills.get(node.frame)
        return node.frame not in self._frames.held and fill is not None and fill.is_storable

    def read(self, node: CachedRows, label: Callable[[FrameFill], FrameLabel]) -> Node:
        """A plan that reads the scan's columns from the stores. Computes the frame if it is not there."""
        stored = self._frames.stored.get(node.frame)
        if isinstance(stored, RemoteFrame) and not stored.is_lost(self._holders()):
            frame_cache().count_hit(node.frame)
        else:
            fill = self._frames.fills[node.frame] if stored is None else stored.fill
            stored = self._frames.stored[node.frame] = self._fill(node.frame, fill, label)
        number = self._numbers.setdefault(stored, _FIRST_NUMBER + len(self._numbers))
        self.outputs[number] = stored.outputs
        columns = stored.fill.output
        rows = MaterializedInput(number, len(stored.outputs), stored.partitions, columns)
        return Project(
            tuple(
                Alias(new.id, new.name, columns[place])
                for new, place in zip(node.output, node.columns, strict=True)
            ),
            rows,
        )

    def forget(self) -> bool:
        """A block could not be read: compute the frames of this query again. False if it reads none."""
        lost, self._frames.stored = self._frames.stored, {}
        for frame, stored in lost.items():
            frame_cache().forget_stored(frame, stored)
            self._frames.fills[frame] = stored.fill
        return bool(lost)

    def close(self) -> None:
        """Release the frames of this query. Idempotent."""
        self._numbers.clear()

    def _fill(self, frame: str, fill: FrameFill, label: Callable[[FrameFill], FrameLabel]) -> RemoteFrame:
        cache = frame_cache()
        found = cache.stored(frame)
        if isinstance(found, RemoteFrame) and found.is_lost(self._holders()):
            cache.forget_stored(frame, found)
        stored = cache.fill_stored(frame, partial(self._compute, fill, label), self._budget_bytes)
        assert isinstance(stored, RemoteFrame)
        return stored

    def _compute(self, fill: FrameFill, label: Callable[[FrameFill], FrameLabel]) -> tuple[RemoteFrame, bool]:
        assert fill.plan is not None, "only frames with a native plan are stored"
        result, manifest = self._materialize(fill.plan)
        partitions = max((len(done.blocks) for done in manifest.winners), default=1)
        stored = RemoteFrame(fill, label(fill), partitions, manifest.winners, result)
        # Its storage level allows memory only, and there is too little: only this query reads the rows.
        return stored, fill.frame.disk or not stored.disk_bytes
