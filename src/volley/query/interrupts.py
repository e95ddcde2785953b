# SPDX-License-Identifier: Apache-2.0
"""Lets Spark's own methods for stopping work stop native queries too.

    spark.interruptAll()                 all queries of the session
    spark.interruptTag(tag)              queries that began under this tag of the session
    spark.interruptOperation(id)         one query, by the id in its report
    sparkContext.cancelAllJobs()         all queries of this application
    sparkContext.cancelJobGroup(group)   queries that began under this job group
    sparkContext.cancelJobsWithTag(tag)  queries that began under this job tag

A native query starts no Spark job, so Spark has nothing to cancel for it. These methods are wrapped, once per process:
they stop the native queries that they name, and do what they always did.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from volley.ids import QueryId
from volley.plan.capture import plan_reader
from volley.query import session_state
from volley.query.session_state import Label, RunningQuery
from volley.spark_versions.registry import current

# Local properties of a thread.
_PROPERTIES = ("spark.jobGroup.id", "spark.job.tags")

Applies = Callable[[RunningQuery], bool]


def install() -> None:
    """Wrap the methods. Call it once."""
    if current().has_session_tags:
        _wrap_session("interruptAll", lambda spark: _of_session(spark))
        _wrap_session("interruptTag", lambda spark, tag: _labelled(Label("session tag", _scoped(spark, tag))))
        _wrap_session("interruptOperation", lambda spark, op_id: _with_id(op_id))
    _wrap_context("cancelAllJobs", lambda context: _all)
    _wrap_context("cancelJobGroup", lambda context, group: _labelled(Label("job group", group)))
    _wrap_context("cancelJobsWithTag", lambda context, tag: _labelled(Label("job tag", tag)))


def labels_of(spark: SparkSession) -> frozenset[Label]:
    """The job group and the tags under which this thread begins a query, in one call to the JVM."""
    reader = plan_reader(spark.sparkContext._gateway)
    (group, job_tags), session_tags = reader.labels(spark._jsparkSession, _PROPERTIES)
    return frozenset(
        [
            *([Label("job group", group)] if group else []),
            *(Label("job tag", tag) for tag in (job_tags or "").split(",") if tag),
            *(Label("session tag", _scoped(spark, tag)) for tag in session_tags),
        ]
    )


def job_tag(query: QueryId) -> str:
    """The tag of the Spark jobs that run for a query, by which they are counted and stopped."""
    return f"volley-{query}"


def stop_jobs(context: SparkContext, tag: str) -> None:
    """Stop Spark's jobs and the native queries under a job tag, without waiting for that."""
    threading.Thread(
        target=context.cancelJobsWithTag, args=(tag,), name="volley-stop-jobs", daemon=True
    ).start()


class JobTag:
    """Marks the jobs and native queries of this thread, so that they can be stopped together."""

    def __init__(self, context: SparkContext, tag: str) -> None:
        self._context = context
        self._tag = tag

    def __enter__(self) -> None:
        self._context.addJobTag(self._tag)

    def __exit__(self, *raised: object) -> None:
        self._context.removeJobTag(self._tag)


def _all(query: RunningQuery) -> bool:
    return True


def _of_session(spark: SparkSession) -> Applies:
    session = session_state.session_id(spark)
    return lambda query: query.session == session


def _with_id(id: str) -> Applies:
    return lambda query: query.id == id


def _labelled(label: Label) -> Applies:
    return lambda query: label in query.labels


def _scoped(spark: SparkSession, tag: str) -> str:
    """A tag with the id of its session: other sessions may use the same tag."""
    return f"{session_state.session_id(spark)}/{tag}"


def _wrap_session(method: str, select: Callable[..., Applies]) -> None:
    original = getattr(SparkSession, method)

    @wraps(original)
    def interrupt(spark: SparkSession, *arguments: Any, **named: Any) -> list[str]:
        stopped = _stop(f"spark.{method} was called", select(spark, *arguments, *named.values()))
        if stopped and method == "interruptOperation":
            # Spark's ids are numbers, and it refuses others.
            return stopped
        return list(original(spark, *arguments, **named)) + stopped

    setattr(SparkSession, method, interrupt)


def _wrap_context(method: str, select: Callable[..., Applies]) -> None:
    original = getattr(SparkContext, method)

    @wraps(original)
    def cancel(context: SparkContext, *arguments: Any, **named: Any) -> None:
        original(context, *arguments, **named)
        _stop(f"sparkContext.{method} was called", select(context, *arguments, *named.values()))

    setattr(SparkContext, method, cancel)


def _stop(why: str, applies: Applies) -> list[str]:
    stopped = [query for query in session_state.all_running() if applies(query)]
    for query in stopped:
        query.token.cancel(why)
    return list(dict.fromkeys(query.id for query in stopped))
