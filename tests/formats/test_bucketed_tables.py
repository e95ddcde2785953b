# SPDX-License-Identifier: Apache-2.0
"""Bucketed tables: Spark's plans have no exchange where buckets bring rows together, and native plans add their own."""

from __future__ import annotations

from pyspark.sql import SparkSession

from volley.testing.rows import assert_same_rows
from volley.testing.session import conf


def test_several_workers_and_the_order_of_rows(distributed: SparkSession) -> None:
    spark = distributed
    by_buckets = {
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.sources.bucketing.autoBucketedScan.enabled": "false",
    }
    with conf(spark, {"spark.volley.enabled": "false"}):
        rows = spark.range(300).selectExpr("id", "if(id % 9 = 0, null, id % 31) k", "id / 7 x")
        rows.write.bucketBy(4, "k").sortBy("id").saveAsTable("in_buckets", mode="overwrite")
    try:
        with conf(spark, {**by_buckets, "spark.volley.local.workers": "3"}):
            query = "select a.k, count(*), sum(b.x) from in_buckets a left join in_buckets b on a.k = b.k group by a.k"
            assert "Exchange" not in spark.sql(query)._jdf.queryExecution().executedPlan().toString()
            assert_same_rows(spark, query)
            # Spark reads the files of a bucket together, so the rows are not in the order of the files.
            assert_same_rows(spark, "select first(id), collect_list(id) from in_buckets")
    finally:
        spark.sql("drop table in_buckets")
