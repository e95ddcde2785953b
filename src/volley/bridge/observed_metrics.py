# SPDX-License-Identifier: Apache-2.0
"""Computes the metrics of `df.observe` natively, and lets Spark complete the observations of a program with them."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from volley.bridge.result import NativeResult
from volley.bridge.write_command import skip_mode
from volley.errors import DataError
from volley.plan.compiled_class import CompiledClass
from volley.plan.jvm import Java
from volley.plan.nodes import Node
from volley.plan.observed_metrics import ObservedMetrics
from volley.spark_versions.arrow import arrow_schema
from volley.spark_versions.registry import current

Run = Callable[[Node], AbstractContextManager[Iterator[pa.RecordBatch]]]
"""Runs a native plan. Columns of its batches correspond to its output by position."""

_EXECUTION = "org.apache.spark.sql.execution.QueryExecution"
# The session, the plan, its tracker and its mode. Releases differ in the others.
_GIVEN_ARGUMENTS = 4

_lock = threading.Lock()
_classes: weakref.WeakKeyDictionary[Java, CompiledClass] = weakref.WeakKeyDictionary()


def compute_metrics(observed: Sequence[ObservedMetrics], run: Run) -> dict[str, list[pa.RecordBatch]]:
    """One row of metrics for each name. DataError where Spark may have none."""
    return {metrics.name: _compute(metrics, run) for metrics in observed}


def _compute(metrics: ObservedMetrics, run: Run) -> list[pa.RecordBatch]:
    row = _collect(metrics.plan, run)
    (count,) = (batch.column(batch.num_columns - 1)[0].as_py() for batch in row)
    is_empty = metrics.not_empty and not count
    if is_empty or not all(_collect(part, run) for part in metrics.not_empty_either):
        raise DataError("a part of the query is empty, and Spark may drop observed rows with it")
    return row


def _collect(plan: Node, run: Run) -> list[pa.RecordBatch]:
    with run(plan) as batches:
        return [batch for batch in batches if batch.num_rows]


def make_execution(
    spark: SparkSession,
    execution: Java,
    logical: Java,
    observed: Sequence[ObservedMetrics],
    rows: Mapping[str, list[pa.RecordBatch]],
) -> Java:
    """A QueryExecution of a logical plan that has these metrics, and never runs.

    `execution` is the one that was run natively. It stays as it is, because the program may run it again.
    """
    gateway: Java = spark.sparkContext._gateway
    maker = _maker(gateway)
    found = gateway.jvm.java.util.HashMap()
    for metrics in observed:
        schema = StructType.fromJson(json.loads(maker.schema(execution, metrics.name)))
        result = NativeResult(iter(rows[metrics.name]), metrics.plan.output)
        # Without the number of rows, which is the last column.
        frame = spark.createDataFrame(result.table(arrow_schema(schema)), schema)
        # Not an action, of which listeners would hear.
        (row,) = frame._jdf.queryExecution().executedPlan().executeCollect()
        found.put(metrics.name, row)
    return maker.complete(execution, logical, skip_mode(spark), found)


def complete_observations(spark: SparkSession, execution: Java) -> None:
    """Complete the observations of an execution with its metrics, as Spark does when an action has ended."""
    if complete := current().completes_observations:
        getattr(spark._jsparkSession.observationManager(), complete)(execution)


def _maker(gateway: Java) -> Java:
    with _lock:
        if gateway not in _classes:
            texts = {"DEFAULTS": _default_arguments(gateway)}
            _classes[gateway] = CompiledClass(gateway, "ObservedMetrics.java", texts=texts)
        made = _classes[gateway]
    return made.get()


def _default_arguments(gateway: Java) -> str:
    (constructor,) = gateway.jvm.java.lang.Class.forName(_EXECUTION).getConstructors()
    places = range(_GIVEN_ARGUMENTS + 1, constructor.getParameterCount() + 1)
    return ", ".join(f"QueryExecution.$lessinit$greater$default${place}()" for place in places)
