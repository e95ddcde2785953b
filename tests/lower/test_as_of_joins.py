# SPDX-License-Identifier: Apache-2.0
"""As-of joins, with Spark as the oracle: ties, NULLs, strict and other comparisons, and conditions besides."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

import volley
from volley.support.reasons import Reason
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

pytestmark = pytest.mark.since("4.3")

# Some times occur twice on the right, so that the order of its rows shows.
_LEFT = """select id, if(id % 13 = 0, null, id % 4) k, if(id % 11 = 0, null, id * 37 % 101) t,
timestamp_seconds(id * 7919 % 500) s, if(id % 9 = 0, -0.0D, id / 3) f, array(id % 5) a,
named_struct('p', id % 3, 'q', if(id % 4 = 0, null, string(id % 7))) st from range(0, 90, 1, 1)"""
_RIGHT = """select id, if(id % 17 = 0, null, id % 5) k, if(id % 7 = 0, null, id * 13 % 40) t,
timestamp_seconds(id * 6007 % 500) s, case id % 6 when 0 then 0.0D when 1 then double('NaN') else id / 2 end f,
array(id % 5, if(id % 3 = 0, null, id)) a, named_struct('p', id % 3, 'q', if(id % 5 = 0, null, string(id % 9))) st,
map('m', id) m, if(id % 3 = 0, null, concat('x', id)) x from range(0, 70, 1, 1)"""

_QUERIES = (
    "select l.id, r.* from l asof join r match_condition (l.t >= r.t) on l.k = r.k",
    "select l.id, l.k, r.id, r.x from l left asof join r match_condition (l.t > r.t) on l.k = r.k",
    "select l.id, r.* from l left asof join r match_condition (l.t <= r.t) on l.k = r.k",
    "select l.*, r.t from l asof join r match_condition (l.t < r.t) using (k)",
    # Without keys, in the order of the left side.
    "select l.id, r.id from l asof join (select * from r where t is not null) r match_condition (l.t >= r.t)"
    " order by l.t, l.id",
    "select l.id, r.x from l left asof join r match_condition (l.s < r.s) order by l.s",
    # Only the number of rows, and a side without rows.
    "select count(*) from l asof join r match_condition (l.s >= r.s) on l.k = r.k",
    "select l.id, q.x from l left asof join (select * from r where id < 0) q match_condition (l.t >= q.t) on l.k = q.k",
    # Other conditions.
    "select l.id, r.id from l asof join r match_condition (l.t >= r.t) on l.k = r.k and l.id < r.id",
    "select l.id, r.id, r.x from l left asof join (select * from r where t is not null) r match_condition (l.t <= r.t)"
    " on l.k <=> r.k and r.x is not null",
    "select l.id, r.id from l left asof join r match_condition (l.s > r.s) on l.id % 3 != r.id % 3",
    # Types.
    "select l.id, r.id, r.f from l asof join r match_condition (l.f >= r.f) on l.k = r.k",
    "select l.id, r.id, r.f from l left asof join r match_condition (l.f <= r.f) on l.k = r.k",
    "select l.id, r.id from l asof join r match_condition (int(l.t) >= r.f) on l.k = r.k",
    "select l.id, r.id from l asof join r match_condition (string(l.t) < string(r.t)) on l.k = r.k",
    "select l.id, r.id from l asof join r match_condition (to_date(l.s) <= to_date(r.s)) on l.k = r.k",
    "select l.id, r.id from l asof join r match_condition (decimal(l.t) < decimal(r.t)) on l.k = r.k",
    "select l.id, r.id from l asof join r match_condition (binary(string(l.t)) > binary(string(r.t))) on l.k = r.k",
    "select l.id, r.id from l left asof join r match_condition ((l.t, l.id) >= (r.t, r.id)) on l.k = r.k",
    "select l.id, r.id from l left asof join r match_condition (l.st >= r.st) on l.k = r.k",
    "select l.id, r.id from l left asof join r match_condition (l.a > r.a) on l.k = r.k",
    # One above the other.
    "select l.id, r.id, q.id from l asof join r match_condition (l.t >= r.t) on l.k = r.k"
    " left asof join r q match_condition (r.s <= q.s) on r.k = q.k",
)


@pytest.fixture
def tables(distributed: SparkSession, tmp_path: Path) -> SparkSession:
    distributed.conf.set("spark.sql.join.asofJoin.enabled", "true")
    for name, rows in (("l", _LEFT), ("r", _RIGHT)):
        distributed.sql(rows).write.parquet(str(tmp_path / name))
        distributed.read.parquet(str(tmp_path / name)).createOrReplaceTempView(name)
    return distributed


@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.slow), "3"])
def test_matches(tables: SparkSession, workers: str) -> None:
    tables.conf.set("spark.volley.local.workers", workers)
    for query in _QUERIES:
        assert_same_rows(tables, query)


def test_the_last_of_equal_times_matches_whatever_the_left_side_is(tables: SparkSession) -> None:
    """The order of the right side counts even where that of the left side is unknown."""
    right = "values (1, 'a'), (1, 'b'), (2, 'c'), (2, 'd') as r(t, x)"
    for comparison in (">=", "<=", ">", "<"):
        assert_same_rows(
            tables,
            f"select g.t, r.x from (select t, count(*) from l group by t) g left asof join {right}"
            f" match_condition (g.t {comparison} r.t)",
        )


def test_distances_that_overflow(tables: SparkSession) -> None:
    """Looking forward Spark computes the distance, and raises an error or takes another row."""
    sides = "values ({0}) as l(t) asof join values ({1}), ({2}) as r(t)"
    far = sides.format("-9223372036854775807", "9223372036854775806", "9223372036854775807")
    for query in (
        f"select * from {far} match_condition (l.t <= r.t)",
        "select * from "
        + sides.format("double('-Infinity')", "double('-Infinity')", "1.0D")
        + " match_condition (l.t <= r.t)",
    ):
        with conf(tables, {"spark.sql.ansi.enabled": "false"}):
            assert_same_rows(tables, query, native=False)
            report = volley.last_query(tables)
            assert report is not None
            assert report.reasons[0].reason is Reason.REPLAY
    assert_same_rows(tables, f"select * from {far} match_condition (l.t >= r.t)")


def test_sorts_of_spark_that_are_not_stable(tables: SparkSession) -> None:
    """One number that may be NULL, and no keys: Spark takes another one of several rows with the same time."""
    query = "select l.id, r.id from l asof join r match_condition (l.t >= r.t)"
    assert_same_rows(tables, query, native=False)
    report = volley.last_query(tables)
    assert report is not None
    assert report.reasons[0].reason is Reason.REPLAY
    assert_same_rows(tables, query.replace("join r", "join (select * from r where id < 40) r"))


def test_what_has_no_native_form(tables: SparkSession) -> None:
    for query, detail in (
        ("l asof join r match_condition (l.t >= r.t) on l.f = r.f", "floating-point"),
        ("l asof join r match_condition ((l.t, l.id) < (r.t, r.id)) on l.k = r.k", "several columns"),
        ("l asof join r match_condition (l.a < r.a) on l.k = r.k", "array<bigint>"),
        (
            "l asof join r match_condition (l.s >= cast(r.s as timestamp_ntz)) on l.k = r.k",
            "another order",
        ),
    ):
        (reason, *_) = volley.explain(tables.sql(f"select l.id, r.id from {query}")).reasons
        assert reason.reason is Reason.OPERATOR
        assert detail in reason.detail


def test_frames_of_the_sort_merge_operator(tables: SparkSession) -> None:
    """`_joinAsOf`, for which Spark plans a subquery unless it is told to use the operator of SQL."""
    left, right = tables.table("l"), tables.table("r").where("id % 2 = 0").dropDuplicates(["k", "t"])
    for enabled in ("false", "true"):
        tables.conf.set("spark.sql.join.sortMergeAsOfJoin.enabled", enabled)
        for direction, tolerance in (("backward", None), ("forward", None), ("forward", 3), ("backward", 5)):

            def join(
                _: SparkSession, direction: str = direction, tolerance: int | None = tolerance
            ) -> DataFrame:
                return left._joinAsOf(
                    right.select("k", "t"),
                    left.t,
                    right.t,
                    on="k",
                    how="left",
                    direction=direction,
                    tolerance=None if tolerance is None else lit(tolerance),
                )

            assert_same_rows(tables, join)
