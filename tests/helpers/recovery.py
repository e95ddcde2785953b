# SPDX-License-Identifier: Apache-2.0
"""Plans of a few stages, and runs of them in which outputs are gone by the time they are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from volley.coordinator.options import RunOptions
from volley.coordinator.run import execute
from volley.errors import BlockDamaged, BlockMissing
from volley.events import (
    EventLog,
    TaskFinished,
)
from volley.ids import AttemptId
from volley.plan.expressions import Attribute
from volley.plan.nodes import (
    Aggregate,
    Exchange,
    Node,
    Partitioning,
    Range,
)
from volley.plan.types import LONG
from volley.shuffle.base import Block
from volley.shuffle.config import RetryPolicy
from volley.shuffle.memory import MemoryStore
from volley.shuffle.object_store import ObjectStore
from volley.stages.cut import cut
from volley.stages.limits import PlannerLimits
from volley.testing.limits import UNMERGED
from volley.testing.shuffle_configs import shuffle_config
from volley.transport.local import LocalTransport

NUMBER = Attribute(1, "n", LONG, False)
WORKERS = 3


@dataclass
class Losses:
    """Which outputs are gone when they are read: those of `stage`, up to `count` times, each attempt once."""

    stage: int
    count: int
    damaged: bool = False
    lost: list[AttemptId] = field(default_factory=list)

    def strike(self, block: Block) -> None:
        if block.attempt.task.stage.stage != self.stage or block.attempt in self.lost:
            return
        if len(self.lost) < self.count:
            self.lost.append(block.attempt)
            kind = BlockDamaged if self.damaged else BlockMissing
            raise kind(f"{block} is gone.", attempt=block.attempt)


class LossyStore(MemoryStore):
    """A real store in which some outputs are gone by the time they are read."""

    def __init__(self, location: str, losses: Losses) -> None:
        super().__init__(location)
        self._losses = losses

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        self._losses.strike(block)
        return super().read(block)


def numbers(count: int) -> Node:
    return Range(0, count, 1, (NUMBER,))


def exchanged(partitioning: Partitioning, child: Node) -> Node:
    partitions = 1 if partitioning is Partitioning.SINGLE else WORKERS
    keys = (NUMBER,) if partitioning is Partitioning.HASH else ()
    return Exchange(partitioning, partitions, keys, (), child)


def three_stages(first: Partitioning = Partitioning.HASH, child: Node | None = None) -> Node:
    distinct = Aggregate((NUMBER,), (), (), (NUMBER,), exchanged(first, child or numbers(3000)))
    return exchanged(Partitioning.SINGLE, distinct)


def run(
    plan: Node,
    losses: Losses,
    attempts: int = 3,
    workers: int = WORKERS,
    limits: PlannerLimits = UNMERGED,
    deferred: Mapping[int, frozenset[int]] | None = None,
) -> tuple[list[int], EventLog]:
    transport = LocalTransport(workers, 3, lambda location: LossyStore(location, losses))
    log = EventLog()
    stream = execute(
        cut(plan, WORKERS, limits),
        transport,
        RunOptions(timeout_seconds=60, attempts=attempts, events=log, limits=limits, deferred=deferred),
    )
    rows = [value for batch in stream for value in batch.column(0).to_pylist()]
    assert transport.held_bytes == 0
    return sorted(rows), log


class LossyFolder(ObjectStore):
    """The same, of a store beside the workers."""

    def __init__(self, directory: Path, losses: Losses) -> None:
        config = shuffle_config(store=f"file://{directory}", retry=RetryPolicy(0, 0, 5.0))
        super().__init__(config, memory_limit_bytes=2**26)
        self._losses = losses

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        for block in blocks:
            self._losses.strike(block)
        return super().read_many(blocks)


def finished(log: EventLog) -> Counter[tuple[int, int]]:
    """How often each task gave an output."""
    done = (event.attempt.task for event in log.events if isinstance(event, TaskFinished))
    return Counter((task.stage.stage, task.task) for task in done)
