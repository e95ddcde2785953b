# SPDX-License-Identifier: Apache-2.0
"""Session settings of a file scan matter only where they change what is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

import volley
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

FIELD_IDS = "spark.sql.parquet.fieldId.read.enabled"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Columns with a field id in the file: `a` is 1 and `b` is 2."""

    def field(name: str, data_type: pa.DataType, number: int) -> pa.Field:
        return pa.field(name, data_type, metadata={"PARQUET:field_id": str(number)})

    struct = pa.struct([field("x", pa.int32(), 4), field("y", pa.int32(), 5)])
    schema = pa.schema(
        [
            field("a", pa.int64(), 1),
            field("b", pa.int64(), 2),
            field("s", pa.string(), 3),
            field("r", struct, 6),
            field("d", pa.date32(), 7),
        ]
    )
    rows = [
        {"a": n, "b": -n, "s": str(n), "r": {"x": n, "y": 10 * n}, "d": None if n else 19000}
        for n in range(5)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "file.parquet")
    return str(tmp_path)


def reading(path: str, *fields: StructField) -> Callable[[SparkSession], DataFrame]:
    return lambda spark: spark.read.schema(StructType(list(fields))).parquet(path)


def with_id(
    name: str, data_type: LongType | IntegerType | StructType | ArrayType, number: int
) -> StructField:
    return StructField(name, data_type, metadata={"parquet.field.id": number})


def test_field_ids_do_not_matter_to_columns_without_one(spark: SparkSession, path: str) -> None:
    with conf(spark, {FIELD_IDS: "true"}):
        assert_same_rows(spark, lambda session: session.read.parquet(path))
        assert_same_rows(
            spark, reading(path, StructField("b", LongType()), StructField("none", StringType()))
        )
        # A column that has an id and is not read does not matter either.
        both = reading(path, StructField("a", LongType()), with_id("z", LongType(), 2))
        assert_same_rows(spark, lambda session: both(session).select("a"))


def test_settings_for_times_do_not_matter_to_other_columns(spark: SparkSession, path: str) -> None:
    key = "spark.sql.parquet.int96TimestampConversion"
    with conf(spark, {key: "true"}):
        assert_same_rows(spark, lambda session: session.read.parquet(path).drop("d"))
        assert_same_rows(spark, lambda session: session.read.parquet(path).select("a", "d"), native=False)
        report = volley.last_query(spark)
    assert report is not None
    assert any(key in str(reason) for reason in report.reasons)


def test_binary_as_text_is_read_as_spark_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"raw": [b"x", b"\xff"], "text": ["a", "b"]}), tmp_path / "0.parquet")
    with conf(spark, {"spark.sql.parquet.binaryAsString": "true"}):
        assert_same_rows(spark, lambda session: session.read.parquet(str(tmp_path)).select("text"))
        whole = assert_same_rows(
            spark, lambda session: session.read.parquet(str(tmp_path)).selectExpr("length(raw)"), native=False
        )
    assert whole.num_rows == 2


def test_missing_files_are_left_out_where_that_is_asked(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"a": [number]}), tmp_path / f"{number}.parquet")
    with conf(spark, {"spark.sql.files.ignoreMissingFiles": "true"}):
        assert_same_rows(spark, lambda session: session.read.parquet(str(tmp_path)))
        frame = spark.read.parquet(str(tmp_path))
        (tmp_path / "1.parquet").unlink()
        assert sorted(row.a for row in frame.collect()) == [0, 2]


def test_nanoseconds_as_numbers_are_read_as_spark_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    times = pa.array([1, 2], pa.timestamp("ns"))
    pq.write_table(pa.table({"t": times, "a": [1, 2]}), tmp_path / "0.parquet", version="2.6")
    with conf(spark, {"spark.sql.legacy.parquet.nanosAsLong": "true"}):
        assert_same_rows(spark, lambda session: session.read.parquet(str(tmp_path)).select("a"))
        assert_same_rows(spark, lambda session: session.read.parquet(str(tmp_path)), native=False)
