# SPDX-License-Identifier: Apache-2.0
"""Python table functions in native queries: with and without a lateral join, over whole tables, groups and rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import udf, udtf
from pyspark.sql.udtf import (
    AnalyzeArgument,
    AnalyzeResult,
    OrderingColumn,
    PartitioningColumn,
    SkipRestOfInputTableException,
)

import volley
from helpers.releases import is_before
from volley.testing.rows import assert_same_rows

pytestmark = pytest.mark.embedded
HAS_ARROW_TABLES = not is_before("4.1")

ROWS = """
    select id, cast(id % 7 - 3 as tinyint) as tiny, cast(id as smallint) as small, cast(id as int) as i,
        id % 2 = 0 as flag, cast(id as float) as f, cast(id as double) / 7 as dbl,
        cast(id as decimal(10, 2)) as d, timestamp_seconds(id * 86400 * 31) as t,
        date_add(date'1960-02-27', cast(id * 99 as int)) as dt,
        case when id % 3 > 0 then cast(id as string) end as s, cast(cast(id as string) as binary) as b,
        array(id, null) as a, named_struct('x', id, 'y', 'q') as st, case when id % 4 > 0 then id % 4 end as k
    from range(0, 20, 1, 2)
"""


def shows() -> type:
    class Shows:
        """Any arguments, as text. Some rows have no result, some have several, one of them NULL."""

        def eval(self, *arguments: Any, **named: Any) -> Iterator[Any]:
            for number in range((arguments[0] or 0) % 3):
                yield number, repr((arguments, sorted(named.items())))
            if arguments[0] == 4:
                yield None, None

    return Shows


def types() -> type:
    class Types:
        """A row of every type."""

        def eval(self, *values: Any) -> Iterator[Any]:
            yield values
            yield (None,) * len(values)

    return Types


def counts(stop: int | None = None) -> type:
    class Counts:
        """What it has seen, at the end of each partition."""

        def __init__(self) -> None:
            self.seen: list[int] = []

        def eval(self, row: Row) -> Iterator[Any]:
            self.seen.append(row["id"])
            if row["id"] == stop:
                raise SkipRestOfInputTableException
            if row["id"] % 2:
                yield row["id"], repr(row)

        def terminate(self) -> Iterator[Any]:
            yield len(self.seen), repr(self.seen)

    return Counts


def analyzed() -> type:
    class Analyzed:
        """Chooses its columns, and how its rows are partitioned and sorted."""

        def __init__(self, result: AnalyzeResult) -> None:
            self.names = [field.name for field in result.schema.fields]
            self.ids: list[int] = []

        @staticmethod
        def analyze(table: AnalyzeArgument) -> AnalyzeResult:
            from pyspark.sql.types import LongType, StringType, StructType

            schema = StructType().add("k", LongType()).add("ids", StringType())
            return AnalyzeResult(
                schema, partitionBy=[PartitioningColumn("k")], orderBy=[OrderingColumn("id", False)]
            )

        def eval(self, row: Row) -> None:
            self.k = row["k"]
            self.ids.append(row["id"])

        def terminate(self) -> Iterator[Any]:
            yield self.k, repr((self.names, self.ids))

    return Analyzed


def sizes() -> type:
    class Sizes:
        """A table function that is called with Arrow batches."""

        def eval(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
            yield pa.table({"n": batch.column("id"), "s": [str(batch.schema)] * len(batch)})

    return Sizes


RETURNS = {
    "id": "bigint", "tiny": "tinyint", "small": "smallint", "i": "int", "flag": "boolean", "f": "float",
    "dbl": "double", "d": "decimal(10,2)", "t": "timestamp", "dt": "date", "s": "string", "b": "binary",
    "a": "array<bigint>",
    "st": "struct<x: bigint, y: string>",
}  # fmt: skip


def register(spark: SparkSession, arrow: bool) -> None:
    def add(name: str, handler: type, returns: str | None) -> None:
        function: Any = udtf(handler, returnType=returns, useArrow=arrow)
        spark.udtf.register(name, function)

    spark.sql(ROWS).createOrReplaceTempView("rows")
    add("shows", shows(), "n bigint, shown string")
    add("types", types(), ", ".join(f"{name} {kind}" for name, kind in RETURNS.items()))
    add("counts", counts(), "n bigint, shown string")
    add("analyzed", analyzed(), None)
    if HAS_ARROW_TABLES:
        from pyspark.sql.functions import arrow_udtf

        of_batches: Any = arrow_udtf(sizes(), returnType="n bigint, s string")
        spark.udtf.register("sizes", of_batches)


QUERIES = {
    "one row": "select * from shows(2, named => array(1, null))",
    "lateral": f"select id, s, f.* from rows, lateral shows(id, {', '.join(RETURNS)}, struct(t, dt), zone => t) f",
    "no columns": "select f.shown from rows, lateral shows(id) f",
    "outer": "select id, f.* from rows left join lateral shows(id, t) f on true",
    "types": f"select f.* from rows, lateral types({', '.join(RETURNS)}) f",
    "a table": "select * from shows(5, table => table(select id, t, s from rows where id = 3))",
    "single partition": "select * from counts(table(select id, t, s from rows) with single partition order by id desc)",
    "partition by": """
        select * from counts(table(select id, s, k from rows) partition by (k, id % 2) order by id + 1 desc)
    """,
    "analyzed": "select * from analyzed(table(select id, k from rows))",
}


@pytest.mark.parametrize("arrow", [pytest.param(True, marks=pytest.mark.since("4.1")), False])
def test_table_functions_give_the_rows_of_spark(spark: SparkSession, arrow: bool) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    register(spark, arrow)
    for name in QUERIES if arrow else ("one row", "lateral", "types", "partition by"):
        assert_same_rows(spark, QUERIES[name])
    if arrow and HAS_ARROW_TABLES:
        assert_same_rows(spark, "select * from sizes(table(select id, s, t from rows))")
        assert_same_rows(spark, "select n from sizes(table(select id, k from rows) partition by k)")


@pytest.mark.slow
def test_a_table_function_may_leave_rows_unread(spark: SparkSession) -> None:
    """Spark takes half a minute for a function that stops reading."""
    register(spark, True)
    function: Any = udtf(counts(13), returnType="n bigint, shown string")
    spark.udtf.register("stops", function)
    assert_same_rows(
        spark, "select * from stops(table(select id from rows) with single partition order by id desc)"
    )
    assert_same_rows(spark, "select * from stops(table(select id, k from rows) partition by k order by id)")


@pytest.mark.slow
def test_table_functions_on_several_workers(distributed: SparkSession) -> None:
    distributed.conf.set("spark.volley.local.workers", "3")
    register(distributed, True)
    for name in ("lateral", "single partition", "partition by"):
        assert_same_rows(distributed, QUERIES[name])


@pytest.mark.since("4.1")  # before, another reason comes first
def test_table_functions_that_spark_runs(spark: SparkSession) -> None:
    def reasons(query: str) -> str:
        return str(volley.explain(spark.sql(query)).reasons)

    register(spark, True)
    assert "may keep rows" in reasons("select * from counts(table(rows))")
    assert "key of type double" in reasons("select * from counts(table(rows) partition by dbl)")
    assert "key of type timestamp" in reasons("select * from counts(table(rows) partition by t)")
    twice = "select * from counts(table(select id, id from rows) with single partition)"
    assert "two columns of the same name" in reasons(twice)


def test_functions_whose_arguments_depend_on_the_batch_are_left_to_spark(spark: SparkSession) -> None:
    """pandas makes floats of all integers of a batch with a NULL. Spark 4.0 always uses it."""
    for kind in ("UDF", "UDTF"):
        spark.conf.set(f"spark.sql.legacy.execution.python{kind}.pandas.conversion.enabled", "true")
    register(spark, True)
    table = spark.sql(QUERIES["partition by"])
    scalar = spark.range(3).select(udf(lambda number: number, "long", useArrow=True)("id"))
    for frame in (table, scalar):
        assert "by way of pandas, batch by batch" in str(volley.explain(frame).reasons)


def test_an_exception_of_a_table_function_is_the_one_of_spark(spark: SparkSession) -> None:
    register(spark, True)
    with pytest.raises(PythonException, match=r"(?s)in eval.*not all arguments converted"):
        spark.sql("select * from shows('text')").collect()


@pytest.mark.since("4.1")  # before, Spark runs all table functions with useArrow
def test_rows_from_no_rows_are_left_to_spark(spark: SparkSession) -> None:
    """Spark fails if `terminate` returns rows after none was read, unless it does not call the function at all."""
    register(spark, True)
    query = "select * from counts(table(select id from rows where id > 100) with single partition)"
    assert spark.sql(query).collect() == []
    report = volley.last_query(spark)
    assert report is not None
    assert "REPLAYED_ON_SPARK" in str(report.reasons)
