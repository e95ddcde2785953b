# SPDX-License-Identifier: Apache-2.0
"""Columns that describe the file of a row: `_metadata`, `input_file_name()`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import volley
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Partitioned Parquet files in `p` and CSV files in `c`, with characters that URLs escape."""
    for day in (1, 2):
        folder = tmp_path / "p" / "a b%é" / f"day={day}"
        folder.mkdir(parents=True)
        for name in ("x y", "z#1"):
            rows = {"n": list(range(4)), "file_name": ["mine"] * 4}
            pq.write_table(pa.table(rows), folder / f"{name}.parquet")
    (tmp_path / "c").mkdir()
    for number in range(2):
        (tmp_path / "c" / f"{number} %.csv").write_text("1,a\n2,b\n")
    return tmp_path


def parquet(spark: SparkSession, files: Path) -> DataFrame:
    return spark.read.parquet(str(files / "p" / "a b%é"))


def csv(spark: SparkSession, files: Path) -> DataFrame:
    return spark.read.schema("n int, s string").csv(str(files / "c"))


FIELDS = [f"_metadata.{name}" for name in ("file_path", "file_name", "file_size", "file_modification_time")]


@pytest.mark.parametrize("read", [parquet, csv])
def test_metadata_of_files(
    spark: SparkSession, files: Path, read: Callable[[SparkSession, Path], DataFrame]
) -> None:
    frame = read(spark, files)
    assert_same_rows(spark, frame.selectExpr("*", *FIELDS))
    assert_same_rows(spark, frame.groupBy(*FIELDS).count())
    assert_same_rows(
        spark, frame.where("_metadata.file_size > 0 AND _metadata.file_name LIKE '%1%'").select("n")
    )
    assert_same_rows(spark, frame.select("_metadata.file_path"))


def test_metadata_that_only_spark_has(spark: SparkSession, files: Path) -> None:
    assert_same_rows(spark, parquet(spark, files).select("n", "_metadata.file_block_start"), native=False)
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "spark"
    assert any("file_block_start" in str(reason) for reason in report.reasons)


def test_the_positions_of_rows(spark: SparkSession, files: Path, tmp_path: Path) -> None:
    frame = parquet(spark, files)
    assert_same_rows(spark, frame.selectExpr("*", "_metadata.row_index", "_metadata.file_path"))
    assert_same_rows(spark, frame.select("_metadata.row_index"))
    assert_same_rows(spark, frame.where("_metadata.row_index >= 2 AND n < 3").select("n"))
    assert_same_rows(spark, frame.groupBy("_metadata.row_index").count())
    groups = tmp_path / "groups"
    groups.mkdir()
    pq.write_table(pa.table({"n": range(100)}), groups / "0.parquet", row_group_size=7)
    found = assert_same_rows(
        spark, lambda session: session.read.parquet(str(groups)).selectExpr("n", "_metadata.row_index AS i")
    )
    assert found.num_rows == 100
    assert found["n"].to_pylist() == found["i"].to_pylist()
    condition = "n BETWEEN 50 AND 60"
    assert_same_rows(
        spark,
        lambda session: session.read.parquet(str(groups)).where(condition).select("_metadata.row_index"),
    )


