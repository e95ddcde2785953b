# SPDX-License-Identifier: Apache-2.0
"""What the sessions of this process are running, and what their last queries did."""

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
    """The JVM session: PySpark may have several objects for one."""
    return str(spark._jsparkSession.sessionUUID())


def last_query(spark: SparkSession) -> QueryReport | None:
    """What the last action of this session did: this thread's last if it had one, else any thread's."""
    session = session_id(spark)
    return getattr(_mine, "reports", {}).get(session) or _latest.get(session)


def latest(session: str) -> QueryReport | None:
    """What the last action of the session did, whichever thread asked for it."""
    return _latest.get(session)


def cancel(spark: SparkSession) -> int:
    """Cancel the native queries that this session is running; each raises QueryCancelled. Gives their number."""
    tokens = running(spark)
    for token in tokens:
        token.cancel("volley.cancel was called")
    return len(tokens)


def running(spark: SparkSession) -> list[CancellationToken]:
    """One for each native query, and each native part of a mixed one, that this session is running now."""
    with _lock:
        return list(_running[session_id(spark)])


def started(session: str, token: CancellationToken) -> None:
    with _lock:
        _running[session].add(token)


def ended(session: str, token: CancellationToken) -> None:
    with _lock:
        _running[session].discard(token)


def keep(session: str, report: QueryReport) -> None:
    """From now on this is what the session's, and this thread's, last query did."""
    if not hasattr(_mine, "reports"):
        _mine.reports = {}
    _mine.reports[session] = _latest[session] = report
