# SPDX-License-Identifier: Apache-2.0
"""Arithmetic is computed without a check only where the values in the files cannot overflow, wherever they end up."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import SparkSession

from volley.formats.column_ranges import column_range
from volley.lower.value_ranges import fits, mark_fitting_arithmetic, range_of
from volley.plan.expressions import Alias, Attribute, Call, EvalMode, Literal, walk
from volley.plan.nodes import DataFile, FileScan, Filter, Node, Project, Union, expressions
from volley.plan.nodes import walk as walk_nodes
from volley.plan.types import BOOLEAN, BYTE, DOUBLE, INTEGER, LONG, DataType, DecimalType
from volley.testing.rows import assert_same_rows

PRICE, WIDE = DecimalType(15, 2), DecimalType(38, 4)
NUMBER, MONEY = Attribute(1, "n", LONG), Attribute(2, "p", PRICE)
ONE = Literal(1, LONG)


def scan_of(path: Path, *columns: Attribute, **values: pa.Array) -> FileScan:
    """A scan of one file with these columns."""
    pq.write_table(pa.table(values), path, store_decimal_as_integer=True)
    file = DataFile(str(path), path.stat().st_size, 0)
    return FileScan("parquet", (file,), columns, (), ())


def plus(left: Any, right: Any, data_type: DataType = LONG) -> Call:
    return Call("Add", (left, right), data_type, EvalMode.ANSI)


def marked(plan: Node) -> list[bool]:
    """Whether each addition and product fits, top down."""
    parts = [
        part
        for node in walk_nodes(mark_fitting_arithmetic(plan))
        for expression in expressions(node)
        for part in walk(expression)
    ]
    return [fits(part) for part in parts if isinstance(part, Call) and part.function in ("Add", "Multiply")]


def longs(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int64())


def test_bounds_of_a_file(tmp_path: Path) -> None:
    prices = pa.array([Decimal("-1.50"), None, Decimal("104949.50")], pa.decimal128(15, 2))
    scan = scan_of(tmp_path / "a.parquet", NUMBER, MONEY, n=longs(-3, 7, None), p=prices)
    assert column_range(scan, NUMBER) == (-3, 7)
    assert column_range(scan, MONEY) == (-150, 10_494_950)
    # A type with more digits after the point.
    assert column_range(scan, Attribute(3, "p", WIDE)) == (-15_000, 1_049_495_000)
    assert column_range(scan, Attribute(4, "missing", LONG)) is None


def test_files_that_do_not_tell(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    scan = scan_of(path, NUMBER, n=longs(1, 2))
    assert column_range(scan, NUMBER) == (0, 2)
    pq.write_table(pa.table({"n": longs(1, 2)}), path, write_statistics=False)
    file = DataFile(str(path), path.stat().st_size, 0)
    assert column_range(FileScan("parquet", (file,), (NUMBER,), (), ()), NUMBER) is None
    assert column_range(FileScan("parquet", (file,), (NUMBER,), (NUMBER,), ()), NUMBER) is None
    assert column_range(FileScan("json", (file,), (NUMBER,), (), ()), NUMBER) is None


def test_a_file_that_is_written_again_has_other_bounds(tmp_path: Path) -> None:
    assert column_range(scan_of(tmp_path / "a.parquet", NUMBER, n=longs(1)), NUMBER) == (0, 1)
    assert column_range(scan_of(tmp_path / "a.parquet", NUMBER, n=longs(1, 2**62)), NUMBER) == (0, 2**62)


@pytest.mark.parametrize(("largest", "expected"), [(2**63 - 2, True), (2**63 - 1, False)])
def test_sums_up_to_the_limit(tmp_path: Path, largest: int, expected: bool) -> None:
    scan = scan_of(tmp_path / "a.parquet", NUMBER, n=longs(largest))
    assert marked(Project((Alias(5, "m", plus(NUMBER, ONE)),), scan)) == [expected]


def test_bounds_pass_operators_that_pass_values_on(tmp_path: Path) -> None:
    scan = scan_of(tmp_path / "a.parquet", NUMBER, n=longs(2**62 - 1))
    twice = Project((Alias(5, "m", plus(NUMBER, NUMBER)),), scan)
    doubled = Attribute(5, "m", LONG)
    kept = Filter(Call("GreaterThan", (plus(doubled, ONE), ONE), BOOLEAN), twice)
    assert marked(kept) == [True, True]
    assert marked(Project((Alias(6, "o", plus(doubled, doubled)),), twice)) == [False, True]


def test_bounds_do_not_pass_a_union(tmp_path: Path) -> None:
    small = scan_of(tmp_path / "a.parquet", NUMBER, n=longs(1))
    large = scan_of(tmp_path / "b.parquet", Attribute(9, "n", LONG), n=longs(2**63 - 1))
    both = Union((NUMBER,), (small, large))
    assert marked(Project((Alias(5, "m", plus(NUMBER, ONE)),), both)) == [False]


def test_ranges_of_expressions() -> None:
    def columns(id: int) -> tuple[int, int]:
        return -100, 300

    minus = Call("Subtract", (MONEY, Literal(Decimal("1.00"), DecimalType(3, 2))), DecimalType(16, 2))
    product = Call("Multiply", (minus, MONEY), DecimalType(32, 4))
    assert range_of(minus, columns) == (-200, 200)
    assert range_of(product, columns) == (-60_000, 60_000)
    # Digits are lost, or the type has no exact numbers.
    assert range_of(Call("Multiply", (minus, MONEY), DecimalType(32, 3)), columns) is None
    assert range_of(Call("Cast", (MONEY,), DecimalType(10, 1)), columns) is None
    assert range_of(Call("Add", (MONEY, MONEY), DOUBLE), columns) is None
    assert range_of(Call("Cast", (NUMBER,), BYTE), columns) is None
    assert range_of(Call("Cast", (NUMBER,), INTEGER), columns) == (-100, 300)
    assert range_of(Call("Cast", (NUMBER,), DecimalType(4, 2)), columns) is None
    assert range_of(Call("Cast", (NUMBER,), DecimalType(7, 2)), columns) == (-10_000, 30_000)


@pytest.fixture
def numbers(spark: SparkSession, tmp_path: Path) -> str:
    """A view of numbers at the limits of their types in one file, and small ones in another."""
    folder = tmp_path / "numbers"
    folder.mkdir()
    for name, large in (("a", False), ("b", True)):
        pq.write_table(
            pa.table(
                {
                    "file": pa.array([name, name, name]),
                    "b": pa.array([-128 if large else -5, 127 if large else 5, None], pa.int8()),
                    "i": pa.array([-(2**31) if large else -5, 2**31 - 1 if large else 5, None], pa.int32()),
                    "l": pa.array([-(2**63) if large else -5, 2**63 - 1 if large else 5, None], pa.int64()),
                    "d": pa.array(
                        [Decimal(-(10**18 - 1) if large else -5), Decimal(10**18 - 1 if large else 5), None],
                        pa.decimal128(18, 0),
                    ),
                    "w": pa.array(
                        [Decimal(-(10**38 - 1) if large else -5), Decimal(10**38 - 1 if large else 5), None],
                        pa.decimal128(38, 0),
                    ),
                }
            ),
            folder / f"{name}.parquet",
            store_decimal_as_integer=True,
        )
    spark.read.parquet(str(folder)).createOrReplaceTempView("numbers")
    spark.read.parquet(str(folder / "a.parquet")).createOrReplaceTempView("small_numbers")
    return "numbers"


FITTING = ("b + b", "i * 3 - b", "l + 1", "l * l", "d * d + 1", "d * d * 10BD", "l - i + b", "w + 1", "d - l")


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_small_numbers_have_sparks_values(spark: SparkSession, numbers: str, ansi: str) -> None:
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        assert_same_rows(spark, f"select {', '.join(FITTING)} from small_numbers")
        assert_same_rows(
            spark, "select sum(l + 1), sum(d * d * 10BD), max(i * 3) from small_numbers group by b"
        )
        assert_same_rows(
            spark, "select file, try_add(l, 1), try_multiply(i, 2) from small_numbers where i + 1 > 0"
        )
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


def test_large_numbers_wrap_or_are_null(spark: SparkSession, numbers: str) -> None:
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        assert_same_rows(spark, f"select file, {', '.join(FITTING)} from numbers")
        # The columns of a union have the ids of those of its first input.
        both = "select l, d from small_numbers union all select l, d from numbers"
        assert_same_rows(spark, f"select l + l, d * d * 10BD from ({both})")
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.parametrize("result", ["i + 1", "l + 1", "d * d * 1000BD", "w + 1"])
def test_large_numbers_fail_as_in_spark(spark: SparkSession, numbers: str, result: str) -> None:
    both = "select * from small_numbers union all select * from numbers"
    with pytest.raises(ArithmeticException):
        spark.sql(f"select {result} from ({both})").collect()
