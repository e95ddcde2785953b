"""Spark is the oracle: run a query natively and on Spark, and ask for the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import volley
from volley.bench.compare import RELATIVE_TOLERANCE, difference
from volley.bench.order import sort_columns
from volley.observe.tasks import SparkTasks
from volley.testing.session import conf

__all__ = ["SparkTasks", "assert_same_rows", "native_rows", "spark_rows"]

Query: TypeAlias = str | DataFrame | Callable[[SparkSession], DataFrame]


def assert_same_rows(
    spark: SparkSession,
    query: Query,
    *,
    ordered: bool | None = None,
    native: bool = True,
    tolerance: float = RELATIVE_TOLERANCE,
) -> pa.Table:
    """Fail unless Volley's answer to `query` is Spark's; gives Spark's answer for further checks.

    `query` is SQL text, a function from the session to a DataFrame, or a DataFrame. `ordered`: True compares row
    by row, False as a bag; None follows the query's own ORDER BY and lets ties change places. `native`: also fail
    when a part of the query, or even one task, ran on Spark.
    """
    expected = spark_rows(spark, query)
    actual, description = native_rows(spark, query, native=native)
    if ordered is None:
        columns = sort_columns(_frame(spark, query))
    else:
        columns = list(range(expected.num_columns)) if ordered else None
    problem = difference(expected, actual, columns, tolerance)
    if problem:
        raise AssertionError(f"{description}\nVolley and Spark disagree: {problem}")
    return expected


def spark_rows(spark: SparkSession, query: Query) -> pa.Table:
    """The answer of Spark alone."""
    with conf(spark, {"spark.volley.enabled": "false"}):
        return _frame(spark, query).toArrow()


def native_rows(spark: SparkSession, query: Query, *, native: bool = True) -> tuple[pa.Table, str]:
    """The answer with Volley enabled, and a description of the query; fails when `native` and it was not."""
    with conf(spark, {"spark.volley.enabled": "true"}):
        frame = _frame(spark, query)
        description = query if isinstance(query, str) else _plan_text(frame)
        with SparkTasks(spark) as tasks:
            table = frame.toArrow()
        report: Any = volley.last_query(spark)
    if native and report.engine != "native":
        reasons = "\n".join(f"  {reason}" for reason in report.reasons)
        raise AssertionError(f"{description}\nran on {report.engine}, not natively:\n{reasons}")
    if native and tasks.count:
        raise AssertionError(f"{description}\nran natively, and yet Spark ran {tasks.count} tasks")
    return table, description


def _frame(spark: SparkSession, query: Query) -> DataFrame:
    if isinstance(query, str):
        return spark.sql(query)
    # A DataFrame keeps the plan that it made first, so the same object may answer twice: both engines read it.
    return query if isinstance(query, DataFrame) else query(spark)


def _plan_text(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().optimizedPlan().toString())
