# SPDX-License-Identifier: Apache-2.0
"""Bad input ends as it would on Spark: its error, or its rows; never a wrong or partial result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import volley
from helpers.sampling import every
from volley.config import Config
from volley.errors import ConfigError, QueryError
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.session import conf


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Path:
    """Three files of ten rows."""
    directory = tmp_path / "table"
    directory.mkdir()
    for number in range(3):
        start = number * 10
        write(directory / f"{number}.parquet", {"a": list(range(start, start + 10)), "s": ["x"] * 10})
    return directory


def write(path: Path, columns: dict[str, Any], types: dict[str, pa.DataType] | None = None) -> None:
    arrays = {name: pa.array(values, (types or {}).get(name)) for name, values in columns.items()}
    pq.write_table(pa.table(arrays), path)


def outcome(spark: SparkSession, frame: Callable[[], DataFrame]) -> tuple[Any, ...]:
    """What a program sees: rows, or the condition and parameters of Spark's error."""
    try:
        return ("rows", sorted(frame().collect(), key=str))
    except PySparkException as error:
        return ("error", type(error).__name__, error.getCondition(), error.getMessageParameters())
    except Py4JJavaError as error:
        # PySpark does not convert every exception of the JVM; programs then see this one.
        java = error.java_exception
        return ("error", java.getClass().getName(), java.getCondition(), str(java.getMessageParameters()))


def assert_same_outcome(spark: SparkSession, frame: Callable[[], DataFrame]) -> tuple[Any, ...]:
    with conf(spark, {"spark.volley.enabled": "false"}):
        expected = outcome(spark, frame)
    assert outcome(spark, frame) == expected
    return expected


def condition(result: tuple[Any, ...]) -> str:
    assert result[0] == "error", result
    return str(result[2])


# ------------------------------------------------------------------------------------------------- files


def test_a_file_that_vanished(spark: SparkSession, table: Path) -> None:
    frame = spark.read.parquet(str(table))
    frame.select("a").count()
    (table / "1.parquet").unlink()
    result = assert_same_outcome(spark, lambda: frame.select("a"))
    assert condition(result) == "FAILED_READ_FILE.FILE_NOT_EXIST"


def test_a_file_that_is_no_parquet(spark: SparkSession, table: Path) -> None:
    frame = spark.read.parquet(str(table))
    (table / "1.parquet").write_bytes(b"PAR1 this is not a table PAR1")
    result = assert_same_outcome(spark, lambda: frame.select("a"))
    assert condition(result).startswith("FAILED_READ_FILE")


