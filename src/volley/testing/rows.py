# SPDX-License-Identifier: Apache-2.0
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

_OFF = {"spark.volley.enabled": "false"}
# How Spark comes to its rows is not what is asked, so it may take the shortest way: on small tables the generation of
# code, and exchanges of several partitions, take it longer than all the rest.
_PLAIN = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

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
    when a part of the query, or even one task, ran on Spark. With transport spark, native tasks are tasks of Spark
    and do not count. Spark answers text and functions without generating code and in one partition, which suits
    small tables; for large ones give it a DataFrame.
    """
    expected = spark_rows(spark, query)
    actual, frame, description = _native_rows(spark, query, native)
    columns = list(range(expected.num_columns)) if ordered else None
    if ordered is None:
        columns = sort_columns(frame)
    problem = difference(expected, actual, columns, tolerance)
    if problem:
        raise AssertionError(f"{description}\nVolley and Spark disagree: {problem}")
    return expected


def spark_rows(spark: SparkSession, query: Query) -> pa.Table:
    """The answer of Spark alone."""
    # A frame that is there already would keep what it is planned with here.
    settings = _OFF if isinstance(query, DataFrame) else _OFF | _PLAIN
    with conf(spark, settings):
        return _frame(spark, query).toArrow()


def native_rows(spark: SparkSession, query: Query, *, native: bool = True) -> tuple[pa.Table, str]:
    """The answer with Volley enabled, and a description of the query; fails when `native` and it was not."""
    table, _, description = _native_rows(spark, query, native)
    return table, description


def _native_rows(spark: SparkSession, query: Query, native: bool) -> tuple[pa.Table, DataFrame, str]:
    with conf(spark, {"spark.volley.enabled": "true"}):
        frame = _frame(spark, query)
        description = query if isinstance(query, str) else _plan_text(frame)
        with SparkTasks(spark) as tasks:
            table = frame.toArrow()
        report: Any = volley.last_query(spark)
    if native and report.engine != "native":
        reasons = "\n".join(f"  {reason}" for reason in report.reasons)
        raise AssertionError(f"{description}\nran on {report.engine}, not natively:\n{reasons}")
    # Transport spark starts each native task as a task of Spark.
    expected = report.native_tasks if spark.conf.get("spark.volley.transport", "local") == "spark" else 0
    if native and tasks.count != expected:
        raise AssertionError(f"{description}\nran natively, and yet Spark ran {tasks.count - expected} tasks")
    return table, frame, description


def _frame(spark: SparkSession, query: Query) -> DataFrame:
    if isinstance(query, str):
        return spark.sql(query)
    # A DataFrame keeps the plan that it made first, so the same object may answer twice: both engines read it.
    return query if isinstance(query, DataFrame) else query(spark)


def _plan_text(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().optimizedPlan().toString())
