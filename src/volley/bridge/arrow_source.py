# SPDX-License-Identifier: Apache-2.0
"""A Spark relation of known size, whose rows Python code produces in Spark's tasks."""

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


def divide_blocks(blocks: Sequence[Block], readers: int) -> list[list[Block]]:
    """The blocks for up to `readers` readers, about equal in size. There is always at least one reader."""
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
    """A relation of `partitions` partitions. Each consists of the batches that `read` yields for its number.

    Spark assumes that an opaque relation is tiny, and would broadcast a large one, so the relation gets statistics. The
    code that the tasks run is in the relation's RDD, so it appears in no plan text.
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
        *([option.empty()] if current().logical_rdd_has_stream else []),
        spark._jsparkSession,
        option.apply(_statistics(spark, rows, size_bytes)),
        option.empty(),
        *current().logical_rdd_arguments,
    )


def _statistics(spark: SparkSession, rows: int, size_bytes: int) -> Java:
    """Statistics of this size, taken from ranges: py4j cannot pass a Scala BigInt."""
    jvm: Any = spark._jvm
    sized, counted = (
        spark.range(count)._jdf.queryExecution().analyzed().stats() for count in (-(-size_bytes // 8), rows)
    )
    values = sized.productIterator().toArray(jvm.scala.reflect.ClassTag.Any())
    values[1] = counted.rowCount()
    return sized.getClass().getConstructors()[0].newInstance(values)
