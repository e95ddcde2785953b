# SPDX-License-Identifier: Apache-2.0
"""Data that a program gives to `createDataFrame` is read natively, as Spark reads it, and without a task of Spark."""

from __future__ import annotations

import datetime
import math
from collections import namedtuple
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import volley
from helpers.captured import plan_of
from helpers.shown import shown
from volley.observe.spark_tasks import SparkTasks
from volley.plan.nodes import LocalRows, walk
from volley.support.reasons import Reason
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

Point = namedtuple("Point", ["x", "y"])

OLD = datetime.date(1500, 2, 28)
SUMMER = datetime.datetime(2024, 7, 1, 12, 30, 15, 123456)

ALL_TYPES = (
    "b boolean, i8 tinyint, i16 smallint, i32 int, i64 bigint, f float, d double, s string, x binary, "
    "dt date, ts timestamp, n timestamp_ntz, m decimal(10,2), w decimal(38,18), "
    "a array<int>, st struct<p:int,q:string>, deep array<struct<p:array<string>,q:decimal(5,1)>>, v void"
)
FULL = (
    True, 1, 2, 3, 4, 1.5, 2.5, "Grüße, 世界 🚀", b"\x00\xff", OLD, SUMMER, SUMMER, Decimal("12345678.91"),
    Decimal("-1.000000000000000001"), [1, None, 3], (1, "q"), [(["a", None], Decimal("1.5")), None], None,
)  # fmt: skip
AWKWARD: tuple[Any, ...] = (
    False, -128, -32768, -(2**31), -(2**63), math.nan, -math.inf, "", b"", datetime.date(1, 1, 1),
    datetime.datetime(1600, 1, 1), datetime.datetime(1, 1, 1), Decimal("-99999999.99"), Decimal(0), [],
    (None, None), [], None,
)  # fmt: skip
NULLS = (None,) * len(FULL)


def same(spark: SparkSession, frame: DataFrame) -> list[Row]:
    """Fail unless Volley collects the rows of Spark, in their order, and all of it natively."""
    with conf(spark, {"spark.volley.enabled": "false"}):
        expected = frame.collect()
    with SparkTasks(spark) as tasks:
        actual = frame.collect()
    report = volley.last_query(spark)
    assert report is not None
    assert (report.engine, tasks.count) == ("native", 0), report.reasons
    assert repr(actual) == repr(expected)
    return actual


