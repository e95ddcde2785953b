# SPDX-License-Identifier: Apache-2.0
"""Which rows a Python function sees, in which order and batches, and what it knows besides them."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from helpers.function_rows import rows
from volley.cluster import LocalCluster
from volley.testing.rows import assert_same_rows

pytestmark = pytest.mark.embedded


def test_no_rows(spark: SparkSession) -> None:
    def same(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield from batches

    def empty(session: SparkSession) -> DataFrame:
        frame = rows(session).where("id > 1000").select("id", "s", "k")
        called = frame.select(F.udf(lambda number: 1 // 0, "long")("id").alias("id"), "s", "k")
        return called.mapInPandas(same, "id long, s string, k long")

    assert_same_rows(spark, empty)


def test_batches_are_cut_as_in_spark(spark: SparkSession) -> None:
    """A batch has maxRecordsPerBatch rows, and a function sees all batches of its stream in one call."""

    def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [batch.num_rows for batch in batches]
        yield pa.RecordBatch.from_pydict({"sizes": [str(found)]})

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    spark.conf.set("spark.volley.local.cores", "1")
    expected = assert_same_rows(
        spark, lambda session: session.range(0, 2500, 1, 1).mapInArrow(sizes, "sizes string")
    )
    assert expected.column(0).to_pylist() == ["[1000, 1000, 500]"]


def test_a_function_may_leave_rows_unread(spark: SparkSession) -> None:
    """Its process ends with it, and nothing waits for the rows. Spark takes half a minute for this."""

    def first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches).slice(0, 1)

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    assert spark.range(0, 3_000_000, 1, 1).repartition(1).mapInArrow(first, "id long").count() == 1
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "native"


@pytest.mark.since("4.3")
def test_what_a_task_has_made_can_be_collected_after_it(spark: SparkSession) -> None:
    """Only modules are kept from the garbage collector, once."""
    frozen = F.udf(lambda number: [os.getpid(), gc.get_freeze_count()], "array<long>")
    spark.conf.set("spark.volley.local.cores", "1")
    seen: dict[int, list[int]] = {}
    for _ in range(4):
        process, count = spark.range(1).select(frozen("id")).collect()[0][0]
        seen.setdefault(process, []).append(count)
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "native"
    assert len(seen) < 4, "no process runs two tasks"
    # Some of what is frozen may be freed, but nothing is added.
    assert all(counts == sorted(counts, reverse=True) and counts[0] > 10_000 for counts in seen.values())


def test_one_partition_is_one_call(spark: SparkSession) -> None:
    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"n": [sum(batch.num_rows for batch in batches)]})

    frame = spark.range(0, 20_000, 1, 2)
    for gathered in (frame.coalesce(1), frame.repartition(1), frame.coalesce(1).where("id >= 0")):
        assert gathered.mapInArrow(count, "n long").collect() == [(20_000,)]
        report = volley.last_query(spark)
        assert report is not None
        assert report.engine == "native"


def test_a_function_does_not_see_rows_that_a_filter_below_drops(spark: SparkSession) -> None:
    """A condition above drops NULLs too, but a function must not meet them before."""
    length = F.udf(lambda text: len(text), "int")
    rows(spark).createOrReplaceTempView("rows_with_nulls")

    def query(session: SparkSession) -> DataFrame:
        texts = session.table("rows_with_nulls").where("s is not null").select("s", length("s").alias("n"))
        return texts.where("n > 1 and s > '1'")

    assert_same_rows(spark, query)


def test_rows_that_were_sorted_for_a_function_come_in_that_order(spark: SparkSession) -> None:
    def runs(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        last, count = None, 0
        for batch in batches:
            for key, number in zip(batch["k"], batch["id"], strict=True):
                count += key != last
                last = key
                yield pd.DataFrame({"k": [key], "id": [number], "starts": [0]})

    def placed(session: SparkSession) -> DataFrame:
        frame = rows(session).where("k is not null").select("k", "id")
        return (
            frame.repartition("k")
            .sortWithinPartitions("k", "id")
            .mapInPandas(runs, "k long, id long, starts long")
        )

    assert_same_rows(spark, placed, ordered=True)


def test_broadcast_variables_and_large_functions(spark: SparkSession) -> None:
    table = spark.sparkContext.broadcast({number: number * 2 for number in range(40)})
    large = list(range(400_000))
    twice = F.udf(lambda number: table.value.get(number), "long")
    item = F.udf(lambda number: large[-number], "long")
    assert_same_rows(spark, lambda session: rows(session).select(twice("id"), item("id")))


def test_broadcast_variables_reach_worker_daemons_up_to_a_size(
    distributed: SparkSession, cluster: LocalCluster
) -> None:
    for key, value in cluster.settings.items():
        distributed.conf.set(key, value)
    table = distributed.sparkContext.broadcast({number: str(number) * 3 for number in range(100)})
    look_up = F.udf(lambda number: table.value.get(number), "string")
    assert_same_rows(distributed, lambda session: rows(session).select(look_up("id")))
    distributed.conf.set("spark.volley.pythonFunctions.maxFiles", "100")
    reasons = volley.explain(rows(distributed).select(look_up("id"))).reasons
    assert "broadcast variables and added files have" in str(reasons[0])
