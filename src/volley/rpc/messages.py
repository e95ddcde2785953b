# SPDX-License-Identifier: Apache-2.0
"""What crosses the wire: plain data with a version, and the attempt that it belongs to in every message."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from volley.events import TaskMetrics
from volley.fields import Count, Name
from volley.ids import AttemptId
from volley.plan.nodes import Node
from volley.rpc.blocks import Block
from volley.stages.graph import Output

PROTOCOL_VERSION = 1


@dataclass(frozen=True)
class WorkerInfo:
    """What a worker says of itself. `slots` is how many tasks of one query it runs at a time."""

    name: Name
    cores: Count
    slots: Count
    engine_version: str
    protocol_version: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class InputBlocks:
    """The blocks that an attempt reads as stage `stage`, in the producers' order."""

    stage: Count
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class SplitRequest:
    """An attempt has room for `credits` splits of feed `feed`, behind place `after` of what it was given.

    It asks one thing at a time of each feed; 0 is the beginning, to which it may go back. `read` splits it has read to
    their end. `host` is where it runs, if that is not where it was placed.
    """

    attempt: AttemptId
    feed: Count
    after: Count
    credits: Count
    read: Count = 0
    host: Name = ""


@dataclass(frozen=True)
class SplitBatch:
    """The answer to a `SplitRequest`: what stands from place `since`, where it asked, up to place `after`.

    `over`: there are no more for this task.
    """

    attempt: AttemptId
    feed: Count
    since: Count
    splits: tuple[bytes, ...]
    after: Count
    over: bool


@dataclass(frozen=True)
class TaskSpec:
    """Everything that an attempt needs. `output` is None for a task whose batches go to the client.

    `driver` is the address at which the attempt's worker asks for splits, where nobody comes to ask what it wants."""

    attempt: AttemptId
    plan: Node
    output: Output | None
    ordered: bool
    inputs: tuple[InputBlocks, ...]
    driver: Name = ""
    protocol_version: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class TaskDone:
    """The attempt has committed. `blocks` is empty for a result task.

    `made_by` is the worker that ran it and holds its blocks, where that is not the one that it was placed on.
    """

    attempt: AttemptId
    blocks: tuple[Block, ...]
    metrics: TaskMetrics
    made_by: Name = ""

    @property
    def rows(self) -> int:
        return self.metrics.rows

    @property
    def size_bytes(self) -> int:
        return self.metrics.size_bytes


class Failure(StrEnum):
    """What went wrong, as far as it matters to who decides what next."""

    DATA = "the data or an input file"
    INTERNAL = "a defect"
    MEMORY = "the memory of operators"
    LOST_INPUT = "missing exchanged data"
    WORKER = "the worker or its surroundings"
    CANCELLED = "cancelled"

    @property
    def may_pass(self) -> bool:
        """Whether another attempt may succeed; the others would fail again in the same way.

        Input that is lost is computed again first.
        """
        return self in (Failure.WORKER, Failure.LOST_INPUT)


@dataclass(frozen=True)
class TaskFailure:
    """The attempt is over and has left nothing behind. `code` and `message` are those of the cause.

    `lost` is the attempt whose output was not to be had, where that is the cause; `damaged` when it was there but
    not what was written, so that nothing follows for what else its worker holds.
    """

    attempt: AttemptId
    failure: Failure
    code: Name
    message: str
    lost: AttemptId | None = None
    damaged: bool = False
