# SPDX-License-Identifier: Apache-2.0
"""Functions whose rows are pickled: they see and return what they do in Spark, and unusual results are Spark's."""

from __future__ import annotations

import datetime
import decimal
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from helpers.sampling import every
from volley.errors import DataError
from volley.plan.types import BINARY, INTEGER, STRING, DecimalType
from volley.support.reasons import Reason
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf
from volley.worker.python.pickled import read_results

COLUMNS = """
    id, cast(id % 7 - 3 as tinyint) tiny, cast(id as smallint) small, cast(id as int) i, id % 2 = 0 flag,
    cast(id as float) / 3 f, if(id = 7, double('nan'), cast(id as double) / 7) dbl, cast(id as decimal(10, 2)) d,
    cast(id as decimal(38, 18)) wide, timestamp_seconds(id * 86400 * 31) t,
    cast(timestamp_seconds(id * 86400 * 31) as timestamp_ntz) n,
    date_add(date'1960-02-27', cast(id * 99 as int)) dt, if(id % 3 > 0, cast(id as string), null) s,
    cast(cast(id as string) as binary) b, if(id % 4 = 0, null, array(id, null)) a,
    named_struct('x', id, 'y', array(date'2020-01-01')) st,
    if(id % 5 = 0, null, named_struct('z', 'q', 'w', cast('x' as binary))) p,
    array(named_struct('m', cast(id as decimal(5, 1)), 'when', timestamp'2001-02-03 04:05:06.789')) deep
"""
NO_TIMES = ("id", "flag", "f", "d", "wide", "s", "b", "a", "p")


def rows(spark: SparkSession) -> DataFrame:
    return spark.sql(f"select {COLUMNS} from (select id from range(0, 60, 1, 2))")


def pickled(function: Callable[..., Any], result: str) -> Callable[..., Column]:
    made: Callable[..., Column] = F.udf(function, result, useArrow=False)
    return made


def showing() -> Callable[..., Column]:
    def show(*arguments: Any, **named: Any) -> str:
        return repr((arguments, sorted(named.items())))

    return pickled(show, "string")


def seen(spark: SparkSession) -> DataFrame:
    """All types together and without those that are converted in Python, named arguments, chains, no arguments."""
    shown = showing()
    frame = rows(spark)
    return frame.select(
        "s",
        shown(*frame.columns),
        shown(*NO_TIMES),
        shown(frame.id, frame.d, zone=frame.t),
        shown(shown(frame.s)),
        shown(),
    )


def returned(spark: SparkSession) -> DataFrame:
    def returns(kind: str, value: Callable[[Any], Any]) -> Column:
        return pickled(value, kind)("id").alias(kind)

    return rows(spark).select(
        returns("tinyint", lambda number: number % 100),
        returns("int", lambda number: number if number % 2 else None),
        returns("bigint", lambda number: number * 2**40),
        returns("string", lambda number: f"Grüße {number} 🚀"),
        returns("double", lambda number: number / 3),
        returns("float", lambda number: number / 3),
        returns("boolean", lambda number: number > 9),
        returns("binary", lambda number: (bytes if number % 2 else bytearray)(str(number).encode())),
        returns("decimal(12,3)", lambda number: decimal.Decimal(number) / 8),
        returns("date", lambda number: datetime.date(1960, 2, 29)),
        returns("timestamp", lambda number: datetime.datetime(2024, 3, 10, 12, 30, number)),
        returns("timestamp_ntz", lambda number: datetime.datetime(2024, 3, 10, 2, 30, number)),
        returns("array<int>", lambda number: [number, None] if number % 3 else None),
        returns(
            "struct<x:int,y:array<string>>", lambda number: (number, [str(number)]) if number % 3 else None
        ),
        returns("array<struct<d:date>>", lambda number: [(datetime.date(2000, 1, 1),), None]),
        returns("void", lambda number: None),
    )


def plain(spark: SparkSession) -> DataFrame:
    """Types whose objects Arrow makes too, so these rows are not pickled."""
    shown = showing()

    def returns(kind: str, value: Callable[[Any], Any]) -> Column:
        return pickled(value, kind)("id").alias(kind)

    return rows(spark).select(
        shown("id", "tiny", "small", "i", "flag", "f", "dbl", "s"),
        shown("s", zone=F.col("dbl")),
        shown(shown("f")),
        shown(),
        returns("tinyint", lambda number: number % 100),
        returns("int", lambda number: number if number % 2 else None),
        returns("string", lambda number: f"Grüße {number} 🚀"),
        returns("double", lambda number: float("nan") if number == 7 else number / 3),
        returns("float", lambda number: number / 3),
        returns("boolean", lambda number: number > 9),
    )


def everywhere(spark: SparkSession) -> DataFrame:
    odd = pickled(lambda number: number % 2 == 1, "boolean")
    text = pickled(lambda number: None if number is None else f"key {number % 4}", "string")
    frame = rows(spark)
    return frame.where(odd("id")).groupBy(text("id").alias("key")).agg(F.count("*").alias("n"))


@pytest.mark.parametrize("query", [seen, returned, plain, everywhere])
def test_functions_give_the_rows_of_spark(
    spark: SparkSession, query: Callable[[SparkSession], DataFrame]
) -> None:
    with conf(spark, {"spark.sql.session.timeZone": "America/Los_Angeles"}):
        assert_same_rows(spark, query)


def test_binary_values_are_what_the_session_wants(spark: SparkSession) -> None:
    shown = showing()
    with conf(spark, {"spark.sql.execution.pyspark.binaryAsBytes": "false"}):
        assert_same_rows(spark, lambda session: rows(session).select(shown("b", "p")))


@pytest.mark.parametrize(
    ("kind", "value"),
    every(
        3,
        [
            ("int", lambda number: float(number)),
            ("double", lambda number: number),
            ("string", lambda number: number),
            ("tinyint", lambda number: number + 100),
            ("boolean", lambda number: number),
            ("decimal(5,2)", lambda number: decimal.Decimal(1) / 3),
            ("binary", lambda number: "text"),
            ("array<int>", lambda number: (number, 2)),
            ("int", lambda number: True),
        ],
    ),
)
def test_unusual_results_are_judged_by_spark(
    spark: SparkSession, kind: str, value: Callable[[Any], Any]
) -> None:
    frame = spark.range(50).select(pickled(value, kind)("id").alias("v"))
    assert_same_rows(spark, frame, native=False)
    report = volley.last_query(spark)
    assert report is not None
    assert (report.engine, report.reasons[0].reason) == ("spark", Reason.REPLAY)


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 3",)


def test_what_a_function_returns_is_not_run_here() -> None:
    foreign: tuple[Any, ...] = (Harmful(), datetime.date(2000, 1, 1), len)
    for found in foreign:
        with pytest.raises(DataError, match="Spark has to judge"):
            read_results(pickle.dumps([found]), [STRING])
    for broken in (b"", b"\x80\x04", pickle.dumps((1, 2))):
        with pytest.raises(DataError):
            read_results(broken, [INTEGER])
    for value, kind in ((decimal.Decimal("NaN"), DecimalType(5, 2)), ("\ud800", STRING), ([1], BINARY)):
        with pytest.raises(DataError, match="not simply one of type"):
            read_results(pickle.dumps([value]), [kind])
