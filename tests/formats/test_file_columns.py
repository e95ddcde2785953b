# SPDX-License-Identifier: Apache-2.0
"""Columns that describe the file of a row: `_metadata`, `input_file_name()`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import volley
from volley.testing.rows import assert_same_rows


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


@pytest.mark.parametrize("field", ["file_block_start", "row_index"])
def test_metadata_that_only_spark_has(spark: SparkSession, files: Path, field: str) -> None:
    assert_same_rows(spark, parquet(spark, files).select("n", f"_metadata.{field}"), native=False)
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "spark"
    assert any(field in str(reason) for reason in report.reasons)


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
