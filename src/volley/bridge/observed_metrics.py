# SPDX-License-Identifier: Apache-2.0
"""Computes the metrics of `df.observe` natively, and gives them to Spark's plan.

Spark's own listeners then do the rest: they complete the `Observation`, and tell listeners of the program.
"""

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
from volley.errors import DataError
from volley.plan.compiled_class import CompiledClass
from volley.plan.jvm import Java, singleton
from volley.plan.nodes import Node
from volley.plan.observed_metrics import ObservedMetrics
from volley.spark_versions.arrow import arrow_schema

Run = Callable[[Node], AbstractContextManager[Iterator[pa.RecordBatch]]]
"""Runs a native plan. Columns of its batches correspond to its output by position."""

_lock = threading.Lock()
_patterns: weakref.WeakKeyDictionary[Java, Java] = weakref.WeakKeyDictionary()
_classes: weakref.WeakKeyDictionary[Java, CompiledClass] = weakref.WeakKeyDictionary()


def is_observed(gateway: Java, logical: Java) -> bool:
    """Whether a logical plan asks for metrics, even where the optimizer dropped the part that does."""
    with _lock:
        if gateway not in _patterns:
            patterns = singleton(gateway, "org.apache.spark.sql.catalyst.trees.TreePattern")
            _patterns[gateway] = patterns.COLLECT_METRICS()
        pattern = _patterns[gateway]
    return bool(logical.containsPattern(pattern))


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


def fill_metrics(
    spark: SparkSession,
    execution: Java,
    observed: Sequence[ObservedMetrics],
    rows: Mapping[str, list[pa.RecordBatch]],
) -> None:
    """Put the rows of metrics into the plan of a QueryExecution that Spark does not run."""
    if not observed:
        return
    gateway: Java = spark.sparkContext._gateway
    filler = _filler(gateway)
    found = gateway.jvm.java.util.HashMap()
    for metrics in observed:
        schema = StructType.fromJson(json.loads(filler.schema(execution, metrics.name)))
        result = NativeResult(iter(rows[metrics.name]), metrics.plan.output)
        # Without the number of rows, which is the last column.
        frame = spark.createDataFrame(result.table(arrow_schema(schema)), schema)
        (row,) = frame._jdf.queryExecution().executedPlan().executeCollect()
        found.put(metrics.name, row)
    filler.fill(execution, found)


def _filler(gateway: Java) -> Java:
    with _lock:
        if gateway not in _classes:
            _classes[gateway] = CompiledClass(gateway, "ObservedMetrics.java")
        made = _classes[gateway]
    return made.get()
