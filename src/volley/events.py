# SPDX-License-Identifier: Apache-2.0
"""Everything observable is an event: progress, reports, metrics and history are views of this one stream.

Events are plain, frozen data that refer to nothing which runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

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
class TaskFinished(Event):
    """`rows` and `size_bytes` are what the task gave to its readers or to the client.

    What did not fit into memory: `operator_spilled_bytes` of what sorts, aggregates and joins hold while they run,
    `shuffle_spilled_bytes` of what the task gave to its readers.
    """

    attempt: AttemptId
    rows: int
    size_bytes: int
    seconds: float
    operators: tuple[OperatorMetrics, ...]
    operator_spilled_bytes: int = 0
    shuffle_spilled_bytes: int = 0


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
class FeedFinished(Event):
    """Where the splits of a scan went. `queued` were found and not wanted; `final`: discovery has ended.

    `by_task` and `bytes_by_task` are what each task was given; `done` are the splits that were read, `running` those
    that tasks were given and did not read, because there were rows enough.
    """

    stage: StageId
    source: str
    found: int
    queued: int
    running: int
    done: int
    by_task: tuple[int, ...]
    bytes_by_task: tuple[int, ...]
    size_bytes: int
    final: bool


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
