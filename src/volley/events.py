# SPDX-License-Identifier: Apache-2.0
"""The events of a query. Progress, reports, metrics and history are all derived from this one stream.

Events are immutable plain data, without references to live objects.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from volley.field_types import Count, Seconds
from volley.ids import AttemptId, QueryId, StageId
from volley.python_versions import StrEnum


@dataclass(frozen=True, kw_only=True)
class Event:
    """`at_seconds` is the wall clock, in seconds since the epoch."""

    at_seconds: float = field(default_factory=time.time)


@dataclass(frozen=True)
class QueryDecided(Event):
    """Who runs an action: native, mixed or spark. `reasons` are the codes of what is not native."""

    query: QueryId
    action: str
    engine: str
    reasons: tuple[str, ...]
    planning_seconds: float
    capture_seconds: float


@dataclass(frozen=True)
class QueryStarted(Event):
    """A native run begins: a whole query, or a native part of a mixed one."""

    query: QueryId
    stages: int
    tasks: int


@dataclass(frozen=True)
class StageStarted(Event):
    """`planned_tasks` is the number of tasks before the sizes of the inputs were known. `decisions` describes what else
    those sizes changed. `workers` is the number of workers at the start of the stage. `inputs` are the stages whose
    output it reads. `taken_over`: an earlier run has left its output in the checkpoint, and it does not run.
    `pruned_files` are left out of its scans because of the keys of joins."""

    stage: StageId
    tasks: int
    planned_tasks: int
    decisions: tuple[str, ...] = ()
    workers: int = 0
    inputs: tuple[int, ...] = ()
    taken_over: bool = False
    pruned_files: int = 0


@dataclass(frozen=True)
class StageAbsorbed(Event):
    """The stage does not run on its own: the tasks of its reader `by` do its work, which saves the exchange."""

    stage: StageId
    by: StageId


@dataclass(frozen=True)
class TaskStarted(Event):
    attempt: AttemptId
    worker: str


@dataclass(frozen=True)
class OperatorMetrics:
    """The metrics of one native operator of a task. Times are in nanoseconds, as in DataFusion."""

    name: str
    values: tuple[tuple[str, int], ...]


class Distance(StrEnum):
    """From where a task read exchanged rows: from its own process, from another one on its host, or from elsewhere."""

    LOCAL = "local"
    HOST = "host"
    REMOTE = "remote"


LATENCY_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds in seconds of the buckets of `FetchMetrics.latencies`; the last bucket has none."""


@dataclass(frozen=True)
class FetchMetrics:
    """What a task read of the output of `stage`, by distance, in bytes of rows; `transferred_bytes` as they came.

    Its streams waited `wait_seconds` for it, all together. `latencies` counts requests by the time to their first
    answer.
    """

    stage: Count
    local_bytes: Count = 0
    host_bytes: Count = 0
    remote_bytes: Count = 0
    transferred_bytes: Count = 0
    wait_seconds: Seconds = 0.0
    retries: Count = 0
    latencies: tuple[Count, ...] = (0,) * (len(LATENCY_BOUNDS) + 1)
    max_latency_seconds: Seconds = 0.0

    @property
    def size_bytes(self) -> int:
        return self.local_bytes + self.host_bytes + self.remote_bytes


@dataclass(frozen=True)
class TaskMetrics:
    """The metrics of a task. Its worker creates them, and the report shows them unchanged.

    `rows` and `size_bytes` measure its output. `shuffle_spilled_bytes` of these did not fit into the memory of the
    shuffle store. `fetches` is what it read of the output of other stages, one for each. `jvm_rows` of its input went
    through the JVM beside its worker, for which threads waited `jvm_seconds`.
    """

    rows: Count
    size_bytes: Count
    seconds: Seconds
    operators: tuple[OperatorMetrics, ...] = ()
    shuffle_spilled_bytes: Count = 0
    fetches: tuple[FetchMetrics, ...] = ()
    jvm_rows: Count = 0
    jvm_seconds: Seconds = 0.0

    @property
    def fetched_bytes(self) -> int:
        return sum(fetch.size_bytes for fetch in self.fetches)

    @property
    def fetch_wait_seconds(self) -> float:
        return sum(fetch.wait_seconds for fetch in self.fetches)

    @property
    def operator_spilled_bytes(self) -> int:
        """Bytes that sorts, aggregates and joins spilled to disk."""
        return sum(dict(operator.values).get("spilled_bytes", 0) for operator in self.operators)


@dataclass(frozen=True)
class TaskProgress(Event):
    """What the scans of a running attempt have read so far. Announced about twice a second, and not kept."""

    attempt: AttemptId
    rows: int
    size_bytes: int


@dataclass(frozen=True)
class TaskFinished(Event):
    attempt: AttemptId
    metrics: TaskMetrics


@dataclass(frozen=True)
class TaskFailed(Event):
    """`final` is False if the task is retried."""

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
    """The states of the splits of a stage's scans. Kept small because it is sent often."""

    found: int
    queued: int
    running: int
    done: int


@dataclass(frozen=True)
class SplitProgress(Event):
    """Recorded at most once per second, on changes, while a stage reads splits, and at its end."""

    stage: StageId
    splits: SplitCounts


@dataclass(frozen=True)
class FeedStatus:
    """The splits of one scan: discovered, queued, assigned to tasks that have not finished them, and done.

    `by_task` and `bytes_by_task` count what each task was assigned, in splits and in bytes if the source knows them.
    `final` is False if discovery has not ended or was stopped early.
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
    """A stage needs no more splits of a scan. Splits still queued or running were no longer needed."""

    stage: StageId
    status: FeedStatus


@dataclass(frozen=True)
class StageRolledBack(Event):
    """The stage restarts in the epoch of `stage`, because its input is being recomputed and may differ."""

    stage: StageId


@dataclass(frozen=True)
class QueryFinished(Event):
    """`code` is the code of the error that ended the query; None if it succeeded."""

    query: QueryId
    seconds: float
    code: str | None


@dataclass(frozen=True)
class QueryEnded(Event):
    """The action has an outcome: answered, failed or cancelled. `code` is that of the error."""

    query: QueryId
    outcome: str
    engine: str
    rows: int
    seconds: float
    code: str | None


class EventLog:
    """The events of one query in order. Listeners are called on the recording thread and must be fast."""

    def __init__(self, *listeners: Callable[[Event], None]) -> None:
        self._listeners = listeners
        self._lock = threading.Lock()
        self._events: list[Event] = []

    def record(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)
        for listener in self._listeners:
            listener(event)

    def announce(self, event: Event) -> None:
        """Tell the listeners of something that is outdated a moment later. It is not kept."""
        for listener in self._listeners:
            listener(event)

    @property
    def events(self) -> tuple[Event, ...]:
        with self._lock:
            return tuple(self._events)


def _listed(counts: tuple[int, ...]) -> str:
    return ", ".join(f"{count:,}" for count in counts)
