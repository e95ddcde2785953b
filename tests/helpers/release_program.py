# SPDX-License-Identifier: Apache-2.0
"""A short look at what differs between releases of Spark, in a process with another one: tests/spark_versions."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from volley.connect_server.daemon import ConnectServer, ConnectServerSettings
from volley.errors import VersionNotSupported
from volley.security import Security
from volley.spark_versions.registry import current
from volley.testing.rows import assert_same_rows

QUERIES = (
    # The plan reader: a scan with filters, a join, both halves of an aggregate, and an order.
    "select k, sum(v), avg(d), count(distinct s) from t join u using (k) where v > 5 group by k order by k",
    # Errors and NULLs of ANSI arithmetic, a window, and a subquery.
    "select v, try_divide(v, k), rank() over (partition by k order by v) from t where v < (select max(v) from t)",
    # Spark's own code within the native plan.
    "select date_format(timestamp_seconds(v), 'EEEE, dd MMMM') as day from t",
)


def main(directory: Path) -> None:
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    settings = {"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": "2"}
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = volley.enable(builder.getOrCreate())
    columns = ["id % 7 as k", "id as v", "cast(id as decimal(12, 2)) as d", "string(id % 3) as s"]
    spark.range(100).selectExpr(*columns).write.parquet(str(directory / "t"))
    written = volley.last_query(spark)
    spark.read.parquet(str(directory / "t")).createOrReplaceTempView("t")
    spark.range(5).withColumnRenamed("id", "k").createOrReplaceTempView("u")
    for query in QUERIES:
        assert_same_rows(spark, query)
    check_function(spark)
    if not current().has_connect_server:
        check_connect_server_is_refused(spark)
    print(pyspark.__version__, written.engine if written else "none", flush=True)
    spark.stop()


def check_function(spark: SparkSession) -> None:
    def call(session: SparkSession) -> DataFrame:
        return session.table("t").select(F.udf(lambda v: v + 1, "long")("v").alias("next"))

    assert_same_rows(spark, call, native=current().knows_python_workers)


def check_connect_server_is_refused(spark: SparkSession) -> None:
    try:
        ConnectServer(spark, ConnectServerSettings(port=0), Security())
    except VersionNotSupported:
        return
    raise AssertionError("a Connect server was started")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
