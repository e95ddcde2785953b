# SPDX-License-Identifier: Apache-2.0
"""The messages about tasks. Each carries the attempt that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass

from volley.events import TaskMetrics
from volley.field_types import Count, Name, Text
from volley.ids import AttemptId
from volley.plan.nodes import Node
from volley.python_versions import StrEnum
from volley.rpc.blocks import Block
from volley.stages.graph import Output
from volley.storage.settings import StoreSettings

PROTOCOL_VERSION = 1


@dataclass(frozen=True)
class WorkerInfo:
    """A worker as it describes itself. `slots` is how many tasks of one query it runs at a time.

    `runs_python`: its owner lets it run Python functions. `jvm` are the versions of Spark and Java with which it
    evaluates expressions; if it does not, `no_jvm` says why.
    """

    name: Name
    cores: Count
    slots: Count
    engine_version: Name
    protocol_version: Count = PROTOCOL_VERSION
    runs_python: bool = False
    jvm: Name = ""
    no_jvm: Text = ""


@dataclass(frozen=True)
class InputBlocks:
    """The blocks of stage `stage` that an attempt reads, in the producers' order."""

    stage: Count
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class SplitRequest:
    """An attempt asks for up to `credits` splits of feed `feed`, after position `after` of its task's ledger.

    It has one request per feed in flight. Position 0 is the beginning, to which an attempt may return. `read` counts
    the splits that it has finished reading. `host` is where it runs, if that is not where it was placed.
    """

    attempt: AttemptId
    feed: Count
    after: Count
    credits: Count
    read: Count = 0
    host: Name = ""


@dataclass(frozen=True)
class SplitBatch:
    """The answer to a `SplitRequest`: the splits of the ledger from position `since` (the request's) to `after`.

    `over`: this task gets no more splits.
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

    `driver` is the address from which the worker must pull splits, if no driver watches it. `trace` is the
    W3C `traceparent` for its spans; empty for none. `settings` are the session's options for workers, which apply them
    within the limits of their owner. `stores` are the object stores of the query's files, with their credentials.
    `sorts_joins`: a join that does not fit into memory is run again with sorted inputs, which spill; otherwise the
    attempt fails."""

    attempt: AttemptId
    plan: Node
    output: Output | None
    ordered: bool
    inputs: tuple[InputBlocks, ...]
    driver: Name = ""
    trace: Name = ""
    settings: tuple[tuple[Name, Text], ...] = ()
    sorts_joins: bool = True
    stores: tuple[StoreSettings, ...] = ()
    protocol_version: Count = PROTOCOL_VERSION


@dataclass(frozen=True)
class TaskDone:
    """The attempt committed. `blocks` is empty for a result task.

    `made_by` is the worker that ran it and holds its blocks, if that is not the one on which it was placed.
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


@dataclass(frozen=True)
class KeptOutputs:
    """The complete output of a stage that is kept in a checkpoint, by task. `key` is that of the stage."""

    key: Name
    outputs: tuple[TaskDone, ...]


class Failure(StrEnum):
    """The kind of a failure, as far as it matters for the decision to retry."""

    DATA = "the data or an input file"
    INTERNAL = "a defect"
    MEMORY = "the memory of operators"
    LOST_INPUT = "missing exchanged data"
    WORKER = "the worker or its surroundings"
    CANCELLED = "cancelled"

    @property
    def may_pass(self) -> bool:
        """Whether a retry may succeed. All other failures would happen again.

        Lost input is recomputed before the retry.
        """
        return self in (Failure.WORKER, Failure.LOST_INPUT)


@dataclass(frozen=True)
class TaskFailure:
    """The attempt failed and left nothing behind. `code` and `message` are those of the cause.

    `lost` is the attempt whose output could not be read, if that is the cause. `damaged`: the output was there but
    corrupt, which says nothing about the other blocks of its worker.
    """

    attempt: AttemptId
    failure: Failure
    code: Name
    message: str
    lost: AttemptId | None = None
    damaged: bool = False
