# SPDX-License-Identifier: Apache-2.0
"""Orders that Spark's plans do not ask for: it leaves out an ORDER BY of rows that are in one partition and that a
join, an aggregate or a window has sorted already."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from volley.testing.rows import assert_same_rows, native_rows

_SOME = "(select * from l order by id limit 300)"


@pytest.mark.parametrize(
    "query",
    [
        f"select x.k, x.id, y.id from {_SOME} x join {_SOME} y on x.k = y.k and y.id < 9 order by x.k",
        f"select k, max(s) from {_SOME} group by k order by k",
        f"select k, max(s) from {_SOME} group by k order by k offset 2",
        f"select k, s, row_number() over (partition by k, s order by id) from {_SOME} order by k, s",
        "select v, rank() over (order by v) from l order by v",
    ],
)
@pytest.mark.parametrize("workers", ["1", "3"])
def test_shown_columns(distributed: SparkSession, query: str, workers: str) -> None:
    _tables(distributed, workers)
    assert_same_rows(distributed, query)


def test_hidden_columns(distributed: SparkSession) -> None:
    """The order is by columns that the result does not have."""
    _tables(distributed, "3")
    numbered = f"(select *, row_number() over (partition by k order by v, id) r from {_SOME})"
    rows, _ = native_rows(distributed, f"select id, k, v from {numbered}")
    ids, _ = native_rows(distributed, f"select id from {numbered} order by k, v")
    expected = sorted(rows.to_pylist(), key=lambda row: (row["k"], row["v"]))
    assert ids.column(0).to_pylist() == [row["id"] for row in expected]


@pytest.mark.parametrize(
    "query",
    [
        lambda frame: frame.repartitionByRange(400, F.desc("v")).select("id", "s"),
        lambda frame: frame.repartitionByRange(400, "s", "v").filter("k > 1").limit(7).select("v"),
        lambda frame: frame.repartitionByRange(5, F.desc("s")).sortWithinPartitions(F.desc("s"), "id"),
        lambda frame: frame.coalesce(1).filter("k > 1").sortWithinPartitions("s", F.desc("id")),
        lambda frame: frame.repartitionByRange(400, "v").limit(9).groupBy("k").agg(F.max("id")).sort("k"),
    ],
)
@pytest.mark.parametrize("workers", ["1", "3"])
def test_partitions(distributed: SparkSession, query: Callable[[DataFrame], DataFrame], workers: str) -> None:
    """The partitions of `repartitionByRange` come one after the other. Here each has one row, or is sorted."""
    _tables(distributed, workers)
    assert_same_rows(distributed, lambda spark: query(spark.table("l")), ordered=True)


def _tables(spark: SparkSession, workers: str) -> None:
    spark.conf.set("spark.volley.local.workers", workers)
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    spark.sql(
        "select id, id % 5 k, id * 37 % 1009 v, string(id * 13 % 7) s from range(0, 400, 1, 3)"
    ).createOrReplaceTempView("l")
