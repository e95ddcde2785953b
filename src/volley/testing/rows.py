# SPDX-License-Identifier: Apache-2.0
"""Runs a query natively and on Spark, and asserts that the rows are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import volley
from volley.bench.compare import RELATIVE_TOLERANCE, difference
from volley.bench.order import sort_columns
from volley.observe.spark_tasks import SparkTasks
from volley.spark_versions.classic import collect_table
from volley.testing.session import conf

__all__ = ["SparkTasks", "assert_same_rows", "native_rows", "spark_rows"]

_OFF = {"spark.volley.enabled": "false"}
# Spark only serves as the oracle, so let it take the fastest way. On small tables, code generation and exchanges of
# several partitions take most of its time.
PLAIN = {
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
    """Assert that Volley's result of `query` equals Spark's. Returns Spark's result for further checks.

    `query` is SQL text, a function from the session to a DataFrame, or a DataFrame. `ordered`: True compares row by
    row, False ignores the order, None follows the query's ORDER BY and allows ties in any order. `native`: also fail if
    a part of the query, or even one task, ran on Spark; native tasks of transport spark do not count. Spark runs text
    and functions without code generation and in one partition, which suits small tables; for large ones pass a
    DataFrame.
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
    """Spark's result."""
    # An existing DataFrame would keep the plan that it gets here.
    settings = _OFF if isinstance(query, DataFrame) else _OFF | PLAIN
    with conf(spark, settings):
        return collect_table(_frame(spark, query))


def native_rows(spark: SparkSession, query: Query, *, native: bool = True) -> tuple[pa.Table, str]:
    """Volley's result and a description of the query. With `native`, fails if it did not run natively."""
    table, _, description = _native_rows(spark, query, native)
    return table, description


def _native_rows(spark: SparkSession, query: Query, native: bool) -> tuple[pa.Table, DataFrame, str]:
    with conf(spark, {"spark.volley.enabled": "true"}):
        frame = _frame(spark, query)
        description = query if isinstance(query, str) else _plan_text(frame)
        with SparkTasks(spark) as tasks:
            table = collect_table(frame)
        report: Any = volley.last_query(spark)
    if native and report.engine != "native":
        reasons = "\n".join(f"  {reason}" for reason in report.reasons)
        raise AssertionError(f"{description}\nran on {report.engine}, not natively:\n{reasons}")
    # Transport spark starts each native task as a task of Spark.
    expected = report.native_tasks if spark.conf.get("spark.volley.transport", "local") == "spark" else 0
    if native and tasks.count != expected:
        raise AssertionError(f"{description}\nran natively, but Spark ran {tasks.count - expected} tasks")
    return table, frame, description


def _frame(spark: SparkSession, query: Query) -> DataFrame:
    if isinstance(query, str):
        return spark.sql(query)
    # A DataFrame keeps its first plan, which both engines can use, so the same object may run twice.
    return query if isinstance(query, DataFrame) else query(spark)


def _plan_text(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().optimizedPlan().toString())
