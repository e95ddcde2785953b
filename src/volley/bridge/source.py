# SPDX-License-Identifier: Apache-2.0
"""Rows that Python makes in Spark's tasks, as a relation of Spark's whose size is known."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from volley.plan.jvm import Java
from volley.shuffle.base import Block
from volley.spark_versions.registry import current


def divided(blocks: Sequence[Block], readers: int) -> list[list[Block]]:
    """The blocks for at most so many readers, with about the same to read each; there is always one."""
    shares: list[list[Block]] = [[] for _ in range(max(1, min(readers, len(blocks))))]
    heap = [(0, number) for number in range(len(shares))]
    for block in sorted(blocks, key=lambda block: -block.size_bytes):
        held_bytes, number = heapq.heappop(heap)
        shares[number].append(block)
        heapq.heappush(heap, (held_bytes + block.size_bytes, number))
    return shares


def arrow_source(
    spark: SparkSession,
    read: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: StructType,
    partitions: int,
    rows: int,
    size_bytes: int,
) -> Java:
    """A relation of so many partitions, each the batches that `read` gives for its number, in one task.

    Spark takes what it cannot look into for tiny, and would send a large relation whole to every task of a join; so it
    is told. What the tasks run is in the relation's RDD, and so in no text of any plan.
    """
    frame: Any = spark.range(0, partitions, 1, partitions).mapInArrow(read, schema)
    execution = frame._jdf.queryExecution()
    jvm: Any = spark._jvm
    output = execution.analyzed().output()
    option = jvm.scala.Option
    return jvm.org.apache.spark.sql.execution.LogicalRDD(
        output,
        execution.toRdd(),
        jvm.org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning(partitions),
        jvm.PythonUtils.toSeq([]),
        False,
        option.empty(),
        spark._jsparkSession,
        option.apply(_statistics(spark, rows, size_bytes)),
        option.empty(),
        *current().logical_rdd_arguments,
    )


def _statistics(spark: SparkSession, rows: int, size_bytes: int) -> Java:
    """Whole numbers of Scala become Python's on the way here and do not go back. But ranges have statistics, too."""
    jvm: Any = spark._jvm
    sized, counted = (
        spark.range(count)._jdf.queryExecution().analyzed().stats() for count in (-(-size_bytes // 8), rows)
    )
    values = sized.productIterator().toArray(jvm.scala.reflect.ClassTag.Any())
    values[1] = counted.rowCount()
    return sized.getClass().getConstructors()[0].newInstance(values)
