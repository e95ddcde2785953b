# SPDX-License-Identifier: Apache-2.0
"""Aggregate functions over whole window partitions, which run as aggregates."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import volley
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

_ROWS = """select id, if(id % 7 = 0, null, id % 4) k, if(id % 5 = 0, null, id * 7919 % 83) v, if(id % 6 = 0, null,
cast(id as string)) s, case id % 9 when 0 then double('NaN') when 1 then -0.0D when 2 then 0.0D else id % 3 end g,
array(id, null) a from range(150)"""
_QUERIES = (
    "select id, s, a, median(v) over (partition by k), percentile(v, array(0.1, 0.9)) over (partition by k) from t",
    "select id, max_by(s, id) over (partition by g), skewness(v) over (partition by g), row_number() over "
    "(partition by g order by id), sum(v) over (partition by g) from t",
    "select k, count(*), max(m) from (select k, bit_or(v) over (partition by k) m from t) group by k",
    "select id, corr(v, id) over (), approx_count_distinct(s) over () from t",
    "select id, median(v) over () from t where id < 0",
    "select id, percentile_cont(0.5) within group (order by v) over (partition by k, id % 2) from t",
    "select k, v from (select k, v, median(v) over (partition by k) m from t) where v = m",
)


@pytest.mark.parametrize("workers", ["1", "3"])
def test_queries(distributed: SparkSession, tmp_path_factory: pytest.TempPathFactory, workers: str) -> None:
    path = str(tmp_path_factory.mktemp("partitions") / "t")
    distributed.sql(_ROWS).repartition(3).write.parquet(path)
    distributed.read.parquet(path).createOrReplaceTempView("t")
    with conf(distributed, {"spark.volley.local.workers": workers}):
        for query in _QUERIES if workers == "3" else _QUERIES[:3]:
            assert_same_rows(distributed, query)
    # A moving frame is another matter.
    frame = distributed.sql("select approx_count_distinct(v) over (partition by k order by id) from t")
    assert not volley.explain(frame).native


@pytest.mark.embedded
def test_functions_of_the_jvm(spark: SparkSession) -> None:
    query = "select id, hex(bitmap_construct_agg(id % 20) over (partition by id % 3)) from t"
    spark.sql(_ROWS).createOrReplaceTempView("t")
    assert_same_rows(spark, query)
