# SPDX-License-Identifier: Apache-2.0
"""The running queries and last reports of the sessions in this process."""

from __future__ import annotations

import threading
from collections import defaultdict

from pyspark.sql import SparkSession

from volley.cancellation import CancellationToken
from volley.observe.report import QueryReport

_lock = threading.Lock()
_running: defaultdict[str, set[CancellationToken]] = defaultdict(set)
_latest: dict[str, QueryReport] = {}
_mine = threading.local()


def session_id(spark: SparkSession) -> str:
    """The id of the JVM session: PySpark may have several objects for one session."""
    return str(spark._jsparkSession.sessionUUID())


def last_query(spark: SparkSession) -> QueryReport | None:
    """The report of the session's last action: this thread's last one if any, otherwise any thread's."""
    session = session_id(spark)
    return getattr(_mine, "reports", {}).get(session) or _latest.get(session)


def latest(session: str) -> QueryReport | None:
    """The report of the session's last action, on any thread."""
    return _latest.get(session)


def cancel(spark: SparkSession) -> int:
    """Cancel the running native queries of this session; each raises QueryCancelled. Returns their number."""
    tokens = running(spark)
    for token in tokens:
        token.cancel("volley.cancel was called")
    return len(tokens)


def running(spark: SparkSession) -> list[CancellationToken]:
    """One token per running native query, and per native part of a running mixed query, of this session."""
    with _lock:
        return list(_running[session_id(spark)])


def started(session: str, token: CancellationToken) -> None:
    with _lock:
        _running[session].add(token)


def ended(session: str, token: CancellationToken) -> None:
    with _lock:
        _running[session].discard(token)


def keep(session: str, report: QueryReport) -> None:
    """Record the report of the last query of this session and this thread."""
    if not hasattr(_mine, "reports"):
        _mine.reports = {}
    _mine.reports[session] = _latest[session] = report
