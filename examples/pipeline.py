# SPDX-License-Identifier: Apache-2.0
"""A pipeline as they are: read, clean, join, a Python function, aggregate, rank, write partitioned, read back.

python examples/pipeline.py                                   # on Spark
python examples/pipeline.py --volley                          # the same with Volley
python examples/pipeline.py --volley --master spark://host:7077 --transport spark --directory /shared

Nothing in `run` knows of Volley; both print the same rows. What Volley ran, and where, goes to the error stream.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F


def make_source(spark: SparkSession, source: Path, trips: int = 20_000) -> None:
    """Trips by day, some of them with holes, and the zones that they begin in."""
    spark.range(trips).selectExpr(
        "id",
        "if(id % 50 = 0, null, cast(id % 40 as int)) as zone",
        "cast(3 + id % 97 * 0.25 as decimal(12, 2)) as fare",
        "if(id % 31 = 0, -1.0, id % 13 * 0.7) as miles",
        "cast(date_add(date'2026-01-01', cast(id % 14 as int)) as string) as day",
    ).repartition(4).write.mode("overwrite").partitionBy("day").parquet(str(source / "trips"))
    zones = spark.range(40).selectExpr("cast(id as int) as zone", "concat('zone-', id % 7, '-', id) as name")
    zones.coalesce(1).write.mode("overwrite").parquet(str(source / "zones"))


def run(spark: SparkSession, source: Path, target: Path) -> list[Row]:
    """The best zones of each borough and week, written by week and read back."""
    borough = F.udf(lambda name: "borough " + name.split("-")[1], "string")
    trips = spark.read.parquet(str(source / "trips"))
    zones = spark.read.parquet(str(source / "zones"))
    clean = trips.where("zone is not null and miles >= 0").withColumn("week", F.weekofyear(F.to_date("day")))
    named = clean.join(zones.withColumn("borough", borough("name")), "zone")
    totals = named.groupBy("week", "borough", "name").agg(
        F.sum("fare").alias("fares"), F.count("*").alias("trips"), F.max("day").alias("last_day")
    )
    best = Window.partitionBy("week", "borough").orderBy(F.desc("fares"), "name")
    ranked = totals.withColumn("place", F.row_number().over(best)).where("place <= 3")
    ranked.write.mode("overwrite").partitionBy("week").parquet(str(target / "best"))

    # A second run for one week, as after a late delivery: only its folder is replaced.
    late: DataFrame = ranked.where("week = 2").withColumn("trips", F.col("trips") + 1)
    late.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy("week").parquet(
        str(target / "best")
    )
    written = spark.read.parquet(str(target / "best"))
    return (
        written.orderBy("week", "borough", "place")
        .select("week", "borough", "place", "name", "trips")
        .collect()
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--volley", action="store_true")
    options.add_argument("--master", default="local[*]")
    options.add_argument("--transport", default="local", choices=("local", "spark"))
    options.add_argument("--directory", default=None, help="seen by all executors; default: a temporary one")
    chosen = options.parse_args()
    spark = (
        SparkSession.builder.master(chosen.master)
        .appName("pipeline")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory(dir=chosen.directory) as directory:
        make_source(spark, Path(directory) / "source")
        if chosen.volley:
            import volley

            spark.conf.set("spark.volley.transport", chosen.transport)
            volley.enable(spark)
        rows = run(spark, Path(directory) / "source", Path(directory) / "target")
        if chosen.volley:
            print(volley.last_query(spark), file=sys.stderr)
        for row in rows:
            print(*row, sep="\t")
    spark.stop()


if __name__ == "__main__":
    main()
