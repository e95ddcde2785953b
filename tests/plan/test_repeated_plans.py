# SPDX-License-Identifier: Apache-2.0
"""Queries that are asked again with the same text: Spark's plan of before is used, unless anything has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from helpers.sampling import draw_queries
from helpers.waiting import eventually
from volley.plan.known_plans import find_plan, keep_plan
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

TEXT = "select k, sum(v) s, (select max(v) from t) m from t where v > 1 group by k order by k"


def _is_known(spark: SparkSession, text: str) -> bool:
    return find_plan(spark.sparkContext._gateway, spark.sql(text)._jdf.queryExecution()) is not None


def _ask(spark: SparkSession, text: str, *, native: bool = True) -> None:
    """Ask until the plan is known, if it can be, and once more."""
    for _ in range(3):
        assert_same_rows(spark, text, native=native)


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """A view `t`. The class that knows plans is compiled."""

    def is_compiled() -> bool:
        keep_plan(spark.sparkContext._gateway, execution)
        return find_plan(spark.sparkContext._gateway, execution) is not None

    _write(tmp_path / "t", range(100))
    spark.read.parquet(str(tmp_path / "t")).createOrReplaceTempView("t")
    execution = spark.sql("select 1 from t")._jdf.queryExecution()
    eventually(is_compiled)
    yield tmp_path / "t"
    spark.catalog.dropTempView("t")


def _write(folder: Path, values: range) -> None:
    folder.mkdir(exist_ok=True)
    rows = pa.table({"k": [value % 3 for value in values], "v": list(values)})
    pq.write_table(rows, folder / f"{values.start}.parquet")


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        "with a as (select k, v from t) select a.k, b.v from a join (select * from a) b on a.v = b.v + 1 order by 2",
        "select * from (select v, rank() over (partition by k order by v) r from t) where r < 3 order by v, r",
        "select t.v from t left anti join (select distinct v * 2 w from t) o on t.v = o.w order by v",
    ],
)
def test_the_same_query_is_known(spark: SparkSession, table: Path, text: str) -> None:
    _ask(spark, text)
    assert _is_known(spark, text)
    assert not _is_known(spark, text + " limit 5")


def _other_view(spark: SparkSession, table: Path) -> None:
    _write(table.parent / "other", range(50, 80))
    spark.read.parquet(str(table.parent / "other")).createOrReplaceTempView("t")


def _same_view_again(spark: SparkSession, table: Path) -> None:
    _write(table, range(1000, 1010))
    spark.read.parquet(str(table)).createOrReplaceTempView("t")


def _refreshed_view(spark: SparkSession, table: Path) -> None:
    _write(table, range(1000, 1010))
    spark.catalog.refreshTable("t")


def _cached(spark: SparkSession, table: Path) -> None:
    spark.table("t").cache().count()


def _filtered_view(spark: SparkSession, table: Path) -> None:
    spark.read.parquet(str(table)).where("v % 2 = 0").createOrReplaceTempView("t")


@pytest.mark.parametrize("change", [_other_view, _same_view_again, _refreshed_view, _cached, _filtered_view])
def test_a_change_of_what_it_reads(
    spark: SparkSession, table: Path, change: Callable[[SparkSession, Path], None]
) -> None:
    _ask(spark, TEXT)
    assert _is_known(spark, TEXT)
    change(spark, table)
    assert not _is_known(spark, TEXT)
    _ask(spark, TEXT)
    spark.catalog.clearCache()
    _ask(spark, TEXT)


@pytest.mark.parametrize("kind", ["temporary view", "view"])
def test_views_that_add_in_another_order(spark: SparkSession, table: Path, kind: str) -> None:
    """Spark takes their plans for the same."""
    pq.write_table(pa.table({"a": [1e16], "b": [1.0], "c": [-1e16]}), table.parent / "abc.parquet")
    source = f"parquet.`{table.parent}/abc.parquet`" if kind == "view" else "abc"
    spark.read.parquet(str(table.parent / "abc.parquet")).createOrReplaceTempView("abc")
    text = "select s from added"
    try:
        for terms, expected in (("a + b + c", 0.0), ("a + c + b", 1.0)):
            spark.sql(f"create or replace {kind} added as select {terms} s from {source}")
            for _ in range(3):
                assert [row.s for row in spark.sql(text).collect()] == [expected]
        if kind != "view":
            assert _is_known(spark, text)
    finally:
        spark.sql("drop view added")


def test_cached_frames(spark: SparkSession, table: Path) -> None:
    """A plan is known as long as the same frames are cached."""
    spark.table("t").cache()
    _ask(spark, TEXT)
    assert _is_known(spark, TEXT)
    spark.table("t").where("v > 5").cache().count()
    assert not _is_known(spark, TEXT)
    _ask(spark, TEXT)
    assert _is_known(spark, TEXT)
    _write(table, range(1000, 1010))
    spark.catalog.refreshTable("t")
    assert not _is_known(spark, TEXT)
    _ask(spark, TEXT)
    spark.table("t").unpersist()
    assert not _is_known(spark, TEXT)
    _ask(spark, TEXT)
    spark.catalog.clearCache()
    _ask(spark, TEXT)


def test_tables_of_the_catalog(spark: SparkSession, table: Path) -> None:
    text = "select count(*) n, sum(v) s from kept_table"
    spark.sql("create table kept_table using parquet as select * from t")
    try:
        _ask(spark, text)
        assert _is_known(spark, text)
        for statement in (
            "insert into kept_table values (1, 5000)",
            "insert overwrite kept_table select k, v from t where v < 7",
            "alter table kept_table add columns (w int)",
            "truncate table kept_table",
        ):
            spark.sql(statement)
            assert not _is_known(spark, text), statement
            _ask(spark, text)
        spark.sql("drop table kept_table")
        spark.sql("create table kept_table using parquet as select k, v + 1 v from t")
        assert not _is_known(spark, text)
        _ask(spark, text)
    finally:
        spark.sql("drop table kept_table")


@pytest.mark.parametrize(
    "settings",
    [
        {"spark.sql.ansi.enabled": "false"},
        {"spark.sql.session.timeZone": "Asia/Tokyo"},
        {"spark.sql.shuffle.partitions": "3"},
        {"spark.sql.adaptive.enabled": "false"},
    ],
)
def test_other_settings(spark: SparkSession, table: Path, settings: dict[str, str]) -> None:
    _ask(spark, TEXT)
    assert _is_known(spark, TEXT)
    with conf(spark, settings):
        assert not _is_known(spark, TEXT)
        _ask(spark, TEXT)


@pytest.mark.parametrize(
    "text",
    [
        "select current_timestamp() > timestamp'2020-01-01' a, v from t",
        "select cast('now' as timestamp) > timestamp'2020-01-01' a, v from t",
        "select cast(' Today ' as date) >= date'2020-01-01' a, v from t",
        "select current_database() d, v from t",
        "select v from t where rand() < 2",
        "select v from t where v < (select count(*) from t where current_date() > date'2020-01-01')",
        "select * from range(5)",
        "select twice(v) from t",
        "select v + chosen from t",
    ],
)
def test_what_is_never_known(spark: SparkSession, table: Path, text: str) -> None:
    spark.udf.register("twice", F.udf(lambda value: 2 * value, "long"))
    spark.sql("declare or replace variable chosen int default 5")
    for _ in range(2):
        spark.sql(text).toArrow()
        assert not _is_known(spark, text)


TEXTS = [
    TEXT,
    "select count(*) n, sum(v) s from kept_table",
    "select t.v from t join kept_table u on t.v = u.v order by 1",
    "select v / 3 x, v % 7 from t where v in (select v from kept_table where k = 1) order by v",
]
CHANGES: dict[str, Callable[[SparkSession, Path], object]] = {
    "other view": _other_view,
    "same view": _same_view_again,
    "refresh": _refreshed_view,
    "cache": _cached,
    "drop cache": lambda spark, table: spark.catalog.clearCache(),
    "filtered view": _filtered_view,
    "insert": lambda spark, table: spark.sql("insert into kept_table select k, v + 7 from t where v < 20"),
    "overwrite": lambda spark, table: spark.sql(
        "insert overwrite kept_table select k, v from t where v < 30"
    ),
    "append to files": lambda spark, table: (
        spark.table("t").limit(3).write.mode("append").parquet(str(table))
    ),
    "ansi": lambda spark, table: spark.conf.set("spark.sql.ansi.enabled", "false"),
    "no ansi": lambda spark, table: spark.conf.set("spark.sql.ansi.enabled", "true"),
}


@draw_queries(2)
@given(st.lists(st.sampled_from([*CHANGES, *TEXTS, *TEXTS, *TEXTS]), max_size=20))
@example(
    [
        TEXT,
        TEXT,
        TEXT,
        "refresh",
        TEXT,
        *TEXTS,
        *TEXTS,
        *TEXTS,
        "insert",
        *TEXTS,
        "cache",
        *TEXTS,
        "drop cache",
        *TEXTS,
    ]
)
def test_random_changes(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    table = tmp_path_factory.mktemp("random") / "t"
    _write(table, range(100))
    spark.read.parquet(str(table)).createOrReplaceTempView("t")
    spark.sql("drop table if exists kept_table")
    spark.sql("create table kept_table using parquet as select k, v from t where v < 50")
    try:
        for step in steps:
            if step in CHANGES:
                CHANGES[step](spark, table)
            else:
                assert_same_rows(spark, step, native=False)
    finally:
        spark.catalog.clearCache()
        spark.conf.unset("spark.sql.ansi.enabled")
        spark.sql("drop table kept_table")


def _with_argument(text: str, least: int, spark: SparkSession) -> DataFrame:
    return spark.sql(text, args={"least": least})


def test_variables_functions_and_arguments(spark: SparkSession, table: Path) -> None:
    """They are part of the analyzed plan."""
    text = "select v * factor(2) x from t where v > :least order by v"
    for step in (1, 3):
        spark.sql(f"create or replace temporary function factor(a int) returns int return a * {step}")
        for least in (50, 90):
            query = partial(_with_argument, text, least)
            for _ in range(3):
                assert_same_rows(spark, query)
    spark.sql("drop temporary function factor")


def test_sessions_have_their_own(spark: SparkSession, table: Path) -> None:
    _ask(spark, TEXT)
    other = spark.newSession()
    _write(table.parent / "other", range(50, 80))
    other.read.parquet(str(table.parent / "other")).createOrReplaceTempView("t")
    assert not _is_known(other, TEXT)
    _ask(spark, TEXT)
    assert _is_known(spark, TEXT)


def test_spark_runs_a_plan_of_its_own(spark: SparkSession, table: Path) -> None:
    """A frame whose query is known may be run by Spark, and be asked natively again."""
    _ask(spark, TEXT)
    frame = spark.sql(TEXT)
    rows: list[Any] = frame.collect()
    with conf(spark, {"spark.volley.enabled": "false"}):
        assert frame.collect() == rows
        assert "isFinalPlan=true" in frame._jdf.queryExecution().executedPlan().toString()
    _ask(spark, TEXT)
    assert frame.collect() == rows
    assert volley.last_query(spark).engine == "native"  # type: ignore[union-attr]
