# SPDX-License-Identifier: Apache-2.0
"""Dates and times that Spark has and Python has not."""

from __future__ import annotations

from datetime import date

import pytest
from pyspark.sql import SparkSession

import volley
from volley.support.reasons import Reason


@pytest.mark.parametrize(
    "value",
    ["date_add(date'9999-12-31', id)", "date_add(date'0001-01-01', -id)", "timestamp_seconds(1e12 + id)"],
)
def test_spark_says_so(spark: SparkSession, value: str) -> None:
    frame = spark.range(1, 2).selectExpr("int(id) id").selectExpr(f"{value} x")
    with pytest.raises(Exception, match=r"out of range|must be|too large") as found:
        frame.collect()
    report = volley.last_query(spark)
    assert report is not None
    assert [reason.reason for reason in report.reasons] == [Reason.REPLAY], found
    assert frame.selectExpr("x is null").first() == (False,)


def test_the_last_day_is_a_row(spark: SparkSession) -> None:
    assert spark.range(1).selectExpr("date_add(date'9999-12-30', 1 + int(id)) x").first() == (
        date(9999, 12, 31),
    )
