# SPDX-License-Identifier: Apache-2.0
"""Cogrouped maps: a function sees both sides of each group once, whole, also where one side has no rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from helpers.sampling import every
from volley.support.reasons import Reason
from volley.testing.rows import assert_same_rows

LEFT = """
    select if(id % 5 = 0, null, id % 7) k, concat('g', id % 2) g, id, cast(id as decimal(10, 2)) d,
        timestamp_seconds(id * 86400 * 31) t, array(id, null) a, named_struct('x', id) st
    from range(0, 200, 1, 3)
"""
RIGHT = """
    select id % 9 k, date_add(date'1999-12-31', cast(id as int)) dt, concat('g', id % 3) g, cast(id as float) f
    from range(0, 90, 1, 2)
"""


Function = Callable[[Any, pd.DataFrame, pd.DataFrame], pd.DataFrame]


def showing() -> Function:
    """A function of this function, because a worker cannot import this module."""

    def show(key: Any, left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        sides = [(sorted(side[name]), side.dtypes, list(side)) for side, name in ((left, "id"), (right, "f"))]
        return pd.DataFrame({"s": [repr((key, sides))], "n": [len(left)], "m": [len(right)]})

    return show


def in_pandas(spark: SparkSession) -> DataFrame:
    """One key, NULL on one side; groups that only one side has."""
    left, right = spark.sql(LEFT).groupBy("k"), spark.sql(RIGHT).groupBy("k")
    return left.cogroup(right).applyInPandas(showing(), "s string, n long, m long")


def by_several_keys(spark: SparkSession) -> DataFrame:
    """Keys that are expressions, and none of the columns that the function sees."""
    left = spark.sql(LEFT).groupBy((F.col("id") % 4).alias("e"), "g")
    right = spark.sql(RIGHT).groupBy((F.col("k") % 4).alias("e"), "g")
    return left.cogroup(right).applyInPandas(showing(), "s string, n long, m long")


def without_key(spark: SparkSession) -> DataFrame:
    def join(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        return left.merge(right, on=["k", "g"])[["id", "f"]]

    left, right = spark.sql(LEFT).groupBy("k", "g"), spark.sql(RIGHT).groupBy("k", "g")
    joined = left.cogroup(right).applyInPandas(join, "id long, f float")
    return joined.groupBy("f").agg(F.sum("id").alias("total"))


def in_arrow(spark: SparkSession) -> DataFrame:
    def count(key: Any, left: pa.Table, right: pa.Table) -> pa.Table:
        shown = repr((key, left.schema, right.schema))
        return pa.table({"s": [shown], "n": [left.num_rows], "m": [right.num_rows]})

    left, right = spark.sql(LEFT).groupBy("g"), spark.sql(RIGHT).groupBy("g")
    return left.cogroup(right).applyInArrow(count, "s string, n long, m long")


def of_itself(spark: SparkSession) -> DataFrame:
    def sizes(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"n": [len(left)], "m": [len(right)]})

    frame = spark.sql(LEFT)
    return (
        frame.groupBy("g").cogroup(frame.where("id < 20").groupBy("g")).applyInPandas(sizes, "n long, m long")
    )


def of_one_column(spark: SparkSession) -> DataFrame:
    """Its name is one that the protocol uses for other things."""

    def sizes(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"n": [left["struct"].sum()], "m": [len(right)]})

    left = spark.range(10).selectExpr("id % 3 as struct").groupBy("struct")
    return left.cogroup(spark.range(5).groupBy("id")).applyInPandas(sizes, "n long, m long")


QUERIES = [in_pandas, by_several_keys, without_key, in_arrow, of_itself, of_one_column]


@pytest.mark.parametrize("query", every(2, QUERIES, name=lambda query: query.__name__))
def test_groups_of_two_sides(spark: SparkSession, query: Callable[[SparkSession], DataFrame]) -> None:
    assert_same_rows(spark, query)


@pytest.mark.parametrize("query", [by_several_keys, in_arrow])
def test_on_several_workers(distributed: SparkSession, query: Callable[[SparkSession], DataFrame]) -> None:
    distributed.conf.set("spark.volley.local.workers", "3")
    assert_same_rows(distributed, query)


def test_a_group_map_of_one_column(spark: SparkSession) -> None:
    def total(group: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"n": [group["struct"].sum()]})

    assert_same_rows(
        spark,
        lambda session: (
            session.range(10).selectExpr("id % 3 as struct").groupBy("struct").applyInPandas(total, "n long")
        ),
    )


def test_types_that_functions_do_not_get(spark: SparkSession) -> None:
    def sizes(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"n": [len(left)], "m": [len(right)]})

    right = spark.range(5).selectExpr("id", "make_ym_interval(0, cast(id as int)) as m").groupBy("id")
    frame = spark.range(9).groupBy("id").cogroup(right).applyInPandas(sizes, "n long, m long")
    assert Reason.DATA_TYPE in {reason.reason for reason in volley.explain(frame).reasons}