CASES: dict[str, Callable[[SparkSession], DataFrame]] = {
    "tuples": lambda spark: spark.createDataFrame([(1, "a"), (2, None), (None, "c")], ["a", "b"]),
    "tuples without names": lambda spark: spark.createDataFrame([(1, "a"), (2, "b")]),
    "rows": lambda spark: spark.createDataFrame([Row(a=1, b=Row(c="x")), Row(a=None, b=None)]),
    "dicts": lambda spark: spark.createDataFrame([{"a": 1, "b": "x"}, {"b": "y"}]),
    "named tuples": lambda spark: spark.createDataFrame([Point(1, 2.5), Point(3, math.nan)]),
    "a generator": lambda spark: spark.createDataFrame(((i, str(i)) for i in range(5)), "a int, b string"),
    "by name": lambda spark: spark.createDataFrame(data=[(1,)], schema=["a"]),
    "plain values": lambda spark: spark.createDataFrame([1, None, 3], "int"),
    "not verified": lambda spark: spark.createDataFrame([(1, 2), (3, "x")], "a int, b string", verifySchema=False),
    "no rows": lambda spark: spark.createDataFrame([], "a int, b array<string>"),
    "no columns": lambda spark: spark.createDataFrame([(), (), ()], ""),
    "not null": lambda spark: spark.createDataFrame([(1, [2])], "a int not null, b array<int> not null"),
    "all types": lambda spark: spark.createDataFrame([FULL, AWKWARD, NULLS, FULL], ALL_TYPES),
    "names with a dot and twice": lambda spark: spark.createDataFrame([(1, 2, 3)], ["a.b", "c", "c"]),
    "renamed": lambda spark: spark.createDataFrame([(1, "a")], ["a", "b"]).toDF("x", "y"),
    "a range": lambda spark: spark.range(5).toDF("x"),
    "an Arrow table": lambda spark: spark.createDataFrame(pa.table({"a": [1, None], "b": [["x"], []]})),
    "an empty frame": lambda spark: spark.emptyDataFrame("a int"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rows_of_every_kind_of_input(spark: SparkSession, name: str) -> None:
    same(spark, CASES[name](spark))


ACTIONS: dict[str, Callable[[DataFrame], Any]] = {
    "collect": lambda frame: frame.collect(),
    "tail": lambda frame: frame.tail(2),
    "toLocalIterator": lambda frame: list(frame.toLocalIterator()),
    "toPandas": lambda frame: frame.toPandas().to_dict(),  # type: ignore[attr-defined]
    "show": shown,
    "count": lambda frame: frame.count(),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_columns_of_every_type_that_are_never_null_in_frames_without_rows(
    spark: SparkSession, action: str
) -> None:
    """Also of no type, as the pandas API makes of an empty frame."""
    schema = T.StructType.fromDDL(ALL_TYPES)
    assert isinstance(schema, T.StructType)
    frame = spark.createDataFrame(
        [], T.StructType([T.StructField(f.name, f.dataType, False) for f in schema])
    )
    with conf(spark, {"spark.volley.enabled": "false"}):
        expected = ACTIONS[action](frame)
    assert ACTIONS[action](frame) == expected
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "native", report.reasons


@pytest.mark.parametrize("arrow", ["true", "false"])
def test_pandas_frames(spark: SparkSession, arrow: str) -> None:
    data = pd.DataFrame(
        {
            "i": [1, 2, 3],
            "f": [1.5, math.nan, -0.0],
            "s": ["ä", None, ""],
            "t": pd.to_datetime(["2024-07-01 12:00:00.5", None, "1969-12-31 23:59:59.999999"]),
            "l": [[1, 2], [], [3]],
        }
    )
    with conf(spark, {"spark.sql.execution.arrow.pyspark.enabled": arrow}):
        same(spark, spark.createDataFrame(data))


def test_an_arrow_table_that_spark_makes_an_rdd_of(spark: SparkSession) -> None:
    with conf(spark, {"spark.sql.execution.arrow.localRelationThreshold": "1"}):
        frame = spark.createDataFrame(pa.table({"a": list(range(1000)), "b": [["x", None]] * 1000}))
    assert frame._jdf.queryExecution().analyzed().getClass().getSimpleName() == "LogicalRDD"
    same(spark, frame)


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_timestamps_do_not_depend_on_the_session_time_zone(spark: SparkSession, zone: str) -> None:
    with conf(spark, {"spark.sql.session.timeZone": zone}):
        frame = spark.createDataFrame([FULL, AWKWARD], ALL_TYPES).select("ts", "n", "dt")
        same(spark, frame)
        assert_same_rows(spark, frame, ordered=True)


def test_many_rows_keep_their_order(spark: SparkSession) -> None:
    count = 100_000
    frames = [
        spark.createDataFrame([(i, f"text {i}", i / 7) for i in range(count)], ["a", "b", "c"]),
        spark.createDataFrame(pd.DataFrame({"a": range(count), "b": map(str, range(count))})),
    ]
    for frame in frames:
        with SparkTasks(spark) as tasks:
            assert frame.toArrow()["a"].to_pylist() == list(range(count))
            even = frame.where("a % 2 = 0").select("a").toArrow()["a"].to_pylist()
        assert even == list(range(0, count, 2))
        assert tasks.count == 0
        assert_same_rows(spark, frame.groupBy((F.col("a") % 7).alias("k")).agg(F.count("b"), F.sum("a")))


def test_joins_unions_and_aggregates(spark: SparkSession) -> None:
    left = spark.createDataFrame([(1, "a"), (2, "b"), (2, None), (None, "d")], "k int, v string")
    right = spark.createDataFrame([Row(k=2, w=1.5), Row(k=3, w=None), Row(k=None, w=2.0)], "k int, w double")
    frames = [
        left.join(right, "k", "full"),
        left.join(F.broadcast(right), "k"),
        left.join(left.withColumnRenamed("v", "u"), "k", "left"),
        left.unionByName(right, allowMissingColumns=True),
        left.groupBy("k").agg(F.count("v"), F.max("v")),
        left.join(spark.range(3).withColumnRenamed("id", "k"), "k", "left_anti"),
        left.where("k is null or v > 'a'").orderBy("v").limit(2),
    ]
    for workers in ("1", "3"):
        with conf(spark, DISTRIBUTED_SETTINGS | {"spark.volley.local.workers": workers}):
            for frame in frames:
                assert_same_rows(spark, frame)


def test_other_actions(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(i, str(i)) for i in range(30)], ["a", "b"])
    with SparkTasks(spark) as tasks:
        assert frame.count() == 30
        assert not frame.isEmpty()
        assert frame.first() == Row(a=0, b="0")
        assert frame.tail(1) == [Row(a=29, b="29")]
        assert [row.a for row in frame.toLocalIterator()] == list(range(30))
        assert len(frame.toPandas()) == 30
        assert frame.toArrow()["b"].to_pylist() == [str(i) for i in range(30)]
    assert tasks.count == 0


def test_a_view_and_arguments_of_sql(spark: SparkSession) -> None:
    spark.createDataFrame([(1, "a"), (2, "b")], ["k", "v"]).createOrReplaceTempView("given")
    assert same(spark, spark.sql("select * from given where k = :k", args={"k": 2})) == [Row(k=2, v="b")]
    frame = spark.createDataFrame([(3,)], ["k"])
    assert same(spark, spark.sql("select k + 1 as k from {frame}", frame=frame)) == [Row(k=4)]


def test_rows_are_read_once(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1,), (2,)], ["a"])
    first, again, other = (plan_of(each) for each in (frame, frame.where("a > 1"), frame.select("a")))
    (rows,) = {
        node.ipc for plan in (first, again, other) for node in walk(plan) if isinstance(node, LocalRows)
    }
    assert pa.ipc.open_stream(rows).read_all().to_pydict() == {"c0": [1, 2]}


