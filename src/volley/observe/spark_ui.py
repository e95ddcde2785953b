# SPDX-License-Identifier: Apache-2.0
"""An entry in the SQL tab of Spark's own UI, and in its event log, for a query that ran natively.

Spark lists only what it executes itself. The two events that Spark itself would post are
posted for it: the start, with Spark's plan, and the end. There are no jobs below the entry, because none ran.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache

from pyspark import SparkContext
from pyspark.sql import SparkSession

from volley.plan.jvm import Java
from volley.plan.known_plans import find_plan
from volley.spark_versions.registry import current

_SQL = "org.apache.spark.sql.execution"


# How Spark names actions to its listeners, where PySpark does not call them so.
_FUNCTIONS = {"collect": "collectToPython", "toArrow": "collectAsArrowToPython", "cacheTable": "count"}
_OTHER_ACTIONS = frozenset({"count"})


@dataclass(frozen=True)
class Observed:
    """A query with metrics of `df.observe`, which are in the plan of its execution: listeners are told of its end."""

    execution: Java
    action: str
    nanoseconds: int

    def add_to(self, end: Java, option: Java) -> None:
        """Add what listeners of query executions get to an event."""
        name = _FUNCTIONS.get(self.action) or (self.action if self.action in _OTHER_ACTIONS else "command")
        getattr(end, "executionName_$eq")(option.apply(name))
        getattr(end, "duration_$eq")(self.nanoseconds)
        getattr(end, "qe_$eq")(self.execution)
        getattr(end, "executionFailure_$eq")(option.empty())


class SqlTabEntry:
    """Listed as running from construction until `end`."""

    def __init__(self, spark: SparkSession, execution: Java, description: str, details: str) -> None:
        self._jvm = jvm = spark._jvm
        assert jvm is not None
        self._bus = spark.sparkContext._jsc.sc().listenerBus()
        self._option = jvm.scala.Option
        plan = find_plan(spark.sparkContext._gateway, execution) or execution.executedPlan()
        packages = jvm.org.apache.spark.sql.execution
        self._id = _module(jvm, f"{_SQL}.SQLExecution").nextExecutionId()
        none = self._option.empty()
        query_id = [none] if current().has_query_ids else []
        self._bus.post(
            packages.ui.SparkListenerSQLExecutionStart(
                self._id,
                # The execution that it is part of: its own. A number of Python would arrive as an Integer, not a Long.
                none,
                description,
                details,
                plan.toString(),
                packages.SparkPlanInfo.fromSparkPlan(plan),
                _milliseconds(),
                _module(jvm, "scala.collection.immutable.Map").empty(),
                _module(jvm, "scala.collection.immutable.Set").empty(),
                none,
                *query_id,
            )
        )

    def end(self, error: str | None, observed: Observed | None = None) -> None:
        message = self._option.apply(error) if error else self._option.empty()
        _post_end(self._jvm, self._bus, self._id, message, observed)


def post_end(spark: SparkSession, observed: Observed) -> None:
    """Tell listeners of the end of a query that has no entry."""
    jvm = spark._jvm
    assert jvm is not None
    id = _module(jvm, f"{_SQL}.SQLExecution").nextExecutionId()
    _post_end(jvm, spark.sparkContext._jsc.sc().listenerBus(), id, jvm.scala.Option.empty(), observed)


def _post_end(jvm: Java, bus: Java, id: int, message: Java, observed: Observed | None) -> None:
    query_id = [jvm.scala.Option.empty()] if current().has_query_ids else []
    end = jvm.org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd(
        id, _milliseconds(), message, *query_id
    )
    if observed is not None:
        observed.add_to(end, jvm.scala.Option)
    bus.post(end)


def wants_entry(spark: SparkSession, option: str) -> bool:
    """Whether `spark.volley.ui` (auto, on or off) asks for entries: by itself where Spark has a UI or an event log."""
    return _is_shown(spark.sparkContext) if option == "auto" else option == "on"


@lru_cache(maxsize=4)
def _is_shown(context: SparkContext) -> bool:
    """Asked of the JVM once: these settings are those that the context was started with."""
    conf = context._conf
    return (
        conf.get("spark.ui.enabled", "true") == "true"
        or conf.get("spark.eventLog.enabled", "false") == "true"
    )


def _module(jvm: Java, name: str) -> Java:
    """A Scala object. Where its class has forwarders, private methods are not among them."""
    kind = jvm.java.lang.Class.forName(f"{name}$", True, jvm.Thread.currentThread().getContextClassLoader())
    return kind.getField("MODULE$").get(None)


def _milliseconds() -> int:
    return int(time.time() * 1000)
