# SPDX-License-Identifier: Apache-2.0
"""Expressions inside whole queries: natively with Spark's rows, and with Spark's own errors where Spark has them."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import volley
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf


@pytest.fixture
def numbers(spark: SparkSession, tmp_path: Path) -> SparkSession:
    table = pa.table(
        {
            "a": pa.array([6, 1, None, 8, 2**63 - 1], pa.int64()),
            "b": pa.array([2, 0, 0, None, 1], pa.int64()),
            "x": pa.array([0.0, -0.0, float("nan"), None, 1.5]),
            "s": pa.array(["12", "abc", None, "", "7"]),
            "p": pa.array(
                [Decimal("1.25"), Decimal("-99999.99"), None, Decimal("0.01"), Decimal("2.50")],
                pa.decimal128(7, 2),
            ),
        }
    )
    pq.write_table(table, tmp_path / "numbers.parquet")
    spark.read.parquet(str(tmp_path / "numbers.parquet")).createOrReplaceTempView("numbers")
    return spark


@pytest.mark.parametrize(
    "query",
    [
        "select a, b from numbers where b <> 0 and a / b > 1",
        "select a from numbers where b = 0 or a % b = 0",
        "select a, if(b = 0, null, a div b) as q from numbers",
        "select x = 0.0D as zero, x > 1.0D as large, isnan(x) as nan from numbers",
        "select upper(s), length(s), s like '%b%', try_cast(s as int) from numbers where s <> ''",
        "select try_add(a, b), try_divide(a, b) from numbers",
        # Spark sums small decimals as longs, averages them as doubles, and makes decimals of both.
        "select sum(p), avg(p), b from numbers group by b",
        "select a, sum(p) over (partition by b) as total from numbers",
    ],
)
def test_rows(numbers: SparkSession, query: str) -> None:
    assert_same_rows(numbers, query)


# Spark leaves constants that fail to the rows that reach them, of which there may be none.
_CONSTANTS = (
    *(f"cast('x' as {kind})" for kind in ("int", "double", "decimal(5,2)", "boolean", "date", "timestamp")),
    *("cast('x' as timestamp_ntz)", "to_timestamp('x', 'yyyy-MM-dd')", "unix_timestamp('x')"),
    *(
        "from_utc_timestamp(timestamp'2024-01-01', 'Nowhere')",
        "to_utc_timestamp(timestamp'2024-01-01', 'Nowhere')",
    ),
)


@pytest.mark.parametrize("constant", _CONSTANTS)
def test_constants_that_fail_where_no_row_reaches_them(numbers: SparkSession, constant: str) -> None:
    assert_same_rows(numbers, f"select a, case when a < 0 then {constant} end as c from numbers")
    with pytest.raises(PySparkException) as native:
        numbers.sql(f"select {constant} from numbers").collect()
    with conf(numbers, {"spark.volley.enabled": "false"}), pytest.raises(PySparkException) as spark:
        numbers.sql(f"select {constant} from numbers").collect()
    assert native.value.getCondition() == spark.value.getCondition()


@pytest.mark.parametrize(
    ("query", "condition"),
    [
        ("select a / b from numbers", "DIVIDE_BY_ZERO"),
        pytest.param("select a % b from numbers", "REMAINDER_BY_ZERO", marks=pytest.mark.since("4.1")),
        ("select a + 1 from numbers", "ARITHMETIC_OVERFLOW"),
        ("select cast(a as int) from numbers", "CAST_OVERFLOW"),
        ("select cast(s as int) from numbers", "CAST_INVALID_INPUT"),
        ("select cast(a as decimal(3,0)) from numbers", "NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION"),
    ],
)
@pytest.mark.since("4.0")
def test_errors_are_sparks_own(numbers: SparkSession, query: str, condition: str) -> None:
    with pytest.raises(PySparkException) as native:
        numbers.sql(query).collect()
    with conf(numbers, {"spark.volley.enabled": "false"}), pytest.raises(PySparkException) as spark:
        numbers.sql(query).collect()
    assert native.value.getCondition() == spark.value.getCondition() == condition
    assert native.value.getMessageParameters() == spark.value.getMessageParameters()


@pytest.mark.parametrize("query", ["select a / b from numbers", "select cast(s as int) from numbers"])
def test_without_ansi_the_same_queries_have_rows(numbers: SparkSession, query: str) -> None:
    with conf(numbers, {"spark.sql.ansi.enabled": "false"}):
        assert_same_rows(numbers, query, native=False)


def test_without_ansi_whole_numbers_have_64_bits(numbers: SparkSession) -> None:
    """As in Java: NaN is 0, and what is out of range is the largest or smallest number."""
    with conf(numbers, {"spark.sql.ansi.enabled": "false"}):
        assert_same_rows(numbers, "select floor(x), ceil(x), floor(x * 1e300), ceil(x * -1e300) from numbers")


@pytest.mark.parametrize(
    "expression",
    [
        *(
            "round(x)",
            "round(x, 1)",
            "round(x, 30)",
            "cast(x as decimal(10,2))",
            "try_cast(x as decimal(3,2))",
        ),
        *("cast(cast(x as float) as decimal(10,1))", "lower(s)", "a div b"),
    ],
)
def test_sparks_code_computes_single_values(spark: SparkSession, tmp_path: Path, expression: str) -> None:
    """Doubles between two results, some words in Greek, and the one quotient of longs that wraps."""
    table = pa.table(
        {
            "x": [0.5, -2.5, 1.005, 0.125, -0.0, float("nan"), 1e300, None],
            "s": ["ΑΣ", "Σα", "ABC", None, "İ", "ß", "", "x"],
            "a": [-(2**63), 7, None, 7, 0, 1, 1, 2],
            "b": [-1, -2, -1, 0, -1, None, 1, 3],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    spark.read.parquet(str(tmp_path)).createOrReplaceTempView("t")
    assert_same_rows(spark, f"select {expression} from t", tolerance=0)


def test_data_that_only_spark_can_answer_is_replayed(numbers: SparkSession) -> None:
    """Text that the native cast does not read: right rows all the same, and the report says who gave them."""
    query = "select try_cast(concat(' ', s) as int) from numbers"
    numbers.conf.set("spark.volley.jvmExpressions", "off")
    assert_same_rows(numbers, query, native=False)
    numbers.sql(query).collect()
    report = volley.last_query(numbers)
    assert report is not None
    assert report.engine == "spark"
