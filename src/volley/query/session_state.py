# SPDX-License-Identifier: Apache-2.0
"""The running queries and last reports of the sessions in this process."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from volley.cancellation import CancellationToken
from volley.connect.local_server import classic_session
from volley.observe.report import QueryReport


@dataclass(frozen=True)
class Label:
    """A job group or tag, by which users stop work."""

    kind: Literal["job group", "job tag", "session tag"]
    value: str


@dataclass(frozen=True, eq=False)
class RunningQuery:
    """A native query, or a native part of a mixed query. `id` is that of the whole query."""

    id: str
    session: str
    token: CancellationToken
    labels: frozenset[Label] = frozenset()


_lock = threading.Lock()
_running: defaultdict[str, set[RunningQuery]] = defaultdict(set)
_latest: dict[str, QueryReport] = {}
_mine = threading.local()
# Cached, because every query needs it and a PySpark session rarely changes its JVM session.
_ids: WeakKeyDictionary[SparkSession, tuple[Any, str]] = WeakKeyDictionary()


def session_id(spark: SparkSession) -> str:
    """The id of the JVM session: PySpark may have several objects for one session."""
    classic = classic_session(spark)
    java = classic._jsparkSession
    known = _ids.get(classic)
    if known is None or known[0] is not java:
        known = _ids[classic] = (java, str(java.sessionUUID()))
    return known[1]


def last_query(spark: SparkSession) -> QueryReport | None:
    """The report of the session's last action: this thread's last one if any, otherwise any thread's."""
    session = session_id(spark)
    return getattr(_mine, "reports", {}).get(session) or _latest.get(session)


def latest(session: str) -> QueryReport | None:
    """The report of the session's last action, on any thread."""
    return _latest.get(session)


def cancel(spark: SparkSession) -> int:
    """Cancel the running native queries of this session; each raises QueryCancelled. Returns their number."""
    queries = running(spark)
    for query in queries:
        query.token.cancel("volley.cancel was called")
    return len(queries)


def running(spark: SparkSession) -> list[RunningQuery]:
    """The running native queries, and native parts of running mixed queries, of this session."""
    with _lock:
        return list(_running[session_id(spark)])


def all_running() -> list[RunningQuery]:
    """Those of all sessions."""
    with _lock:
        return [query for queries in _running.values() for query in queries]


def register(query: RunningQuery) -> None:
    with _lock:
        _running[query.session].add(query)


def unregister(query: RunningQuery) -> None:
    with _lock:
        _running[query.session].discard(query)


def keep_report(session: str, report: QueryReport) -> None:
    """Record the report of the last query of this session and this thread."""
    if not hasattr(_mine, "reports"):
        _mine.reports = {}
    _mine.reports[session] = _latest[session] = report
