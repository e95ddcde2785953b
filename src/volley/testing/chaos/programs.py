# SPDX-License-Identifier: Apache-2.0
"""Programs beside SQL: Python functions, rows that cross between the engines, split feeds and cached frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from volley.testing.sources import Numbers

_numbers = count(1)


def udf_of_rows(spark: SparkSession) -> DataFrame:
    first = F.udf(lambda text: text.split("-")[0], "string")
    orders = spark.table("orders").withColumn("rank", first("o_orderpriority"))
    joined = orders.join(spark.table("customer"), F.col("o_custkey") == F.col("c_custkey"))
    return joined.groupBy("rank", "c_mktsegment").agg(F.count("*").alias("n"), F.sum("o_totalprice"))


def udf_of_groups(spark: SparkSession) -> DataFrame:
    def middle(group: pd.DataFrame) -> pd.DataFrame:
        ordered = group.sort_values("o_orderkey")
        return ordered.iloc[[len(ordered) // 2]][["o_custkey", "o_orderkey"]]

    orders = spark.table("orders").select("o_custkey", "o_orderkey")
    return orders.groupBy("o_custkey").applyInPandas(middle, "o_custkey long, o_orderkey long")


def map_in_pandas(spark: SparkSession) -> DataFrame:
    def even(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame[frame["l_orderkey"] % 2 == 0]

    lines = spark.table("lineitem").select("l_orderkey", "l_quantity")
    kept = lines.mapInPandas(even, lines.schema)
    return kept.groupBy("l_orderkey").agg(F.sum("l_quantity"), F.count("*"))


def rows_of_spark(spark: SparkSession) -> DataFrame:
    """Mixed: Spark makes the rows of an RDD, which are joined natively."""
    rows = spark.sparkContext.parallelize([(number, f"name {number}") for number in range(25)], 3)
    named = spark.createDataFrame(rows, "key int, label string")
    orders = spark.table("customer").join(named, F.col("c_nationkey") == F.col("key"))
    return orders.groupBy("label").agg(F.count("*"), F.max("c_name"))


def rows_for_spark(spark: SparkSession) -> DataFrame:
    """Mixed: what is sampled by Spark is a native join."""
    joined = spark.table("lineitem").join(spark.table("orders"), F.col("l_orderkey") == F.col("o_orderkey"))
    counted = joined.groupBy("o_orderpriority").agg(F.count("*").alias("n"), F.max("l_shipdate"))
    return counted.withColumn("hash", F.hash("o_orderpriority"))


def feed(spark: SparkSession) -> DataFrame:
    """Splits that are discovered while tasks read them."""
    spark.dataSource.register(Numbers)
    options = {"splits": "60", "rows": "40", "pause": "0.002"}
    numbers = spark.read.format("numbers").options(**options).load()
    return numbers.groupBy("split").agg(F.sum("id"), F.count("*"))


PROGRAMS: dict[str, Callable[[SparkSession], DataFrame]] = {
    "udf-rows": udf_of_rows,
    "udf-groups": udf_of_groups,
    "udf-map": map_in_pandas,
    "mixed-from": rows_of_spark,
    "mixed-to": rows_for_spark,
    "feed": feed,
    "cached": lambda spark: cached_rows(spark, 0),
}
"""Each makes the same rows every time. `cached` reads its frame twice, through a cache."""


def cached_rows(spark: SparkSession, number: int) -> DataFrame:
    """The frame to cache. Another number makes it another one for Spark's cache, with the same rows."""
    lines = spark.table("lineitem").where(f"l_orderkey > {-1 - number}")
    return lines.groupBy("l_suppkey").agg(F.sum("l_quantity").alias("q"), F.count("*").alias("n"))


def new_number() -> int:
    return next(_numbers)