def test_a_file_that_was_cut_short(spark: SparkSession, table: Path) -> None:
    frame = spark.read.parquet(str(table))
    whole = (table / "2.parquet").read_bytes()
    (table / "2.parquet").write_bytes(whole[: len(whole) // 2])
    assert assert_same_outcome(spark, lambda: frame.select("a"))[0] == "error"


def test_a_page_that_was_damaged(spark: SparkSession, tmp_path: Path) -> None:
    """The footer is whole, the data is not: no row of the file may come out as if nothing had happened."""
    path = tmp_path / "damaged.parquet"
    pq.write_table(pa.table({"a": pa.array(range(50_000))}), path, compression="zstd", use_dictionary=False)
    frame = spark.read.parquet(str(path))
    data = bytearray(path.read_bytes())
    data[4:64] = bytes([255]) * 60
    path.write_bytes(bytes(data))
    assert assert_same_outcome(spark, lambda: frame.selectExpr("sum(a) as t"))[0] == "error"


def test_a_file_that_was_replaced(spark: SparkSession, table: Path) -> None:
    frame = spark.read.parquet(str(table))
    write(table / "0.parquet", {"a": list(range(500, 520)), "s": ["y"] * 20})
    result = assert_same_outcome(spark, lambda: frame.select("a", "s"))
    assert result[0] == "rows"
    assert len(result[1]) == 40


def test_a_file_that_was_rewritten_in_the_same_size_between_two_queries(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Footers and statistics are remembered between queries: those of old content must not prune the new."""
    path = tmp_path / "t.parquet"
    sizes = []
    for value in (5, 7):
        write(path, {"a": [value] * 10})
        sizes.append(path.stat().st_size)
        frame = spark.read.parquet(str(path))
        assert frame.where(f"a = {value}").count() == 10
        assert frame.where("a < 7").count() == (10 if value < 7 else 0)
        report = volley.last_query(spark)
        assert report is not None
        assert report.engine == "native"
    assert sizes[0] == sizes[1]


def test_a_column_that_changed_its_type(spark: SparkSession, table: Path) -> None:
    frame = spark.read.parquet(str(table))
    write(table / "0.parquet", {"a": ["one", "two"], "s": ["x", "y"]})
    result = assert_same_outcome(spark, lambda: frame.select("a"))
    assert condition(result).startswith("FAILED_READ_FILE")


def test_a_column_that_is_missing_in_some_files(spark: SparkSession, table: Path) -> None:
    frame = spark.read.parquet(str(table))
    write(table / "0.parquet", {"a": [1000]})
    result = assert_same_outcome(spark, lambda: frame.select("a", "s"))
    assert [row.s for row in result[1] if row.a == 1000] == [None]


def test_files_with_more_columns_and_another_order(spark: SparkSession, table: Path) -> None:
    write(table / "3.parquet", {"s": ["z"], "extra": [1.5], "a": [77]})
    frame = spark.read.schema("a bigint, s string").parquet(str(table))
    assert_same_outcome(spark, lambda: frame)
    report = volley.last_query(spark)
    assert report is not None
    assert report.native


def test_narrower_files_than_the_schema_asks_for(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "narrow.parquet"
    write(path, {"i": [1, None, -(2**31)], "f": [1.5, None, -0.0]}, {"i": pa.int32(), "f": pa.float32()})
    assert_same_outcome(spark, lambda: spark.read.schema("i bigint, f double").parquet(str(path)))
    assert_same_outcome(spark, lambda: spark.read.schema("i smallint").parquet(str(path)))
    assert_same_outcome(spark, lambda: spark.read.schema("i string").parquet(str(path)))
    assert_same_outcome(spark, lambda: spark.read.schema("f float, i int").parquet(str(path)))


def test_an_empty_directory(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    frame = spark.read.schema("a int, s string").parquet(str(tmp_path / "empty"))
    assert_same_outcome(spark, lambda: frame.groupBy("s").count())
    assert_same_outcome(spark, lambda: frame.selectExpr("count(*)", "max(a)"))


def test_a_view_that_vanished(spark: SparkSession, table: Path) -> None:
    spark.read.parquet(str(table)).createOrReplaceTempView("here")
    assert spark.sql("select count(*) as n from here").collect()[0].n == 30
    spark.catalog.dropTempView("here")
    result = assert_same_outcome(spark, lambda: spark.sql("select * from here"))
    assert condition(result) == "TABLE_OR_VIEW_NOT_FOUND"


# ------------------------------------------------------------------------------------------------ values

FAILING = {
    "select a + 9223372036854775807 as x from numbers": "ARITHMETIC_OVERFLOW",
    "select cast(a as int) * 2147483647 as x from numbers": "ARITHMETIC_OVERFLOW",
    "select sum(a + 9223372036854775000) as x from numbers": "ARITHMETIC_OVERFLOW",
    "select -(a - 9223372036854775807 - 2) as x from numbers where a = 1": "ARITHMETIC_OVERFLOW",
    "select abs(cast(a - 129 as tinyint)) as x from numbers where a = 1": "ARITHMETIC_OVERFLOW",
    "select a / (a - 3) as x from numbers": "DIVIDE_BY_ZERO",
    "select a div (a - 3) as x from numbers": "DIVIDE_BY_ZERO",
    "select (coalesce(a, 3) / (coalesce(a, 3) - 3)) is null as x from numbers": "DIVIDE_BY_ZERO",
    "select cast(a as decimal(10, 2)) / cast(a - 3 as decimal(10, 2)) as x from numbers": "DIVIDE_BY_ZERO",
    "select a % (a - 3) as x from numbers": "REMAINDER_BY_ZERO",
    "select cast(s as int) as x from numbers": "CAST_INVALID_INPUT",
    "select cast(s as date) as x from numbers": "CAST_INVALID_INPUT",
    "select cast(s as decimal(5, 1)) as x from numbers": "CAST_INVALID_INPUT",
    "select cast(a * 100 as tinyint) as x from numbers": "CAST_OVERFLOW",
    "select cast(a * 1000 as decimal(4, 2)) as x from numbers": "NUMERIC_VALUE_OUT_OF_RANGE",
    "select (select a from numbers) as x": "SCALAR_SUBQUERY_TOO_MANY_ROWS",
}


@pytest.fixture
def numbers(spark: SparkSession, tmp_path: Path) -> SparkSession:
    write(tmp_path / "numbers.parquet", {"a": [1, 2, 3, None, 5], "s": ["1", " 2 ", "x", None, "5"]})
    spark.read.parquet(str(tmp_path / "numbers.parquet")).createOrReplaceTempView("numbers")
    return spark


@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.slow), "3"])
@pytest.mark.parametrize("sql", every(2, FAILING))
def test_ansi_errors_are_sparks_own(numbers: SparkSession, sql: str, workers: str) -> None:
    several = {"spark.volley.local.workers": workers, **DISTRIBUTED_SETTINGS}
    with conf(numbers, {**several, "spark.sql.ansi.enabled": "true"}):
        result = assert_same_outcome(numbers, lambda: numbers.sql(sql))
    assert condition(result).startswith(FAILING[sql])


@pytest.mark.parametrize("sql", [sql for sql in FAILING if "(select" not in sql])
def test_without_ansi_the_same_queries_give_sparks_rows(numbers: SparkSession, sql: str) -> None:
    with conf(numbers, {"spark.sql.ansi.enabled": "false"}):
        result = assert_same_outcome(numbers, lambda: numbers.sql(sql))
    assert result[0] == "rows"


def test_a_replayed_query_says_so(numbers: SparkSession) -> None:
    with pytest.raises(PySparkException):
        numbers.sql("select 1 / (a - 3) as x from numbers").collect()
    # Short-circuit evaluation: Spark never divides by zero here, so it must not fail here either.
    rows = numbers.sql("select a from numbers where a <> 3 and 6 / (a - 3) > 1").collect()
    assert [row.a for row in rows] == [5]


def test_a_type_that_volley_does_not_carry(spark: SparkSession) -> None:
    def frame() -> DataFrame:
        return spark.sql("select array() as m, id from range(3) order by id")

    assert [row.m for row in frame().collect()] == [[], [], []]
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "spark"
    assert any("void" in str(reason) for reason in report.reasons)


@pytest.mark.parametrize(("key", "value"), [("spark.sql.caseSensitive", "true")])
def test_settings_under_which_spark_reads_files_differently(
    spark: SparkSession, table: Path, key: str, value: str
) -> None:
    with conf(spark, {key: value}):
        assert spark.read.parquet(str(table)).count() == 30
    report = volley.last_query(spark)
    assert report is not None
    assert f"{key}={value}" in [reason.detail for reason in report.reasons]
    assert report.engine == "spark"


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("local.workers", "many", "a whole number of at least 1"),
        ("timeoutSeconds", "soon", "a number of seconds above 0"),
        ("timeoutSeconds", "inf", "a number of seconds above 0"),
        ("shuffle.port", "http", "a port, or 0 for any"),
        ("shuffle.memoryFraction", "half", "a number between 0 and 1"),
    ],
)
def test_an_option_that_is_no_number_says_what_is_expected(option: str, value: str, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Config.read({f"spark.volley.{option}": value})
    assert f"expected {expected}." in str(raised.value)
    assert "literal" not in str(raised.value)


def test_a_message_ends_once() -> None:
    assert QueryError("it says: no such thing..").message == "it says: no such thing."
    assert QueryError("and so on...").message == "and so on..."
