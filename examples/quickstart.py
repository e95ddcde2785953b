# SPDX-License-Identifier: Apache-2.0
"""Volley in one page: an ordinary PySpark program, one more line, and a look at what happened.

python examples/quickstart.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import volley


def main() -> None:
    spark = (
        SparkSession.builder.master("local[*]")
        .appName("quickstart")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as directory:
        # Some data. Writing is Spark's work; reading it back and everything after is Volley's.
        trips_path = str(Path(directory) / "trips")
        spark.range(1_000_000).select(
            (F.col("id") % 263).cast("int").alias("zone"),
            F.expr("cast(3 + id % 97 * 0.25 as decimal(12, 2))").alias("fare"),
            F.date_add(F.lit("2026-01-01"), (F.col("id") % 90).cast("int")).alias("day"),
        ).write.parquet(trips_path)

        volley.enable(spark)  # the one line

        trips = spark.read.parquet(trips_path)
        by_zone = (
            trips.where(F.month("day") == 2)
            .groupBy("zone")
            .agg(F.count("*").alias("trips"), F.sum("fare").alias("fares"), F.avg("fare").alias("average"))
            .orderBy(F.desc("fares"), "zone")
            .limit(5)
        )
        by_zone.show()

        volley.explain(by_zone)  # Spark's plan, with a verdict for each operator
        print(volley.last_query(spark))  # where the last action ran, and what it took

        # Only Spark shuffles arrays: the query is Spark's, and its report says why.
        trips.select(F.shuffle(F.array("zone", F.month("day"))).alias("any_order")).limit(3).collect()
        print(volley.last_query(spark))
    spark.stop()


if __name__ == "__main__":
    main()
