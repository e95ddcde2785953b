# SPDX-License-Identifier: Apache-2.0
"""What the schedule is told about a stage, and the actions with which it answers events."""

from __future__ import annotations

from dataclasses import dataclass

from volley.errors import QueryError
from volley.ids import AttemptId, StageId
from volley.rpc.messages import InputBlocks, TaskDone, TaskFailure
from volley.stages.graph import Output
from volley.stages.layout import Layout


@dataclass(frozen=True)
class Launch:
    """Start an attempt. `inputs` is everything that it reads; workers in `avoid` already failed this task."""

    attempt: AttemptId
    inputs: tuple[InputBlocks, ...]
    avoid: frozenset[str]


@dataclass(frozen=True)
class Cancel:
    """Stop an attempt: its output no longer counts."""

    attempt: AttemptId


@dataclass(frozen=True)
class Completed:
    """The whole output of a stage exists. Emitted once, even if parts are lost and recomputed later."""

    stage: StageId
    outputs: tuple[TaskDone | None, ...]
    """By task; None for an unneeded one."""
    launched: tuple[AttemptId | None, ...] = ()
    """The attempts that were launched for these outputs, by task. The rows of no other attempt count."""


@dataclass(frozen=True)
class RolledBack:
    """A stage restarts, in the epoch of `stage`."""

    stage: StageId


@dataclass(frozen=True)
class AttemptFailed:
    """`final`: the task is not retried."""

    failure: TaskFailure
    final: bool


@dataclass(frozen=True)
class Failed:
    """The query is over."""

    error: QueryError


Action = Launch | Cancel | Completed | RolledBack | AttemptFailed | Failed


@dataclass(frozen=True)
class StageSpec:
    """What the schedule needs to know about a stage.

    `inputs` are the numbers of the stages that it reads. `repeatable`: a task that reruns over the same input produces
    the same rows in the same partitions. `resumable`: the client leaves out rows of a rerun that it has already.
    """

    number: int
    tasks: int
    output: Output | None
    repeatable: bool
    layout: Layout
    inputs: tuple[int, ...] = ()
    resumable: bool = False
