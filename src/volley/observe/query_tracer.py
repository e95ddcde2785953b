# SPDX-License-Identifier: Apache-2.0
"""Makes the driver's spans of one query from its events."""

from __future__ import annotations

import threading
import time

from volley.config import Config
from volley.events import (
    Event,
    StageFinished,
    StageRolledBack,
    StageStarted,
    TaskFailed,
    TaskFinished,
    TaskStarted,
)
from volley.ids import AttemptId, QueryId, StageId
from volley.observe.report import QueryReport
from volley.process.tracing import NO_SPAN, Span, export_spans, start_span


class QueryTracer:
    """Starts the span of a query on construction, below the program's current span. Thread-safe."""

    def __init__(self, query: QueryId, action: str, started: float) -> None:
        attributes = {"query": str(query), "action": action}
        self._span = start_span("volley.query", at=started, attributes=attributes)
        self._lock = threading.Lock()
        self._stages: dict[tuple[QueryId, int], Span] = {}
        self._tasks: dict[AttemptId, Span] = {}

    def __call__(self, event: Event) -> None:
        """A listener for the event logs of its native runs."""
        with self._lock:
            match event:
                case StageStarted():
                    attributes: dict[str, str | int] = {
                        "stage": str(event.stage),
                        "tasks": event.tasks,
                        "workers": event.workers,
                    }
                    self._stages[_key(event.stage)] = self._child(
                        "volley.stage", self._span, event, attributes
                    )
                case StageFinished():
                    stage = self._stages.get(_key(event.stage), NO_SPAN)
                    stage.set(rows=event.rows, size_bytes=event.size_bytes)
                    stage.end(event.at_seconds)
                case StageRolledBack():
                    self._stages.get(_key(event.stage), NO_SPAN).set(rolled_back=True)
                case TaskStarted():
                    stage = self._stages.get(_key(event.attempt.task.stage), NO_SPAN)
                    attributes = {"attempt": str(event.attempt), "worker": event.worker}
                    self._tasks[event.attempt] = self._child("volley.task", stage, event, attributes)
                case TaskFinished():
                    task = self._tasks.pop(event.attempt, NO_SPAN)
                    task.set(rows=event.metrics.rows, size_bytes=event.metrics.size_bytes)
                    task.end(event.at_seconds)
                case TaskFailed():
                    self._tasks.pop(event.attempt, NO_SPAN).end(event.at_seconds, event.code)

    def traceparent(self, stage: StageId) -> str:
        """The parent for the spans of workers that run tasks of this stage."""
        with self._lock:
            return self._stages.get(_key(stage), NO_SPAN).traceparent

    def finish(self, report: QueryReport) -> None:
        """End all spans: the stages and tasks of a cancelled query have no end events."""
        code = report.error.code if report.error else None
        with self._lock:
            for span in (*self._tasks.values(), *self._stages.values()):
                span.end(error=code)
        reasons = ",".join(dict.fromkeys(str(reason.reason) for reason in report.reasons))
        self._span.set(engine=report.engine, outcome=report.outcome, rows=report.rows, reasons=reasons)
        self._span.end(time.time(), code)

    def _child(self, name: str, parent: Span, event: Event, attributes: dict[str, str | int]) -> Span:
        return start_span(name, parent=parent.traceparent, at=event.at_seconds, attributes=attributes)


def _key(stage: StageId) -> tuple[QueryId, int]:
    return stage.query, stage.stage


def query_tracer(config: Config, query: QueryId, action: str, started: float) -> QueryTracer | None:
    """The tracer that `spark.volley.tracing` asks for."""
    if not config.tracing:
        return None
    export_spans("volley-driver")
    return QueryTracer(query, action, started)
