# SPDX-License-Identifier: Apache-2.0
"""The pipeline of the demo: ordinary PySpark code that does not know about Volley."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

Step = Callable[["Tables"], DataFrame]


@dataclass(frozen=True)
class Tables:
    """Reads a TPC-H table by name, as Parquet."""

    spark: SparkSession
    directory: Path

    def __call__(self, name: str) -> DataFrame:
        return self.spark.read.parquet(str(self.directory / name))


def revenue_by_region(table: Tables) -> DataFrame:
    """Revenue by region and year"""
    revenue = F.col("l_extendedprice") * (1 - F.col("l_discount"))
    return (
        table("lineitem")
        .join(table("orders"), F.col("l_orderkey") == F.col("o_orderkey"))
        .join(table("customer"), F.col("o_custkey") == F.col("c_custkey"))
        .join(table("nation"), F.col("c_nationkey") == F.col("n_nationkey"))
        .join(table("region"), F.col("n_regionkey") == F.col("r_regionkey"))
        .where(F.col("o_orderdate") >= "1996-01-01")
        .groupBy(F.col("r_name").alias("region"), F.year("o_orderdate").alias("year"))
        .agg(F.sum(revenue).alias("revenue"), F.countDistinct("o_orderkey").alias("orders"))
        .orderBy("region", "year")
    )


def best_customers(table: Tables) -> DataFrame:
    """The best customer of each nation in Europe"""
    spent = (
        table("orders")
        .join(table("customer"), F.col("o_custkey") == F.col("c_custkey"))
        .join(table("nation"), F.col("c_nationkey") == F.col("n_nationkey"))
        .join(table("region"), F.col("n_regionkey") == F.col("r_regionkey"))
        .where(F.col("r_name") == "EUROPE")
        .groupBy(F.col("n_name").alias("nation"), F.col("c_name").alias("customer"))
        .agg(F.sum("o_totalprice").alias("spent"), F.count("*").alias("orders"))
    )
    place = F.row_number().over(Window.partitionBy("nation").orderBy(F.desc("spent"), "customer"))
    return spent.withColumn("place", place).where("place = 1").drop("place").orderBy(F.desc("spent"))


def late_deliveries(table: Tables) -> DataFrame:
    """Suppliers who kept the most orders waiting"""
    late = table("lineitem").where("l_receiptdate > l_commitdate").where("l_returnflag = 'R'")
    return (
        late.join(table("supplier"), F.col("l_suppkey") == F.col("s_suppkey"))
        .join(table("nation"), F.col("s_nationkey") == F.col("n_nationkey"))
        .groupBy(F.col("s_name").alias("supplier"), F.col("n_name").alias("nation"))
        .agg(
            F.count("*").alias("late items"),
            F.avg(F.datediff("l_receiptdate", "l_commitdate")).alias("days late"),
        )
        .orderBy(F.desc("late items"), "supplier")
        .limit(8)
    )


STEPS: tuple[Step, ...] = (revenue_by_region, best_customers, late_deliveries)
