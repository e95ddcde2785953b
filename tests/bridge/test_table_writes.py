# SPDX-License-Identifier: Apache-2.0
"""Native writes into tables of the catalog, by every statement that writes one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from helpers.sampling import every
from helpers.writes import PLAIN, assert_native, assert_same_tables
from volley.testing.session import conf

slow = pytest.mark.slow

# Before Spark 4.1, saveAsTable does not give its command.
SAVES_TABLES = pytest.mark.since("4.1")


def test_tables_without_partitions(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    for name in ("spark_t", "volley_t"):
        spark.sql(f"create table {name} (id int, name string, flag boolean, day decimal(5, 1)) using parquet")
    try:
        for name, settings in (("spark_t", PLAIN), ("volley_t", {})):
            with conf(spark, settings):
                for overwrite in (False, True, False):
                    rows.write.insertInto(name, overwrite)
                    if not settings:
                        assert_native(spark)
        with conf(spark, PLAIN):
            expected, actual = (
                sorted(spark.table(name).collect(), key=str) for name in ("spark_t", "volley_t")
            )
            assert len(actual) == 200
            assert actual == expected
    finally:
        for name in ("spark_t", "volley_t"):
            spark.sql(f"drop table {name}")


@pytest.mark.parametrize("overwrite_mode", ["static", pytest.param("dynamic", marks=slow)])
def test_tables_with_partitions(
    spark: SparkSession, tmp_path: Path, rows: DataFrame, overwrite_mode: str
) -> None:
    """The catalog keeps a list of the partitions of these: both engines must leave the same one behind."""
    names = ("spark_p", "volley_p")
    for name in names:
        spark.sql(
            f"create table {name} (id long, day long, name string) using parquet partitioned by (day, name)"
        )
    try:
        with conf(spark, {"spark.sql.sources.partitionOverwriteMode": overwrite_mode}):
            for name, settings in (("spark_p", PLAIN), ("volley_p", {})):
                with conf(spark, settings):
                    rows.select("id", "day", "name").write.insertInto(name)
                    rows.where("day < 3").selectExpr("id + 1000", "day", "name").write.insertInto(name, True)
                    if not settings:
                        assert_native(spark)
        with conf(spark, PLAIN):
            known, found = (
                [sorted(spark.sql(text + name).collect(), key=str) for name in names]
                for text in ("show partitions ", "select * from ")
            )
            assert known[0] == known[1]
            assert found[0] == found[1]
            assert len(found[0]) == (44 if overwrite_mode == "static" else 100)
    finally:
        for name in names:
            spark.sql(f"drop table {name}")


def test_insert_statements(spark: SparkSession, rows: DataFrame) -> None:
    """The text of an INSERT is seen too, with the partitions that it names."""
    rows.createOrReplaceTempView("inserted")
    names = ("spark_i", "volley_i")
    texts = (
        "insert into {} select id, day, name from inserted",
        "insert overwrite {} partition (day = 3, name) select id + 1000, name from inserted where day = 3",
        "insert into {} partition (day = 50, name = 'x/y') select id from inserted where id < 5",
        "INSERT OVERWRITE {} PARTITION (day = 1, name = 'plain') SELECT id FROM inserted WHERE id < 0",
    )
    for name in names:
        spark.sql(
            f"create table {name} (id long, day long, name string) using parquet partitioned by (day, name)"
        )
    try:
        for name, settings in (("spark_i", PLAIN), ("volley_i", {})):
            with conf(spark, settings):
                for text in texts:
                    answer = spark.sql(text.format(name))
                    if not settings:
                        assert_native(spark)
                    assert (answer.columns, answer.collect()) == ([], [])
        with conf(spark, PLAIN):
            for text in ("show partitions ", "select * from "):
                expected, actual = (sorted(spark.sql(text + name).collect(), key=str) for name in names)
                assert actual == expected
    finally:
        for name in names:
            spark.sql(f"drop table {name}")


def make_tables(
    spark: SparkSession, make: Callable[[str], Any], native: Callable[[SparkSession], None]
) -> None:
    """Make a table on each engine; what Spark's catalog says of both, and their rows, must be equal. They go again."""
    names = ("made_by_spark", "made_by_volley")
    try:
        for name, settings in zip(names, (PLAIN, {}), strict=True):
            with conf(spark, settings):
                make(name)
                if not settings:
                    native(spark)
        with conf(spark, PLAIN):
            expected, actual = (described(spark, name) for name in names)
            assert actual == expected
            columns = [F.to_json(F.struct("*")).alias("row")]
            expected_rows, rows = (sorted(spark.table(name).select(columns).collect()) for name in names)
            assert rows == expected_rows
    finally:
        for name in names:
            spark.sql(f"drop table if exists {name}")


