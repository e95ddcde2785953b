# SPDX-License-Identifier: Apache-2.0
"""Orders that Spark's plans do not ask for: it leaves out an ORDER BY of rows that are in one partition and that a
join, an aggregate or a window has sorted already."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
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
        lambda frame: frame.repartitionByRange(400, "v").limit(9).groupBy("k").agg(F.max("id")).sort("k"),
    ],
)
@pytest.mark.parametrize("workers", ["1", "3"])
def test_partitions(distributed: SparkSession, query: Callable[[DataFrame], DataFrame], workers: str) -> None:
    """The partitions of `repartitionByRange` come one after the other. Here each has one row, or is sorted."""
    _tables(distributed, workers)
    assert_same_rows(distributed, lambda spark: query(spark.table("l")), ordered=True)


@pytest.mark.parametrize(
    "query",
    [
        "(select * from l order by v limit 9) union all (select * from l order by id desc limit 7)",
        "select s, id from l where id = 7 union all (select s, v from l order by k, v)",
        "select t.id, d.x from (select * from l order by v limit 50) t left join d on t.k = d.k",
        "select /*+ broadcast(d) */ t.id, x from (select id, k from l order by s, id limit 300) t join d using (k)",
    ],
)
@pytest.mark.parametrize("workers", ["1", "3"])
def test_inner_orders(distributed: SparkSession, query: str, workers: str) -> None:
    """An ORDER BY that is not the last operator, but shows in the order of the rows."""
    _tables(distributed, workers)
    distributed.conf.set("spark.sql.autoBroadcastJoinThreshold", "10m")
    distributed.sql("select id % 5 k, id * 10 x from range(5)").createOrReplaceTempView("d")
    assert_same_rows(distributed, query, ordered=True)


def test_small_files(spark: SparkSession, tmp_path: Path) -> None:
    """Without an ORDER BY, too, programs see the order in which Spark reads files: the largest first."""
    for first, rows in ((0, 40), (1000, 3), (2000, 900), (3000, 200)):
        spark.range(first, first + rows, 1, 1).write.mode("append").parquet(str(tmp_path / "files"))
    files = spark.read.parquet(str(tmp_path / "files"))
    assert_same_rows(spark, lambda _: files.where("id % 3 <> 1").selectExpr("id", "id % 5 k"), ordered=True)
    assert_same_rows(spark, lambda _: files.limit(5).union(files.where("id < 20")), ordered=True)
    tail = files.where("id % 3 = 0").tail(4)
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "native"
    spark.conf.set("spark.volley.enabled", "false")
    assert tail == files.where("id % 3 = 0").tail(4)


@pytest.mark.parametrize("workers", ["1", "3"])
def test_one_partition(distributed: SparkSession, tmp_path: Path, workers: str) -> None:
    _tables(distributed, workers)
    distributed.table("l").write.partitionBy("k").parquet(str(tmp_path / "files"))
    files = distributed.read.parquet(str(tmp_path / "files"))
    assert_same_rows(
        distributed,
        lambda spark: files.coalesce(1).filter("k > 1").sortWithinPartitions("s", F.desc("id")),
        ordered=True,
    )


@pytest.mark.parametrize("workers", ["1", "3"])
def test_written_in_one_partition(distributed: SparkSession, tmp_path: Path, workers: str) -> None:
    _tables(distributed, workers)
    header = distributed.createDataFrame([("id", "v")], "a string, b string")
    rows = distributed.table("l").sort("v").selectExpr("string(id)", "string(v)")
    header.union(rows).coalesce(1).write.csv(str(tmp_path / "out"))
    (written,) = (tmp_path / "out").glob("part-*")
    expected = distributed.table("l").sort("v").collect()
    assert written.read_text().splitlines() == ["id,v", *(f"{row.id},{row.v}" for row in expected)]


def _tables(spark: SparkSession, workers: str) -> None:
    spark.conf.set("spark.volley.local.workers", workers)
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    spark.sql(
        "select id, id % 5 k, id * 37 % 1009 v, string(id * 13 % 7) s from range(0, 400, 1, 3)"
    ).createOrReplaceTempView("l")
