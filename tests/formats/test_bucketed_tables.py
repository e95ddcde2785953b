# SPDX-License-Identifier: Apache-2.0
"""Bucketed tables: Spark's plans have no exchange where buckets bring rows together, and native plans add their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import volley
from volley.support.reasons import Reason
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf


@pytest.fixture
def tables(distributed: SparkSession) -> Iterator[SparkSession]:
    spark = distributed
    with conf(spark, {"spark.volley.enabled": "false"}):
        rows = spark.range(300).selectExpr("id", "if(id % 9 = 0, null, id % 31) k", "id / 7 x")
        rows.write.bucketBy(4, "k").sortBy("id").saveAsTable("bucketed_a", mode="overwrite")
        rows.where("id % 2 = 0").write.bucketBy(4, "k").saveAsTable("bucketed_b", mode="overwrite")
    yield spark
    for name in ("bucketed_a", "bucketed_b"):
        spark.sql(f"drop table {name}")


def test_queries_that_need_no_exchange_of_spark(tables: SparkSession) -> None:
    by_buckets = {
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.sources.bucketing.autoBucketedScan.enabled": "false",
    }
    queries = (
        "select a.id, b.id, a.x from bucketed_a a join bucketed_b b on a.k = b.k",
        "select k, count(*), sum(x) from bucketed_a group by k",
        "select a.k, count(*) from bucketed_a a left join bucketed_b b on a.k = b.k and a.id = b.id group by a.k",
        "select id, row_number() over (partition by k order by id) from bucketed_a where k = 7 or k is null",
        "select k, count(distinct id) from bucketed_a where k in (3, 5) group by k",
    )
    with conf(tables, by_buckets):
        for workers in ("1", "3"):
            with conf(tables, {"spark.volley.local.workers": workers}):
                for query in queries:
                    assert_same_rows(tables, query)
        plan = tables.sql(queries[0])._jdf.queryExecution().executedPlan().toString()
        assert "Exchange" not in plan
        explained = volley.explain(tables.sql("select k, first(id) from bucketed_a group by k"))
        assert {reason.reason for reason in explained.reasons} == {Reason.NONDETERMINISTIC}
