# SPDX-License-Identifier: Apache-2.0
"""Everything observable is an event: progress, reports, metrics and history are views of this one stream.

Events are plain, frozen data that refer to nothing which runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from volley.fields import Count, Seconds
from volley.ids import AttemptId, QueryId, StageId


@dataclass(frozen=True, kw_only=True)
class Event:
    """`at_seconds` is the wall clock, in seconds since the epoch."""

    at_seconds: float = field(default_factory=time.time)


@dataclass(frozen=True)
class QueryStarted(Event):
    query: QueryId
    stages: int
    tasks: int


@dataclass(frozen=True)
class StageStarted(Event):
    """`planned_tasks` is how many tasks the stage had before the sizes of its inputs were known; `decisions` is what
    else these sizes changed, in words; `workers` is how many were there to run them when it began."""

    stage: StageId
    tasks: int
    planned_tasks: int
    decisions: tuple[str, ...] = ()
    workers: int = 0


@dataclass(frozen=True)
class StageAbsorbed(Event):
    """The stage does not run: the tasks of its reader `by` do its work, so that its rows are not exchanged."""

    stage: StageId
    by: StageId


@dataclass(frozen=True)
class TaskStarted(Event):
    attempt: AttemptId
    worker: str


@dataclass(frozen=True)
class OperatorMetrics:
    """What one native operator of a task counted; times are in nanoseconds, as DataFusion gives them."""

    name: str
    values: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class TaskMetrics:
    """What a task counted. Made by its worker and carried unchanged to the report.

    `rows` and `size_bytes` are what it gave to its readers or to the client. `shuffle_spilled_bytes` of these did not
    fit into the memory of the shuffle store.
    """

    rows: Count
    size_bytes: Count
    seconds: Seconds
    operators: tuple[OperatorMetrics, ...] = ()
    shuffle_spilled_bytes: Count = 0

    @property
    def operator_spilled_bytes(self) -> int:
        """What sorts, aggregates and joins wrote to disk for want of memory."""
        return sum(dict(operator.values).get("spilled_bytes", 0) for operator in self.operators)


@dataclass(frozen=True)
class TaskFinished(Event):
    attempt: AttemptId
    metrics: TaskMetrics


@dataclass(frozen=True)
class TaskFailed(Event):
    """`final` is False when the task is tried again."""

    attempt: AttemptId
    code: str
    message: str
    final: bool


@dataclass(frozen=True)
class StageFinished(Event):
    stage: StageId
    rows: int
    size_bytes: int
    seconds: float


@dataclass(frozen=True)
class SplitCounts:
    """Where the splits of a stage's scans are. They may be told often, so they are few and small."""

    found: int
    queued: int
    running: int
    done: int


@dataclass(frozen=True)
class SplitProgress(Event):
    """Told every second in which something changes while a stage with scans that are fed runs, and at its end."""

    stage: StageId
    splits: SplitCounts


@dataclass(frozen=True)
class FeedStatus:
    """The splits of one scan: found, still queued, given to tasks that have not read them, and read to their end.

    `by_task` and `bytes_by_task` are what each task was given, in splits and in bytes as far as the source knows them.
    `final` is False when discovery has not ended, or was stopped before its end.
    """

    source: str
    found: int
    queued: int
    running: int
    done: int
    by_task: tuple[int, ...]
    bytes_by_task: tuple[int, ...]
    size_bytes: int
    final: bool

    def __str__(self) -> str:
        more = "" if self.final else " so far"
        sizes = f" ({_listed(self.bytes_by_task)} bytes)" if any(self.bytes_by_task) else ""
        return (
            f"{self.source}: {self.found:,} splits found{more}, {self.queued:,} queued, {self.running:,} running, "
            f"{self.done:,} done; by task {_listed(self.by_task)}{sizes}"
        )


@dataclass(frozen=True)
class FeedFinished(Event):
    """A stage needs no more splits of a scan. Those that are queued or running then were not wanted any more."""

    stage: StageId
    status: FeedStatus


@dataclass(frozen=True)
class StageRolledBack(Event):
    """The stage begins again in the epoch of `stage`: what it had read is being computed differently."""

    stage: StageId


@dataclass(frozen=True)
class QueryFinished(Event):
    """`code` is the code of the error that ended the query, None when it gave all its rows."""

    query: QueryId
    seconds: float
    code: str | None


class EventLog:
    """The events of one query in order. Listeners are called on the thread that records; they must be quick."""

    def __init__(self, *listeners: Callable[[Event], None]) -> None:
        self._listeners = listeners
        self._lock = threading.Lock()
        self._events: list[Event] = []

    def record(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)
        for listener in self._listeners:
            listener(event)

    @property
    def events(self) -> tuple[Event, ...]:
        with self._lock:
            return tuple(self._events)


def _listed(counts: tuple[int, ...]) -> str:
    return ", ".join(f"{count:,}" for count in counts)
