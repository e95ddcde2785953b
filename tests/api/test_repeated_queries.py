# SPDX-License-Identifier: Apache-2.0
"""Queries that are asked again: planned once, and never answered with what was true before."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import volley
from helpers.waiting import eventually
from volley.lru_cache import LruCache
from volley.plan.capture import read_plan
from volley.plan.nodes import LocalRows
from volley.testing.rows import assert_same_rows


def text_of(frame: DataFrame) -> str:
    gateway = frame.sparkSession.sparkContext._gateway
    return read_plan(gateway, frame._jdf.queryExecution().executedPlan()).text


def write(path: Path, values: list[int], name: str = "k") -> None:
    pq.write_table(pa.table({name: values, "v": [value * 10 for value in values]}), path)


def native_rows(frame: DataFrame) -> list[tuple[object, ...]]:
    rows = [tuple(row) for row in frame.collect()]
    report = volley.last_query(frame.sparkSession)
    assert report is not None
    assert (report.engine, report.spark_tasks) == ("native", 0)
    return sorted(rows)


AGGREGATE = "SELECT k % 2 AS odd, sum(v) AS total FROM parquet.`{}` GROUP BY k % 2"


class TestText:
    def test_equal_queries_have_equal_texts(self, spark: SparkSession, tmp_path: Path) -> None:
        write(tmp_path / "a.parquet", [1, 2, 3])
        query = f"SELECT * FROM ({AGGREGATE}) WHERE total > (SELECT avg(k) FROM parquet.`{{}}`)".format(
            tmp_path, tmp_path
        )
        assert text_of(spark.sql(query)) == text_of(spark.sql(query))

    @pytest.mark.parametrize(
        "other",
        [
            "SELECT k % 2 AS odd, sum(v) AS total FROM parquet.`{}` WHERE k > 1 GROUP BY k % 2",
            "SELECT k % 2 AS odd, sum(v + 1) AS total FROM parquet.`{}` GROUP BY k % 2",
            "SELECT k % 2 AS odd, sum(k) AS total FROM parquet.`{}` GROUP BY k % 2",
            "SELECT k % 2 AS even, sum(v) AS total FROM parquet.`{}` GROUP BY k % 2",
            "SELECT k % 2 AS odd, sum(cast(v AS double)) AS total FROM parquet.`{}` GROUP BY k % 2",
        ],
    )
    def test_other_queries_have_other_texts(self, spark: SparkSession, tmp_path: Path, other: str) -> None:
        write(tmp_path / "a.parquet", [1, 2, 3])
        asked, changed = (spark.sql(query.format(tmp_path)) for query in (AGGREGATE, other))
        assert text_of(asked) != text_of(changed)

    def test_a_settings_change_is_another_text(self, spark: SparkSession, tmp_path: Path) -> None:
        write(tmp_path / "a.parquet", [1, 2, 3])
        query = f"SELECT k + v FROM parquet.`{tmp_path}`"
        spark.conf.set("spark.sql.ansi.enabled", "true")
        strict = text_of(spark.sql(query))
        spark.conf.set("spark.sql.ansi.enabled", "false")
        assert text_of(spark.sql(query)) != strict


class TestRows:
    def test_files_that_are_added_and_replaced_are_seen(self, spark: SparkSession, tmp_path: Path) -> None:
        write(tmp_path / "a.parquet", [1, 2, 3])

        def ask() -> list[tuple[object, ...]]:
            return native_rows(spark.read.parquet(str(tmp_path)).where("k > 1").selectExpr("k", "v"))

        assert ask() == ask() == [(2, 20), (3, 30)]
        write(tmp_path / "b.parquet", [4])
        assert ask() == [(2, 20), (3, 30), (4, 40)]
        write(tmp_path / "a.parquet", [7, 8, 9])
        assert ask() == [(4, 40), (7, 70), (8, 80), (9, 90)]

    def test_a_file_that_is_replaced_behind_the_frame(self, spark: SparkSession, tmp_path: Path) -> None:
        """Spark has listed the files of a frame before; its plan, and so the text, is the same after the change."""
        path = tmp_path / "a.parquet"
        write(path, [1, 2, 3])
        frame = spark.read.parquet(str(tmp_path)).selectExpr("k")
        assert native_rows(frame) == native_rows(frame) == [(1,), (2,), (3,)]
        before = path.stat()
        write(path, [4, 5, 6])
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
        assert sorted(tuple(row) for row in frame.collect()) == [(4,), (5,), (6,)]

    def test_names_with_numbers(self, spark: SparkSession, tmp_path: Path) -> None:
        """Spark writes ids into names, as in sum(v#12), but a column of a file may be called like that, too."""
        names = [f"c#{number}" for number in range(4)]
        pq.write_table(
            pa.table({name: [number] for number, name in enumerate(names)}), tmp_path / "a.parquet"
        )
        frame = spark.read.parquet(str(tmp_path))
        for number, name in enumerate(names):
            for _ in range(2):
                asked = frame.selectExpr(f"`{name}` + 1 AS x", f"`{name}`")
                assert native_rows(asked) == [(number + 1, number)]
                assert asked.toArrow().column_names == ["x", name]
                assert native_rows(asked.groupBy(f"`{name}`").count()) == [(number, 1)]

    def test_subqueries_with_changing_results(self, spark: SparkSession, tmp_path: Path) -> None:
        write(tmp_path / "a.parquet", [1, 2, 3, 4])
        (tmp_path / "limit").mkdir()
        query = (
            f"SELECT k FROM parquet.`{tmp_path}/a.parquet` "
            f"WHERE k > (SELECT avg(k) FROM parquet.`{tmp_path}/limit`)"
        )
        for highest in (1, 2, 3):
            write(tmp_path / "limit" / "b.parquet", [highest, highest])
            assert native_rows(spark.sql(query)) == [(k,) for k in range(highest + 1, 5)]

    def test_rows_of_the_driver_are_not_remembered(self, spark: SparkSession) -> None:
        for values in ([1, 2], [3, 4]):
            frame = spark.createDataFrame([(value,) for value in values], "k int").selectExpr("k + 1 AS k")
            assert native_rows(frame) == [(value + 1,) for value in values]

    def test_rows_of_the_driver_are_let_go(self, spark: SparkSession) -> None:
        """A plan holds the rows that the driver made, so plans that are not asked again must not be kept."""

        def held() -> int:
            gc.collect()
            return sum(isinstance(item, LocalRows) for item in gc.get_objects())

        before = held()
        for number in range(10):
            spark.createDataFrame([(number,)], "k int").selectExpr("k + 1 AS k").collect()
        # The last query is still reported.
        eventually(lambda: held() <= before + 2)

    def test_many_threads_ask_the_same(self, spark: SparkSession, tmp_path: Path) -> None:
        write(tmp_path / "a.parquet", list(range(1000)))
        query = AGGREGATE.format(tmp_path)
        expected = spark.sql(query).toArrow().sort_by("odd")
        answers: list[pa.Table] = []

        def ask() -> None:
            for _ in range(4):
                answers.append(spark.sql(query).toArrow().sort_by("odd"))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert len(answers) == 16
        assert all(answer.equals(expected) for answer in answers)

    def test_not_in_over_columns_without_nulls(self, spark: SparkSession, tmp_path: Path) -> None:
        """Whether a file has NULLs decides how NOT IN runs, so the same text must not mean the same plan."""
        path = tmp_path / "b.parquet"
        write(tmp_path / "a.parquet", [1, 2, 3])
        query = (
            f"SELECT k FROM parquet.`{tmp_path}/a.parquet` WHERE k NOT IN (SELECT k FROM parquet.`{path}`)"
        )
        for values in ([2], [2, None], [], [None], [3]):
            pq.write_table(pa.table({"k": pa.array(values, pa.int64())}), path)
            for _ in range(2):
                assert_same_rows(spark, query, ordered=False)


class TestRecent:
    def test_keeps_what_was_used_last(self) -> None:
        cache: LruCache[int, str] = LruCache(2)
        cache.put(1, "one")
        cache.put(2, "two")
        assert cache.get(1) == "one"
        cache.put(3, "three")
        assert (cache.get(1), cache.get(2), cache.get(3), len(cache)) == ("one", None, "three", 2)
