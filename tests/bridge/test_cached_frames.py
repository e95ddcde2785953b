# SPDX-License-Identifier: Apache-2.0
"""Queries over cached frames: native, over rows that are kept once and dropped when Spark drops the frame."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from helpers.waiting import eventually
from volley.bench.compare import difference
from volley.frame_cache.store import frame_cache
from volley.observe.spark_tasks import SparkTasks
from volley.support.reasons import Reason
from volley.testing.rows import assert_same_rows, spark_rows
from volley.testing.session import conf

pytestmark = pytest.mark.embedded

OFF = {"spark.volley.enabled": "false"}

TYPES = """
    select id, cast(id % 100 as byte) i8, cast(id * 7 as short) i16, cast(id as int) i32, cast(id as float) / 3 f,
        if(id % 5 = 0, null, cast(id as double) / 7) d, cast(id as decimal(10, 2)) / 3 m,
        cast(id as decimal(38, 18)) w, concat('text ', id % 10) s, cast(concat('b', id) as binary) x,
        id % 2 = 0 b, date_add(date'1999-12-30', cast(id as int)) dt,
        timestamp'2001-02-03 04:05:06.789' + make_interval(0, 0, 0, cast(id as int)) ts,
        cast(timestamp'2001-02-03 04:05:06.789' as timestamp_ntz) n,
        if(id % 3 = 0, null, array(id, null)) a, named_struct('p', id, 'q', array(concat('q', id))) st
    from range(0, 500, 1, 3)
