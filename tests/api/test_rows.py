# SPDX-License-Identifier: Apache-2.0
"""The comparison with Spark is what every other test trusts, so it is shown to fail where it must."""

from __future__ import annotations

import math
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from volley.bench.compare import difference
from volley.bench.order import sort_columns
from volley.testing.rows import SparkTasks, assert_same_rows
from volley.testing.session import conf, restore_conf


def table(values: list[object], type: pa.DataType | None = None, name: str = "a") -> pa.Table:
    return pa.table({name: pa.array(values, type)})


class TestDifference:
    @pytest.mark.parametrize(
        ("expected", "actual", "says"),
        [
            (table([1, 2]), table([1, 3]), "1 of 2 rows differ"),
            (table([1, 1]), table([1]), "2 rows expected, 1 found"),
            (table([1, 1, 2]), table([1, 2, 2]), "1 of 3 rows differ"),
            (table([1]), table([None], pa.int64()), "1 of 1 rows differ"),
            (table([0.0]), table([math.nan]), "1 of 1 rows differ"),
            (table([math.inf]), table([math.nan]), "1 of 1 rows differ"),
            (table([1.0]), table([1.0 + 1e-8]), "1 of 1 rows differ"),
            (table([0.0]), table([1e-300]), "1 of 1 rows differ"),
            (table([1], pa.int64()), table([1], pa.int32()), "expected int64, found int32"),
            (table([1], name="a"), table([1], name="b"), "columns expected"),
            (
                table([Decimal("1.0")], pa.decimal128(10, 1)),
                table([Decimal("1.00")], pa.decimal128(10, 2)),
                "expected decimal128(10, 1), found decimal128(10, 2)",
            ),
            (
                table([0], pa.timestamp("us", "UTC")),
                table([0], pa.timestamp("us")),
                "expected timestamp[us, tz=UTC], found timestamp[us]",
            ),
            (table([[1.0]]), table([[2.0]]), "1 of 1 rows differ"),
            (table([{"x": 1}]), table([{"x": 2}]), "1 of 1 rows differ"),
        ],
    )
    def test_it_is_found(self, expected: pa.Table, actual: pa.Table, says: str) -> None:
        problem = difference(expected, actual)
        assert problem is not None
        assert says in problem

    @pytest.mark.parametrize(
        ("expected", "actual"),
        [
            (table([1, 2, None]), table([None, 2, 1])),
            (table([math.nan, math.inf, 1.0]), table([1.0, math.nan, math.inf])),
            (table([0.0]), table([-0.0])),
            (table([1 / 3]), table([1 / 3 + 1e-16])),
            (table([["a"], None]), table([None, ["a"]])),
            (table([], pa.int64()), table([], pa.int64())),
        ],
    )
    def test_equal_bags_are_equal(self, expected: pa.Table, actual: pa.Table) -> None:
        assert difference(expected, actual) is None

    def test_rounding_does_not_pair_the_wrong_rows(self) -> None:
        expected = pa.table({"sum": [1.0000005, 1.0000005 + 1e-12], "key": [1, 2]})
        actual = pa.table({"sum": [1.0000005 + 1e-12, 1.0000005], "key": [1, 2]})
        assert difference(expected, actual) is None

    def test_doubles_that_are_only_close_are_paired_by_their_values(self) -> None:
        one, other = 0.2932990806357483, 0.2932990500113518
        assert difference(table([one, other]), table([other, one])) is None

    def test_a_tolerance_of_zero_is_exact(self) -> None:
        assert difference(table([1 / 3]), table([math.nextafter(1 / 3, 1)]), tolerance=0.0) is not None
        assert difference(table([[0.0]]), table([[-0.0]]), tolerance=0.0) is not None
        assert difference(table([math.nan, 0.0, -0.0]), table([-0.0, math.nan, 0.0]), tolerance=0.0) is None

    def test_zeros_tie_whatever_their_sign(self) -> None:
        expected, actual = table([0.0, -0.0]), table([-0.0, 0.0])
        assert difference(expected, actual, order=[0], tolerance=0.0) is None

    def test_an_order_that_was_asked_for_is_compared(self) -> None:
        problem = difference(table([1, 2]), table([2, 1]), order=[0])
        assert problem is not None
        assert "order differs at row 0" in problem

    def test_ties_may_change_places(self) -> None:
        expected = pa.table({"key": [1, 1], "value": ["a", "b"]})
        actual = pa.table({"key": [1, 1], "value": ["b", "a"]})
        assert difference(expected, actual, order=[0]) is None
        assert difference(expected, actual, order=[0, 1]) is not None


class TestSortColumns:
    @pytest.mark.parametrize(
        ("sql", "columns"),
        [
            ("select id, -id as b from range(3)", None),
            ("select id, -id as b from range(3) order by b desc, id", [1, 0]),
            ("select id, -id as b from range(3) order by b limit 2", [1]),
            ("select -id as b from range(3) order by id", []),
            ("with t as (select id as a from range(3)) select a from t order by a", [0]),
            ("select id from (select id from range(3) order by id) group by id", None),
        ],
    )
    def test_it_follows_the_order_by(self, spark: SparkSession, sql: str, columns: list[int] | None) -> None:
        assert sort_columns(spark.sql(sql)) == columns


class TestSparkTasks:
    def test_it_counts(self, spark: SparkSession) -> None:
        with conf(spark, {"spark.volley.enabled": "false"}), SparkTasks(spark) as tasks:
            spark.range(0, 100, 1, numPartitions=7).toArrow()
        assert tasks.count == 7

    def test_planning_alone_is_no_task(self, spark: SparkSession) -> None:
        with SparkTasks(spark) as tasks:
            spark.range(100).groupBy("id").count()._jdf.queryExecution().executedPlan()
        assert tasks.count == 0


class TestAssertSameRows:
    def test_a_native_query_passes(self, tpch: SparkSession) -> None:
        assert_same_rows(tpch, "select r_name, r_regionkey from region order by r_name")

    def test_a_query_on_spark_is_not_a_pass(self, spark: SparkSession) -> None:
        with pytest.raises(AssertionError, match="not natively"):
            assert_same_rows(spark, "select input_file_block_start() as i from range(3)")

    def test_where_native_is_not_asked_it_is(self, spark: SparkSession) -> None:
        assert_same_rows(spark, "select input_file_block_start() as i from range(3)", native=False)


class TestConf:
    KEY = "spark.sql.ansi.enabled"

    def test_settings_go_back(self, spark: SparkSession) -> None:
        with conf(spark, {self.KEY: "false", "spark.volley.local.workers": "2"}):
            assert spark.conf.get(self.KEY) == "false"
        assert spark.conf.get(self.KEY) == "true"
        assert spark.conf.get("spark.volley.local.workers", None) is None

    def test_they_go_back_after_an_error(self, spark: SparkSession) -> None:
        with pytest.raises(ValueError), conf(spark, {self.KEY: "false"}):
            raise ValueError
        assert spark.conf.get(self.KEY) == "true"

    def test_whatever_was_set_is_undone(self, spark: SparkSession) -> None:
        with restore_conf(spark):
            spark.conf.set(self.KEY, "false")
            spark.conf.set("spark.sql.shuffle.partitions", "9")
            spark.conf.unset("spark.sql.session.timeZone")
        assert spark.conf.get(self.KEY) == "true"
        assert spark.conf.get("spark.sql.shuffle.partitions") == "4"
        assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