@pytest.mark.usefixtures("distributed")
def test_the_positions_of_rows_of_several_tasks(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        rows = pa.table({"n": range(1000)})
        pq.write_table(rows, tmp_path / f"{number}.parquet", row_group_size=100)
    assert_same_rows(
        spark, lambda session: session.read.parquet(str(tmp_path)).selectExpr("n", "_metadata.row_index")
    )


DEFAULTS = {
    "i": ("INT", "5"),
    "b": ("BIGINT", "-1"),
    "s": ("STRING", "'it''s'"),
    "d": ("DECIMAL(9,2)", "1.20"),
    "f": ("DOUBLE", "0.1D"),
    "t": ("BOOLEAN", "true"),
    "day": ("DATE", "date'2024-02-29'"),
    "ts": ("TIMESTAMP", "timestamp'2024-02-29 01:02:03.4'"),
    "small": ("TINYINT", "1Y"),
    "short": ("SMALLINT", "2S"),
    "real": ("FLOAT", "1.5F"),
    "wide": ("DECIMAL(18,9)", "123456789.5"),
    "local": ("TIMESTAMP_NTZ", "timestamp_ntz'1500-01-01 00:00:00'"),
    "n": ("INT", "NULL"),
}


@pytest.fixture
def defaults(spark: SparkSession) -> Iterator[str]:
    """A table with rows from before it had most of its columns, and rows from after."""
    spark.sql("CREATE TABLE with_defaults (k INT, z INT DEFAULT 7) USING parquet")
    spark.sql("INSERT INTO with_defaults VALUES (1, 1), (2, NULL), (3, DEFAULT)")
    for name, (kind, value) in DEFAULTS.items():
        spark.sql(f"ALTER TABLE with_defaults ADD COLUMN {name} {kind} DEFAULT {value}")
    spark.sql("INSERT INTO with_defaults (k, i, s) VALUES (4, NULL, 'x'), (5, 6, DEFAULT)")
    yield "with_defaults"
    spark.sql("DROP TABLE with_defaults")


@pytest.mark.parametrize("vectorized", ["true", "false"])
def test_defaults_of_files_without_the_column(spark: SparkSession, defaults: str, vectorized: str) -> None:
    with conf(spark, {"spark.sql.parquet.enableVectorizedReader": vectorized}):
        assert_same_rows(spark, f"SELECT * FROM {defaults}")
        for name in ("z", *DEFAULTS):
            assert_same_rows(spark, f"SELECT k, {name} FROM {defaults}")
        for condition in (
            "i = 5",
            "i IS NULL",
            "s = 'it''s' AND d > 1",
            "t",
            "ts > date'2024-01-01'",
            "z = 7",
        ):
            assert_same_rows(spark, f"SELECT count(*), sum(k) FROM {defaults} WHERE {condition}")
        assert_same_rows(spark, f"SELECT i, s, count(*) FROM {defaults} GROUP BY i, s")


@pytest.mark.parametrize(
    "column", ["x BINARY DEFAULT X'61'", "x DECIMAL(38,10) DEFAULT 1.5", "x ARRAY<INT> DEFAULT array(1)"]
)
def test_defaults_that_not_all_readers_of_spark_can_assign(spark: SparkSession, column: str) -> None:
    spark.sql("CREATE TABLE refused_defaults (k INT) USING parquet")
    try:
        spark.sql("INSERT INTO refused_defaults VALUES (1)")
        spark.sql(f"ALTER TABLE refused_defaults ADD COLUMN {column}")
        (found,) = volley.explain(spark.table("refused_defaults")).reasons
        assert "default" in str(found)
        assert_same_rows(spark, "SELECT k FROM refused_defaults")
    finally:
        spark.sql("DROP TABLE refused_defaults")


@pytest.mark.parametrize("text_format", ["csv", "json", "orc"])
def test_defaults_of_other_formats_are_left_to_spark(spark: SparkSession, text_format: str) -> None:
    spark.sql(f"CREATE TABLE text_defaults (k INT) USING {text_format}")
    try:
        spark.sql("INSERT INTO text_defaults VALUES (1)")
        spark.sql("ALTER TABLE text_defaults ADD COLUMN i INT DEFAULT 5")
        assert_same_rows(spark, "SELECT k, i FROM text_defaults", native=False)
        report = volley.last_query(spark)
        assert report is not None
        assert any("default" in str(reason) for reason in report.reasons)
    finally:
        spark.sql("DROP TABLE text_defaults")


def test_input_file_name(spark: SparkSession, files: Path) -> None:
    parquet(spark, files).createOrReplaceTempView("p")
    csv(spark, files).createOrReplaceTempView("c")
    for query in (
        "SELECT input_file_name() FROM p",
        "SELECT n, input_file_name() AS f, upper(input_file_name()) FROM p WHERE n > 1",
        "SELECT n FROM p WHERE input_file_name() LIKE '%x%'",
        "SELECT input_file_name() AS f, count(*), sum(n) FROM p GROUP BY f",
        "SELECT n + 1 AS m, input_file_name() FROM (SELECT n, day FROM p WHERE day = 1)",
        "SELECT input_file_name(), s FROM c",
        "SELECT n FROM p WHERE n = (SELECT max(n) FROM c) AND input_file_name() IS NOT NULL",
    ):
        assert_same_rows(spark, query)
    assert_same_rows(spark, csv(spark, files).selectExpr("input_file_name()", "_metadata.file_name", "s"))


def test_input_file_name_above_other_operators_is_left_to_spark(spark: SparkSession, files: Path) -> None:
    parquet(spark, files).createOrReplaceTempView("p")
    spark.sql("SELECT n, input_file_name() FROM (SELECT DISTINCT n FROM p)").collect()
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine != "native"
    assert any("input_file_name" in str(reason) for reason in report.reasons)
