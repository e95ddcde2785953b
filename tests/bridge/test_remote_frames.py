# SPDX-License-Identifier: Apache-2.0
"""Cached frames on a cluster: kept in the stores of its workers, found there by later queries, or computed again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from helpers.crossings import held_bytes
from helpers.waiting import eventually
from volley.bench.compare import difference
from volley.cluster import LocalCluster
from volley.frame_cache.store import FrameLabel, frame_cache
from volley.observe.report import QueryReport
from volley.testing.rows import spark_rows
from volley.testing.session import conf

pytestmark = pytest.mark.embedded

OFF = {"spark.volley.enabled": "false"}


@pytest.fixture(autouse=True)
def no_frames_before_and_after(spark: SparkSession) -> Iterator[None]:
    spark.catalog.clearCache()
    yield
    spark.catalog.clearCache()
    assert frame_cache().is_empty


def on(spark: SparkSession, cluster: LocalCluster) -> SparkSession:
    for key, value in cluster.settings.items():
        spark.conf.set(key, value)
    return spark


def report_of(spark: SparkSession) -> QueryReport:
    report = volley.last_query(spark)
    assert report is not None
    return report


def numbers(spark: SparkSession, rows: int = 5000) -> DataFrame:
    return spark.range(0, rows, 1, 4).selectExpr("id", "id % 10 k", "id * 2 v", "concat('text ', id % 7) s")


def ask(frame: DataFrame) -> DataFrame:
    return frame.groupBy("k").agg(F.sum("v"), F.count("s")).orderBy("k")


def assert_native(spark: SparkSession, query: DataFrame, expected: Sequence[tuple[object, ...]]) -> None:
    assert [tuple(row) for row in query.collect()] == list(expected)
    report = report_of(spark)
    assert (report.engine, report.spark_tasks) == ("native", 0), report.reasons


def test_rows_stay_with_the_workers(distributed: SparkSession, cluster: LocalCluster) -> None:
    spark = on(distributed, cluster)
    with conf(spark, OFF):
        expected = [tuple(row) for row in ask(numbers(spark)).collect()]
        joined = spark_rows(spark, pairs(numbers(spark)))
    cached = numbers(spark).cache()
    assert_native(spark, ask(cached), expected)
    kept = held_bytes(cluster)
    assert kept > 5000 * 24
    assert_native(spark, ask(cached), expected)
    assert_native(spark, cached.select(F.lit(1)).groupBy().count(), [(5000,)])
    found = pairs(cached).toArrow()
    assert report_of(spark).engine == "native"
    assert difference(joined, found, None) is None
    # No query has left anything else there.
    assert held_bytes(cluster) == kept
    (frame,) = frame_cache().frames()
    assert (frame.rows, frame.hits) == (5000, 4)
    assert frame.memory_bytes >= 5000 * 24
    cached.unpersist()
    assert frame_cache().is_empty
    eventually(lambda: not held_bytes(cluster))
    # Still native, without a cache.
    assert_native(spark, ask(cached), expected)


def pairs(frame: DataFrame) -> DataFrame:
    other = frame.select(F.col("id").alias("other"), F.col("s").alias("t"))
    return frame.join(other, F.col("id") == F.col("other") + 1).select("id", "other", "t")


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [True, False], ids=["before it is noticed", "after it was noticed"])
def test_rows_of_a_lost_worker_are_computed_again(
    distributed: SparkSession, tmp_path: Path, at_once: bool
) -> None:
    spark = distributed
    numbers(spark, 50_000).repartition(6).write.parquet(str(tmp_path / "t"))
    with LocalCluster(2, cores=1, memory="512m") as cluster:
        on(spark, cluster)
        cached = spark.read.parquet(str(tmp_path / "t")).cache()
        with conf(spark, OFF):
            expected = [tuple(row) for row in ask(spark.read.parquet(str(tmp_path / "t"))).collect()]
        assert_native(spark, ask(cached), expected)
        held = [health.held_bytes if health else 0 for health in cluster.health()]
        lost = cluster.members[held.index(max(held))]
        assert max(held)
        os.kill(lost.pid, signal.SIGKILL)
        if not at_once:
            # A query that reads no frame waits until the driver knows.
            assert_native(
                spark, ask(numbers(spark)), [(k, sum(range(2 * k, 10000, 20)), 500) for k in range(10)]
            )
        assert [tuple(row) for row in ask(cached).collect()] == expected
        assert report_of(spark).engine == "native", report_of(spark).reasons
        assert_native(spark, ask(cached), expected)
        assert frame_cache().frames()[0].hits == 1
        cached.unpersist()
        eventually(lambda: not held_bytes(cluster))


@pytest.mark.slow
def test_levels_and_limits(distributed: SparkSession) -> None:
    """A frame beyond the memory of the stores is on disk, or only there for its query if its level says so."""
    spark = distributed
    with LocalCluster(
        1, cores=1, memory="256m", settings={"spark.volley.shuffle.memoryFraction": "0.02"}
    ) as cluster:
        on(spark, cluster)
        wide = numbers(spark, 1_000_000)
        expected = [(k, sum(range(2 * k, 2_000_000, 20)), 100_000) for k in range(10)]
        spilled = wide.persist(StorageLevel.MEMORY_AND_DISK)
        assert_native(spark, ask(spilled), expected)
        (frame,) = frame_cache().frames()
        assert frame.disk_bytes > 20_000_000
        spilled.unpersist()
        alone = wide.persist(StorageLevel.MEMORY_ONLY)
        for _ in range(2):
            assert_native(spark, ask(alone), expected)
            assert not frame_cache().frames()
            eventually(lambda: not held_bytes(cluster))
        alone.unpersist()
        spark.conf.set("spark.volley.cache.memory", "1m")
        first, second = numbers(spark, 20_000).cache(), numbers(spark, 30_000).cache()
        for frame_of in (first, second):
            ask(frame_of).collect()
            assert report_of(spark).engine == "native"
        assert [frame.rows for frame in frame_cache().frames()] == [30_000]


@dataclass(frozen=True)
class _Rows:
    label: FrameLabel
    rows: int
    memory_bytes: int
    disk_bytes: int = 0


def test_frames_that_were_not_read_for_longest_are_dropped() -> None:
    cache = frame_cache()
    label = FrameLabel("t", "memory")
    try:
        for name in ("a", "b", "c"):
            cache.fill_stored(name, lambda: (_Rows(label, 1, 40), True), 100)
            cache.stored("a")
        assert cache.stored("b") is None
        assert [cache.stored(name) is not None for name in ("a", "c")] == [True, True]
        assert (cache.usage().frames, cache.usage().memory_bytes) == (2, 80)
        cache.fill_stored("d", lambda: (_Rows(label, 1, 10), False), 100)
        assert cache.stored("d") is None
        lost = cache.stored("a")
        assert lost is not None
        cache.forget_stored("a", _Rows(label, 1, 40))
        assert cache.stored("a") is lost
        cache.forget_stored("a", lost)
        assert cache.stored("a") is None
    finally:
        cache.close()
    assert cache.is_empty