"""

Query = Callable[[DataFrame], DataFrame]

QUERIES: tuple[Query, ...] = (
    lambda t: t,
    lambda t: t.where("id % 7 = 3 and d > 1").groupBy("s").agg(F.sum("id"), F.max("ts"), F.avg("m")),
    lambda t: t.join(t.select(F.col("id").alias("other"), "s"), F.col("id") == F.col("other") + 1),
    lambda t: t.where(F.col("id") > t.select(F.avg("id")).scalar()).select("s", "id", "s"),
    lambda t: t.select(F.lit(1)),
)
MORE_QUERIES: tuple[Query, ...] = (
    lambda t: t.groupBy().count(),
    lambda t: t.orderBy(F.desc("s"), "id").limit(7),
    lambda t: t.distinct().select("s").distinct(),
    lambda t: t.select("id", F.explode("a").alias("e")),
    lambda t: t.selectExpr("id", "row_number() over (partition by s order by id) n"),
    lambda t: t.select("s").union(t.select("s")).groupBy("s").count(),
    lambda t: t.where("id < 0"),
)


@pytest.fixture(autouse=True)
def no_frames_before_and_after(spark: SparkSession) -> Iterator[None]:
    spark.catalog.clearCache()
    assert frame_cache().is_empty
    yield
    spark.catalog.clearCache()
    assert frame_cache().is_empty


def kept() -> int:
    return frame_cache().usage().frames


def engine(spark: SparkSession) -> str:
    report = volley.last_query(spark)
    assert report is not None
    return report.engine


def natively(spark: SparkSession, frame: DataFrame) -> pa.Table:
    """The rows, which must come from Volley without one task of Spark."""
    with SparkTasks(spark) as tasks:
        table = frame.toArrow()
    report = volley.last_query(spark)
    assert report is not None
    assert (report.engine, tasks.count) == ("native", 0), report.reasons
    return table


@pytest.mark.parametrize(
    "queries", [QUERIES, pytest.param(MORE_QUERIES, marks=pytest.mark.slow)], ids=["some", "more"]
)
def test_queries_of_all_kinds_and_types(spark: SparkSession, queries: tuple[Query, ...]) -> None:
    def asked(query: Query) -> Callable[[SparkSession], DataFrame]:
        return lambda session: query(session.sql(TYPES))

    expected = [spark_rows(spark, asked(query)) for query in queries]
    cached = spark.sql(TYPES).cache()
    for query, rows in zip(queries, expected, strict=True):
        found = natively(spark, query(cached))
        assert difference(rows, found, None) is None
        assert found.schema == rows.schema
    assert kept() == 1
    assert cached.storageLevel.useMemory


def test_types_that_only_native_operators_share(spark: SparkSession) -> None:
    text = """select id, map('k', id, concat('n', id % 3), null) m, make_dt_interval(0, cast(id as int)) span,
        parse_json(concat('[', id, ']')) v from range(0, 200, 1, 3)"""

    def asked(table: DataFrame) -> DataFrame:
        return table.where("id > 5").selectExpr("id", "m", "m['k'] as k", "span", "to_json(v) as v")

    expected = spark_rows(spark, lambda session: asked(session.sql(text)))
    for level in (StorageLevel.MEMORY_AND_DISK, StorageLevel.DISK_ONLY):
        cached = spark.sql(text).persist(level)
        for _ in range(2):
            assert difference(expected, natively(spark, asked(cached)), None) is None
        assert kept() == 1
        cached.unpersist(blocking=True)


def test_nothing_is_computed_before_the_first_query_and_once_then(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.range(100).write.parquet(str(tmp_path / "t"))
    cached = spark.read.parquet(str(tmp_path / "t")).selectExpr("id", "id * 2 as v").cache()
    assert kept() == 0
    assert natively(spark, cached.agg(F.sum("v"))).to_pylist() == [{"sum(v)": 9900}]
    assert kept() == 1
    for file in (tmp_path / "t").glob("*.parquet"):
        file.unlink()
    # Not read again.
    assert natively(spark, cached.agg(F.max("v"))).to_pylist() == [{"max(v)": 198}]


class TestOrder:
    """A cached frame has an order if its query has one, and Spark leaves out sorts because of it."""

    def test_rows_are_in_the_order_of_the_frame(self, spark: SparkSession) -> None:
        cached = spark.sql(TYPES).orderBy(F.desc("s"), F.desc("id")).cache()
        expected = spark_rows(spark, spark.sql(TYPES).orderBy(F.desc("s"), F.desc("id")))
        assert natively(spark, cached) == expected
        assert natively(spark, cached.limit(30)) == expected.slice(0, 30)
        assert natively(spark, cached.where("id % 3 = 1").select("id")).column(0).to_pylist() == [
            n for n in expected.column("id").to_pylist() if n % 3 == 1
        ]
        # Spark sees that it is sorted already.
        assert natively(spark, cached.orderBy(F.desc("s"), F.desc("id"))) == expected
        assert (
            difference(
                spark_rows(spark, spark.sql(TYPES).groupBy("s").count()),
                natively(spark, cached.groupBy("s").count()),
                None,
            )
            is None
        )

    @pytest.mark.parametrize("partitions", ["1", pytest.param("3", marks=pytest.mark.slow)])
    def test_sorts_and_exchanges_that_spark_leaves_out(self, spark: SparkSession, partitions: str) -> None:
        settings = {
            "spark.sql.shuffle.partitions": partitions,
            "spark.sql.autoBroadcastJoinThreshold": "-1",
            "spark.sql.adaptive.enabled": "false",
        }
        with conf(spark, settings):
            pairs = "select a.id, a.s, b.id other from ({0}) a join ({0}) b on a.s = b.s and a.id < b.id"
            queries: tuple[tuple[Query, list[int] | None], ...] = (
                (lambda t: t.orderBy("s", "id", "other"), [1, 0, 2]),
                (lambda t: t.groupBy("s", "id").count().orderBy("s", "id"), [0, 1]),
                (lambda t: t.sortWithinPartitions("s", "id", "other").limit(10_000_000), None),
            )
            expected = [spark_rows(spark, query(spark.sql(pairs.format(TYPES)))) for query, _ in queries]
            joined = spark.sql(pairs.format(TYPES)).cache()
            for (query, order), rows in zip(queries, expected, strict=True):
                assert difference(rows, query(joined).toArrow(), order) is None
                assert engine(spark) == "native"


class TestNondeterminism:
    def test_random_rows_are_the_same_for_everybody(self, spark: SparkSession) -> None:
        cached = (
            spark.range(200).selectExpr("id", "shuffle(array(1D, 2D)) r", "shuffle(array(id, 1)) u").cache()
        )
        first = cached.orderBy("id").toArrow()
        report = volley.last_query(spark)
        assert report is not None
        assert report.engine == "mixed"
        assert [reason.reason for reason in report.reasons] == [Reason.CACHED_BY_SPARK]
        assert natively(spark, cached.orderBy("id")) == first
        assert natively(spark, cached.where("id < 5").orderBy("id")) == first.slice(0, 5)
        with conf(spark, OFF):
            assert cached.orderBy("id").toArrow() == first

    def test_what_depends_on_an_order_that_nobody_gave(self, spark: SparkSession, tmp_path: Path) -> None:
        spark.range(1000).repartition(3).write.parquet(str(tmp_path / "t"))
        cached = spark.read.parquet(str(tmp_path / "t")).limit(17).cache()
        first = sorted(row.id for row in cached.collect())
        assert sorted(natively(spark, cached).column(0).to_pylist()) == first
        with conf(spark, OFF):
            assert sorted(row.id for row in cached.collect()) == first

    def test_rows_that_spark_cached_before(self, spark: SparkSession) -> None:
        cached = spark.range(50).selectExpr("id", "rand(3) r").cache()
        with conf(spark, OFF):
            expected = cached.orderBy("id").toArrow()
        assert cached.orderBy("id").toArrow() == expected
        assert natively(spark, cached.orderBy("id")) == expected

    def test_a_type_that_does_not_cross(self, spark: SparkSession) -> None:
        cached = spark.range(5).selectExpr("id", "shuffle(array(1D, 2D)) r", "map('a', id) m").cache()
        first = {row.id: row.r for row in cached.collect()}
        assert {row.id: row.r for row in cached.select("id", "r").collect()} == first
        assert engine(spark) == "spark"


class TestEnd:
    def test_unpersist_frees_the_memory(self, spark: SparkSession) -> None:
        gc.collect()
        before = pa.total_allocated_bytes()
        cached = spark.range(1_000_000).selectExpr("id", "id % 10 k", "id * 2 v").cache()
        natively(spark, cached.groupBy("k").sum("v"))
        assert frame_cache().usage().memory_bytes >= 24_000_000
        assert pa.total_allocated_bytes() - before >= 24_000_000
        cached.unpersist()
        assert kept() == 0

        def is_free() -> bool:
            gc.collect()
            return bool(pa.total_allocated_bytes() - before < 1_000_000)

        eventually(is_free)
        # The frame still has its plan, now without a cache.
        assert natively(spark, cached.where("id = 7")).num_rows == 1
        assert kept() == 0
        fresh = cached.cache()
        assert natively(spark, fresh.agg(F.max("id"))).to_pylist() == [{"max(id)": 999_999}]
        assert kept() == 1

    def test_an_older_frame_reads_its_plan_after_unpersist(self, spark: SparkSession) -> None:
        cached = spark.range(10).selectExpr("id", "id + 1 v").cache()
        assert natively(spark, cached).num_rows == 10
        cached.unpersist()
        assert natively(spark, cached).num_rows == 10
        assert kept() == 0

    @pytest.mark.parametrize(
        "drop",
        [
            lambda spark: spark.catalog.clearCache(),
            lambda spark: spark.catalog.uncacheTable("v"),
            lambda spark: spark.sql("UNCACHE TABLE v"),
            lambda spark: spark.catalog.dropTempView("v"),
            lambda spark: spark.sql("DROP VIEW v"),
            lambda spark: spark.range(3).createOrReplaceTempView("v") or spark.sql("select 1"),
        ],
    )
    def test_whatever_ends_the_caching(
        self, spark: SparkSession, drop: Callable[[SparkSession], Any]
    ) -> None:
        spark.range(10).createOrReplaceTempView("v")
        spark.catalog.cacheTable("v")
        assert spark.catalog.isCached("v")
        assert natively(spark, spark.table("v")).num_rows == 10
        assert kept() == 1
        drop(spark)
        assert kept() == 0

    def test_frames_below_other_frames(self, spark: SparkSession) -> None:
        below = spark.range(100).selectExpr("id", "id % 4 k").cache()
        above = below.groupBy("k").count().cache()
        assert natively(spark, above).num_rows == 4
        assert kept() == 2
        below.unpersist()
        # Spark plans the other frame anew, unless it has filled it itself.
        assert kept() == 0
        again = spark.range(100).selectExpr("id", "id % 4 k").groupBy("k").count()
        assert natively(spark, again).num_rows == 4
        assert kept() == 1


class TestChanges:
    def test_a_table_that_changes(self, spark: SparkSession) -> None:
        spark.sql("CREATE TABLE changing USING parquet AS SELECT id FROM range(10)")
        try:
            spark.sql("CACHE LAZY TABLE changing")
            assert natively(spark, spark.sql("select count(*) n from changing")).to_pylist() == [{"n": 10}]
            spark.sql("INSERT INTO changing VALUES (100), (101)")
            assert natively(spark, spark.sql("select count(*) n from changing")).to_pylist() == [{"n": 12}]
            spark.range(3).write.mode("overwrite").insertInto("changing")
            assert natively(spark, spark.sql("select count(*) n from changing")).to_pylist() == [{"n": 3}]
            assert spark.catalog.isCached("changing")
            assert kept() == 1
        finally:
            spark.sql("DROP TABLE changing")
        assert kept() == 0

    def test_files_that_change_are_seen_after_refresh(self, spark: SparkSession, tmp_path: Path) -> None:
        path = str(tmp_path / "t")
        spark.range(10).write.parquet(path)
        spark.sql(f"CREATE TABLE refreshed (id BIGINT) USING parquet LOCATION '{path}'")
        try:
            spark.catalog.cacheTable("refreshed")
            count = "select count(*) n from refreshed"
            assert natively(spark, spark.sql(count)).to_pylist() == [{"n": 10}]
            pa.parquet.write_table(pa.table({"id": list(range(5))}), tmp_path / "t" / "more.parquet")
            assert natively(spark, spark.sql(count)).to_pylist() == [{"n": 10}]
            spark.sql("REFRESH TABLE refreshed")
            assert kept() == 0
            assert natively(spark, spark.sql(count)).to_pylist() == [{"n": 15}]
        finally:
            spark.sql("DROP TABLE refreshed")


def test_threads_that_read_a_frame_first(spark: SparkSession) -> None:
    cached = spark.range(300_000).selectExpr("id", "id % 100 k").cache()
    found: list[list[Any]] = []

    def ask() -> None:
        found.append(sorted(cached.groupBy("k").count().collect()))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert found[0] == found[1] == found[2] == [(k, 3000) for k in range(100)]
    assert kept() == 1


class TestStorage:
    def test_levels_and_the_budget(self, spark: SparkSession) -> None:
        query = "select id, concat('some text ', id) s from range(100000)"
        frames = [
            spark.sql(f"{query} where id >= {number}").persist(level)
            for number, level in enumerate(
                (StorageLevel.DISK_ONLY, StorageLevel.MEMORY_AND_DISK, StorageLevel.MEMORY_ONLY)
            )
        ]
        with conf(spark, {"spark.volley.cache.memory": "4m"}):
            for number, frame in enumerate(frames):
                assert natively(spark, frame.agg(F.count("s"))).column(0).to_pylist() == [100_000 - number]
                assert frame_cache().usage().memory_bytes <= 4 << 20
            usage = frame_cache().usage()
            assert usage.disk_bytes >= 2 * 100_000 * 8
            assert natively(spark, frames[1].where("id = 99999")).num_rows == 1

    def test_frames_are_left_to_spark_if_told_to(self, spark: SparkSession) -> None:
        cached = spark.range(10).cache()
        with conf(spark, {"spark.volley.cache.memory": "0"}):
            assert cached.count() == 10
            report = volley.last_query(spark)
        assert report is not None
        assert report.engine == "spark"
        assert "cache.memory" in str(report.reasons[0])
        assert kept() == 0


class TestStatements:
    def test_cache_table_fills_the_cache(self, spark: SparkSession) -> None:
        with SparkTasks(spark) as tasks:
            spark.sql("CACHE TABLE eager OPTIONS ('storageLevel' 'MEMORY_ONLY') AS SELECT id FROM range(20)")
        assert (engine(spark), tasks.count, kept()) == ("native", 0, 1)
        assert spark.catalog.isCached("eager")
        assert natively(spark, spark.table("eager")).num_rows == 20
        spark.sql("UNCACHE TABLE IF EXISTS eager")
        assert kept() == 0
        spark.range(5).createOrReplaceTempView("`odd name`")
        spark.sql("cache table `odd name`")
        assert kept() == 1

    def test_a_lazy_one_does_not(self, spark: SparkSession) -> None:
        spark.sql("CACHE LAZY TABLE lazy AS SELECT id FROM range(20)")
        assert kept() == 0
        assert natively(spark, spark.table("lazy")).num_rows == 20
        assert kept() == 1


@pytest.mark.slow
def test_with_a_part_that_only_spark_runs(functions_on_spark: SparkSession) -> None:
    spark = functions_on_spark
    double = F.udf(lambda value: value * 2, "bigint")
    cached = spark.range(1000).selectExpr("id", "id % 10 k").cache()
    asked = cached.groupBy("k").agg(F.sum("id").alias("v")).select("k", double("v").alias("w"))
    assert_same_rows(spark, asked, native=False)
    # And a frame of which Spark computes the rows, with a function.
    called = spark.range(100).select(double("id").alias("v")).cache()
    assert sorted(row.v for row in called.collect()) == list(range(0, 200, 2))
    assert natively(spark, called.agg(F.sum("v"))).to_pylist() == [{"sum(v)": 9900}]