def test_rdds_of_the_program_are_sparks(spark: SparkSession) -> None:
    context = spark.sparkContext
    local = spark.createDataFrame([(1,), (2,)], ["a"])
    for frame in (
        spark.createDataFrame(context.parallelize([(1,), (2,)]), "a long"),
        context.parallelize([(1,), (2,)]).toDF(["a"]),
        spark.createDataFrame(local.rdd, "a long"),
        local.rdd.toDF(),
    ):
        assert frame.collect() == [Row(a=1), Row(a=2)]
        report = volley.last_query(spark)
        assert report is not None
        assert report.engine == "spark"
        assert [reason.reason for reason in report.reasons] == [Reason.OPERATOR]


def test_types_that_are_not_carried_are_sparks(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(None,)], "a array<interval month>")
    assert frame.collect() == [Row(a=None)]
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "spark"
    assert report.reasons


def test_null_where_the_schema_has_none_is_sparks(spark: SparkSession) -> None:
    for ddl, row in [
        ("a int not null", (None,)),
        ("a struct<b:int not null>", ((None,),)),
        ("a array<struct<b:int not null>>", ([(1,), (None,)],)),
    ]:
        frame = spark.createDataFrame([row], ddl, verifySchema=False)
        assert not any(isinstance(node, LocalRows) for node in walk(plan_of(frame))), ddl
    # Nothing is wrong with a NULL whose inside has to be something.
    same(spark, spark.createDataFrame([(None,), ((1,),)], "a struct<b:int not null>"))


def test_values_that_do_not_fit_fail_as_in_spark(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(Decimal("123.45"),)], "a decimal(4,2)", verifySchema=False)
    with conf(spark, {"spark.volley.enabled": "false"}):
        try:
            expected: Any = frame.collect()
        except PySparkException as error:
            expected = error.getCondition()
    try:
        actual: Any = frame.collect()
    except PySparkException as error:
        actual = error.getCondition()
    assert actual == expected


def test_structs_with_fields_of_one_name(spark: SparkSession) -> None:
    frame = spark.createDataFrame([((1, 2), [(3, 4)])], "a struct<x:int,x:int>, b array<struct<y:int,y:int>>")
    (rows,) = (node for node in walk(plan_of(frame)) if isinstance(node, LocalRows))
    table = pa.ipc.open_stream(rows.ipc).read_all()
    assert [column.field(1).to_pylist() for column in table["c0"].chunks] == [[2]]
    assert [column.values.field(1).to_pylist() for column in table["c1"].chunks] == [[4]]


def test_more_than_the_limit_is_sparks(spark: SparkSession) -> None:
    # One text in every row: little to pickle, much to hold.
    frame = spark.createDataFrame([("x" * (1 << 20),)] * 100, ["a"])
    assert not any(isinstance(node, LocalRows) for node in walk(plan_of(frame)))
    assert frame.select(F.sum(F.length("a"))).collect()[0][0] == 100 << 20


_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-(2**7), 2**7 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    "binary": st.binary(max_size=5),
    "date": st.dates(),
    "timestamp": st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1)),
    "timestamp_ntz": st.datetimes(),
    "decimal(7,2)": st.decimals(-99999, 99999, places=2),
    "decimal(38,10)": st.decimals(-(10**27), 10**27, places=10),
}


def _columns(depth: int) -> st.SearchStrategy[tuple[str, st.SearchStrategy[Any]]]:
    """Types with strategies of their values, NULL among them."""
    scalars = st.sampled_from(sorted(_SCALARS)).map(lambda name: (name, st.none() | _SCALARS[name]))
    if not depth:
        return scalars
    inner = _columns(depth - 1)
    arrays = inner.map(
        lambda item: (f"array<{item[0]}>", st.none() | st.lists(item[1], max_size=3)),
    )
    structs = st.lists(inner, min_size=1, max_size=3).map(
        lambda items: (
            "struct<" + ",".join(f"f{index}:{item[0]}" for index, item in enumerate(items)) + ">",
            st.none() | st.tuples(*(item[1] for item in items)),
        )
    )
    return scalars | arrays | structs


@st.composite
def _data(draw: st.DrawFn) -> tuple[str, list[tuple[Any, ...]]]:
    columns = draw(st.lists(_columns(2), min_size=1, max_size=5))
    ddl = ", ".join(f"c{index} {name}" for index, (name, _) in enumerate(columns))
    return ddl, draw(st.lists(st.tuples(*(values for _, values in columns)), max_size=6))


@pytest.mark.parametrize("examples", [15, pytest.param(200, marks=pytest.mark.slow)])
def test_random_schemas_and_rows(spark: SparkSession, examples: int) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(data=_data())
    def check(data: tuple[str, list[tuple[Any, ...]]]) -> None:
        ddl, rows = data
        same(spark, spark.createDataFrame(rows, ddl))

    check()