def described(spark: SparkSession, name: str) -> list[str]:
    """What the catalog knows of a table, without what differs from table to table."""
    own = ("Table", "Location", "Created Time", "Last Access", "Statistics", "Partition Statistics")
    rows = spark.sql(f"describe table extended {name}").collect()
    texts = [f"{row.col_name}: {row.data_type}, {row.comment}" for row in rows if row.col_name not in own]
    if "# Partition Information: , " in texts:
        texts += [row.partition for row in spark.sql(f"show partitions {name}").collect()]
    return texts


@SAVES_TABLES
@pytest.mark.parametrize("partitions", [(), ("day", "name")])
def test_save_as_table(spark: SparkSession, rows: DataFrame, partitions: tuple[str, ...]) -> None:
    def make(name: str) -> None:
        rows.select("day", "name", "id", "flag").write.saveAsTable(name, partitionBy=list(partitions) or None)

    make_tables(spark, make, assert_native)


@SAVES_TABLES
@pytest.mark.parametrize("mode", every(2, ["append", "ignore", "overwrite", "error"]))
@pytest.mark.parametrize("overwrite_mode", ["static", pytest.param("dynamic", marks=slow)])
def test_modes_of_save_as_table(spark: SparkSession, rows: DataFrame, mode: str, overwrite_mode: str) -> None:
    """Onto a table that is there: columns are found by name, and a table that is replaced may change its columns."""

    def make(name: str) -> None:
        rows.select("id", "day", "flag").write.partitionBy("day").saveAsTable(name)
        more = rows.where("day < 2").select("flag", "day", "id")
        if mode == "overwrite":
            more = more.withColumn("more", F.lit("x"))
        writer = more.write.mode(mode).partitionBy("day")
        if mode == "error":
            with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
                writer.saveAsTable(name)
        else:
            writer.saveAsTable(name)

    def native(spark: SparkSession) -> None:
        if mode in ("append", "overwrite"):
            assert_native(spark)

    with conf(spark, {"spark.sql.sources.partitionOverwriteMode": overwrite_mode}):
        make_tables(spark, make, native)


@pytest.mark.parametrize(
    "text",
    [
        "create table {} as select id, name, day + 0.5 as half from made where id > 3",
        "-- a remark\nCREATE TABLE if not exists {} USING parquet PARTITIONED BY (day) COMMENT 'kept' "
        "OPTIONS (compression 'zstd') AS SELECT day, id FROM made",
        "create table {} using parquet as with few as (select * from made where id < 9) select * from few",
    ],
)
def test_create_table_as(spark: SparkSession, rows: DataFrame, text: str) -> None:
    rows.createOrReplaceTempView("made")

    def make(name: str) -> None:
        assert spark.sql(text.format(name)).columns == []

    def native(spark: SparkSession) -> None:
        assert_native(spark)
        if "if not exists" in text:
            make("made_by_volley")
            report = volley.last_query(spark)
            assert report is not None
            assert (report.action, report.engine) == ("createTable", "spark")
            assert "nothing to write" in str(report.reasons[0])

    make_tables(spark, make, native)


def test_with_before_insert(spark: SparkSession, rows: DataFrame) -> None:
    rows.createOrReplaceTempView("made")

    def make(name: str) -> None:
        spark.sql(f"create table {name} (id long, name string) using parquet")
        spark.sql(
            f"with few as (select id, name from made where id < 9) insert into {name} select * from few"
        )

    make_tables(spark, make, assert_native)


@SAVES_TABLES
def test_external_tables(spark: SparkSession, rows: DataFrame, tmp_path: Path) -> None:
    def make(name: str) -> None:
        rows.write.option("path", str(tmp_path / name)).saveAsTable(name)

    make_tables(spark, make, assert_native)
    assert_same_tables(spark, tmp_path / "made_by_spark", tmp_path / "made_by_volley")


@SAVES_TABLES
def test_a_table_is_not_replaced_by_what_it_holds(spark: SparkSession, rows: DataFrame) -> None:
    def make(name: str) -> None:
        rows.write.saveAsTable(name)
        with pytest.raises(AnalysisException, match="UNSUPPORTED_OVERWRITE"):
            spark.table(name).where("id > 5").write.mode("overwrite").saveAsTable(name)

    make_tables(spark, make, lambda spark: None)


@SAVES_TABLES
def test_tables_that_spark_makes(spark: SparkSession, rows: DataFrame) -> None:
    for write, reason in (
        (rows.write.format("json"), "FILE_FORMAT_NOT_SUPPORTED"),
        (rows.write.bucketBy(2, "id"), "FILE_OPTION_NOT_SUPPORTED"),
    ):
        write.saveAsTable("saved_t")
        try:
            report = volley.last_query(spark)
            assert report is not None
            assert (report.action, report.engine) == ("saveAsTable", "spark")
            assert reason in str(report.reasons[0])
            assert spark.table("saved_t").count() == 100
        finally:
            spark.sql("drop table saved_t")
