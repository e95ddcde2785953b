# SPDX-License-Identifier: Apache-2.0
"""Collects the events of one query while it runs, and makes its history record from them at any time.

decided -> native runs, with their events -> reported
record()     plain data, made on the thread of the history's writer and not on that of the query
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from volley.call_site import find_call_site
from volley.decide import Decision
from volley.errors import VolleyError
from volley.events import Event, QueryDecided, QueryEnded, TaskProgress
from volley.ids import AttemptId, QueryId
from volley.observe.event_data import VERSION, event_data
from volley.observe.node_text import outline_name, outline_node
from volley.observe.report import QueryReport
from volley.support.reasons import Reason, Unsupported

# Later events of a query are not kept: its last tasks are then not shown one by one.
_MAX_EVENTS = 50_000
# Their details quote an error, which may quote data.
_QUOTING = (Reason.REPLAY, Reason.FAILED)


@dataclass(frozen=True)
class Origin:
    """Where a query comes from. `caller` is the line of the program, `description` Spark's job description."""

    application: str
    application_name: str
    host: str
    process: int
    session: str
    action: str
    caller: str
    description: str


@lru_cache(maxsize=4)
def _application_id(context: SparkContext) -> str:
    """Cached: read from the JVM once."""
    return str(context.applicationId)


def origin_of(spark: SparkSession, session: str, action: str) -> Origin:
    context = spark.sparkContext
    return Origin(
        application=_application_id(context),
        application_name=str(context.appName),
        host=socket.gethostname(),
        process=os.getpid(),
        session=session,
        action=action,
        caller=find_call_site(),
        description=context.getLocalProperty("spark.job.description") or "",
    )


class QueryRecorder:
    """Collects the events of one query. May be used from any thread."""

    def __init__(self, query: QueryId, origin: Origin, decision: Decision, started: float) -> None:
        """`started` is when the action was called, in seconds since the epoch."""
        self.query = query
        self.started = started
        self._origin = origin
        self._decision = decision
        self._lock = threading.Lock()
        self._events: list[tuple[int, Event]] = []
        self._dropped = 0
        self._parts = 0
        self._progress: dict[AttemptId, TaskProgress] = {}
        self._measures: list[Callable[[], int]] = []
        self._input_bytes: int | None = None
        self._report: QueryReport | None = None
        reasons = tuple(str(reason.reason) for reason in decision.reasons)
        self._add(
            0,
            QueryDecided(
                query,
                origin.action,
                decision.engine,
                reasons,
                decision.planning_seconds,
                decision.capture_seconds,
            ),
        )

    def listen(self, input_bytes: Callable[[], int]) -> Callable[[Event], None]:
        """The listener for the event log of one native run. `input_bytes` is asked only if the query lasts."""
        with self._lock:
            part, self._parts = self._parts, self._parts + 1
            self._measures.append(input_bytes)
        return lambda event: self._add(part, event)

    def finish(self, report: QueryReport) -> None:
        """The query has its outcome."""
        code = report.error.code if report.error else None
        self._add(0, QueryEnded(self.query, report.outcome, report.engine, report.rows, report.seconds, code))
        self._report = report

    @property
    def finished(self) -> bool:
        return self._report is not None

    def _add(self, part: int, event: Event) -> None:
        with self._lock:
            if isinstance(event, TaskProgress):
                self._progress[event.attempt] = event
            elif len(self._events) < _MAX_EVENTS:
                self._events.append((part, event))
            else:
                self._dropped += 1

    def record(self) -> dict[str, Any]:
        """The query so far, or as a whole, as plain data."""
        with self._lock:
            events, progress, report = list(self._events), list(self._progress.values()), self._report
        origin, decision = self._origin, self._decision
        now = time.time()
        seconds = report.seconds if report else now - self.started
        reasons = report.reasons if report else decision.reasons
        return {
            "version": VERSION,
            "query": str(self.query),
            "application": origin.application,
            "application_name": origin.application_name,
            "host": origin.host,
            "process": origin.process,
            "session": origin.session,
            "action": origin.action,
            "caller": origin.caller,
            "description": origin.description,
            "started": self.started,
            "ended": self.started + seconds if report else None,
            "updated": now,
            "outcome": report.outcome if report else "running",
            "engine": report.engine if report else decision.engine,
            "error": _error(report),
            "reasons": [_reason(reason) for reason in reasons],
            "seconds": round(seconds, 6),
            "planning_seconds": round(decision.planning_seconds, 6),
            "capture_seconds": round(decision.capture_seconds, 6),
            "execution_seconds": round(report.execution_seconds, 6) if report else None,
            "rows": report.rows if report else None,
            "spark_tasks": report.spark_tasks if report else None,
            "native_tasks": report.native_tasks if report else None,
            "shuffle_bytes": report.shuffle_bytes if report else None,
            "spilled_bytes": report.spilled_bytes if report else None,
            "rows_read": sum(task.rows for task in progress),
            "bytes_read": sum(task.size_bytes for task in progress),
            "bytes_to_read": 0 if report else self._measure(),
            "plan": self._plan(),
            "events": [event_data(event, part) for part, event in events],
            "events_dropped": self._dropped,
        }

    def _plan(self) -> list[dict[str, Any]]:
        decision = self._decision
        by_spark = {id(node) for node in decision.spark_nodes}
        natively = {id(node) for node in decision.native_nodes}
        return [
            {
                "depth": verdict.depth,
                "name": type(verdict.node).__name__,
                "text": outline_node(verdict.node),
                "native": verdict.native,
                "subquery": verdict.in_subquery,
                "handover": "spark"
                if id(verdict.node) in by_spark
                else "native"
                if id(verdict.node) in natively
                else None,
                "reasons": [_reason(reason) for reason in verdict.reasons],
            }
            for verdict in decision.nodes
        ]

    def _measure(self) -> int:
        """Footers are read for this, so once, and not for queries that are over before anybody looks."""
        if self._input_bytes is None:
            try:
                self._input_bytes = sum(measure() for measure in self._measures)
            except (VolleyError, OSError):
                self._input_bytes = 0
        return self._input_bytes


def _reason(reason: Unsupported) -> dict[str, str]:
    return {
        "reason": str(reason.reason),
        "what": outline_name(reason.what),
        "detail": "" if reason.reason in _QUOTING else reason.detail,
    }


# Errors whose messages are Volley's own words, about the query and not about its data.
_OWN_WORDS = ("DEADLINE_EXCEEDED", "QUERY_CANCELLED", "NO_WORKERS", "NOT_READ_TO_THE_END", "SPILL_DISK_FULL")


def _error(report: QueryReport | None) -> dict[str, str] | None:
    if report is None or report.error is None:
        return None
    code = report.error.code
    return {"code": code, "message": report.error.message if code in _OWN_WORDS else ""}
