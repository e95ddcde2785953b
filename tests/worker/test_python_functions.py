# SPDX-License-Identifier: Apache-2.0
"""Python functions in native queries: PySpark's own worker calls them, so they see and return what they do in Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from _pytest.mark import ParameterSet
from click.testing import CliRunner
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from helpers.function_rows import COLUMNS, in_arrow, in_pandas, rows
from volley.cli.worker import worker
from volley.cluster import LocalCluster
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.plan.nodes import FeedInput, Limit, Node, OneRow, SourceScan
from volley.plan.python_nodes import EvalType, PythonCall, PythonEval, PythonProcess, PythonProgram
from volley.rpc.messages import Failure, TaskFailure, TaskSpec
from volley.shuffle.memory import MemoryStore
from volley.splits.datasource import CODE
from volley.testing.rows import assert_same_rows
from volley.worker.slots import CodePolicy, Slots

pytestmark = pytest.mark.embedded

ZONE = {"spark.sql.session.timeZone": "America/Los_Angeles"}


def plain_functions(spark: SparkSession) -> DataFrame:
    """All types, named arguments, chains: all in one operator."""

    def show(*arguments: Any, **named: Any) -> str:
        return repr((arguments, sorted(named.items())))

    plain: Callable[..., Column] = F.udf(show, "string")
    frame = rows(spark)
    every = plain(*frame.columns)
    return frame.select("k", every, plain(frame.id, frame.d, zone=frame.t), plain(plain(frame.s)))


def pandas_functions(spark: SparkSession) -> DataFrame:
    def types_of(values: pd.Series) -> pd.Series:
        return values.map(repr) + str(values.dtype)

    series = in_pandas(types_of, "string")
    return rows(spark).select(*(series(name) for name in COLUMNS if name != "st"))


def arrow_functions(spark: SparkSession) -> DataFrame:
    def types_of(values: pa.Array) -> pa.Array:
        return pa.array([f"{values.type} {value}" for value in values])

    return rows(spark).select(*(in_arrow(types_of, "string")(name) for name in COLUMNS))


OTHER_COLUMNS = {
    "m": "case when id % 5 > 0 then map(cast(id as string), timestamp_seconds(id), 'z', null) end",
    "nested": "array(map(id, named_struct('q', array(id))))",
    "span": "make_dt_interval(0, cast(id as int))",
    "v": "case when id % 5 > 0 then parse_json(concat('[', id, ']')) end",
    "time": "cast(concat('12:34:56.0000', id + 10) as time(6))",
}
"""Columns of types that functions see in another form than native operators have."""


def other_types(spark: SparkSession) -> DataFrame:
    """Given to functions of every kind, and returned by them."""

    def show(*arguments: Any) -> str:
        return repr(
            [argument.toJson() if hasattr(argument, "toJson") else argument for argument in arguments]
        )

    def show_series(values: pd.Series) -> pd.Series:
        return values.map(show) + str(values.dtype)

    def show_array(values: pa.Array) -> pa.Array:
        return pa.array([f"{values.type} {value}" for value in values])

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    spark.conf.set("spark.sql.timeType.enabled", "true")
    columns = ", ".join(f"{expression} as {name}" for name, expression in OTHER_COLUMNS.items())
    frame = spark.sql(f"select {columns} from range(0, 60, 1, 2)")
    returned = [
        F.udf(lambda value: value, field.dataType)(field.name).alias(field.name) for field in frame.schema
    ]
    frame = frame.mapInArrow(same, frame.schema).select(*returned)
    names = list(OTHER_COLUMNS)
    return frame.select(
        *names[:3],
        "time",
        F.to_json("v").alias("v"),
        F.udf(show, "string")(*names),
        *(in_pandas(show_series, "string")(name) for name in names),
        *(in_arrow(show_array, "string")(name) for name in names),
    )


def pandas_iterators(spark: SparkSession) -> DataFrame:
    def add(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for batch in batches:
            yield batch + 1

    return rows(spark).select("s", in_pandas(add, "long")("id"))


def arrow_iterators(spark: SparkSession) -> DataFrame:
    """The results come in other batches than the rows."""

    def add(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for batch in batches:
            for value in batch:
                yield pa.array([value.as_py() + 1])

    return rows(spark).select("s", in_arrow(add, "long")("small"))


def functions_everywhere(spark: SparkSession) -> DataFrame:
    """In conditions, join and group keys, over an ORDER BY, and on top of one another."""
    odd = F.udf(lambda number: number % 2 == 1, "boolean")
    text = F.udf(lambda number: None if number is None else f"key {number}", "string")
    frame = rows(spark)
    left = frame.where(odd("id")).select("id", text("k").alias("l"))
    right = frame.select(text("k").alias("r"), "dbl")
    joined = left.join(right, left.l == right.r)
    totals = joined.groupBy(text("l").alias("key")).agg(F.count("*").alias("n"), F.max("id").alias("m"))
    return totals.orderBy(F.desc("m"), "key").select(text("m"), "n")


def returned_types(spark: SparkSession) -> DataFrame:
    """Values that PySpark converts to the declared type, or to NULL."""
    import datetime
    import decimal

    def returns(kind: str, value: Callable[[Any], Any]) -> Column:
        return F.udf(value, kind, useArrow=True)("id").alias(kind)

    return rows(spark).select(
        returns("int", lambda number: number if number % 2 else None),
        returns("string", lambda number: number),
        returns("double", lambda number: number / 3),
        returns("boolean", lambda number: number > 9),
        returns("binary", lambda number: str(number).encode()),
        returns("decimal(12,3)", lambda number: decimal.Decimal(number) / 8),
        returns("date", lambda number: datetime.date(2024, 2, 29)),
        returns("timestamp", lambda number: datetime.datetime(2024, 3, 10, 2, 30, number)),
        returns("array<int>", lambda number: [number, None]),
        returns("struct<x:int,y:array<string>>", lambda number: (number, [str(number)])),
    )


def map_in_pandas(spark: SparkSession) -> DataFrame:
    def show(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            shown = [repr(tuple(row)) for row in batch.itertuples(index=False)]
            yield pd.DataFrame({"s": shown, "types": repr(batch.dtypes)})

    return rows(spark).mapInPandas(show, "s string, types string")


def map_in_arrow(spark: SparkSession) -> DataFrame:
    def show(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            shown = [repr(row) for row in batch.to_pylist()]
            yield pa.RecordBatch.from_pydict({"s": shown, "types": [repr(batch.schema)] * batch.num_rows})

    return rows(spark).mapInArrow(show, "s string, types string")


def apply_in_pandas(spark: SparkSession) -> DataFrame:
    """Keys are columns and expressions; some are NULL."""

    def show(key: Any, group: pd.DataFrame) -> pd.DataFrame:
        shown = repr((key, sorted(group["id"]), group.dtypes))
        return pd.DataFrame({"s": [shown], "n": [len(group)]})

    grouped = rows(spark).groupBy((F.col("id") % 5).alias("e"), "k")
    return grouped.applyInPandas(show, "s string, n long")


def apply_in_arrow(spark: SparkSession) -> DataFrame:
    def show(group: pa.Table) -> pa.Table:
        return pa.table({"s": [repr(group.schema)], "n": [group.num_rows]})

    return rows(spark).groupBy("s").applyInArrow(show, "s string, n long")


def pandas_aggregates(spark: SparkSession) -> DataFrame:
    def add(numbers: pd.Series) -> float:
        return float(numbers.sum())

    total = in_pandas(add, "double")
    doubled = total(F.col("i") * 2)
    return rows(spark).groupBy(F.concat("s", F.lit("!")), "k").agg((total("id") + 1).alias("v"), doubled)


def arrow_aggregates(spark: SparkSession) -> DataFrame:
    def add(numbers: pa.Array) -> float:
        return float(sum(numbers.to_pylist()))

    return rows(spark).agg(in_arrow(add, "double")("id"))


def iterator_aggregates(spark: SparkSession) -> DataFrame:
    def add(batches: Iterator[pd.Series]) -> float:
        return float(sum(batch.sum() for batch in batches))

    return rows(spark).groupBy("k").agg(in_pandas(add, "double")("id"))


def windows(spark: SparkSession) -> DataFrame:
    def add(numbers: pd.Series) -> float:
        return float(numbers.sum())

    total = in_pandas(add, "double")
    return rows(spark).select("id", "s", total("id").over(Window.partitionBy("k")))


QUERIES: dict[str, Callable[[SparkSession], DataFrame]] = {
    "plain functions": plain_functions,
    "pandas functions": pandas_functions,
    "arrow functions": arrow_functions,
    "pandas iterators": pandas_iterators,
    "arrow iterators": arrow_iterators,
    "other types": other_types,
    "returned types": returned_types,
    "mapInPandas": map_in_pandas,
    "mapInArrow": map_in_arrow,
    "applyInPandas": apply_in_pandas,
    "applyInArrow": apply_in_arrow,
    "pandas aggregates": pandas_aggregates,
    "arrow aggregates": arrow_aggregates,
    "iterator aggregates": iterator_aggregates,
    "windows": windows,
}
# Spark 4.0 runs aggregates and windows itself, and fails for a local time that does not exist.
_SINCE = dict.fromkeys(
    [
        "arrow functions",
        "arrow iterators",
        "returned types",
        "arrow aggregates",
        "pandas aggregates",
        "windows",
    ],
    "4.1",
) | {"iterator aggregates": "4.2", "other types": "4.3"}


def named(*names: str, slow: bool = False) -> list[ParameterSet]:
    marks = [pytest.mark.slow] if slow else []
    return [
        pytest.param(name, marks=[*marks, pytest.mark.since(_SINCE[name])] if name in _SINCE else marks)
        for name in names
    ]


@pytest.mark.parametrize("name", named(*QUERIES))
def test_functions_give_the_rows_of_spark(spark: SparkSession, name: str) -> None:
    for key, value in ZONE.items():
        spark.conf.set(key, value)
    assert_same_rows(spark, QUERIES[name])


@pytest.mark.parametrize("name", named("plain functions", "applyInPandas", "pandas aggregates", "windows"))
def test_functions_on_several_workers(distributed: SparkSession, name: str) -> None:
    distributed.conf.set("spark.volley.local.workers", "3")
    assert_same_rows(distributed, QUERIES[name])


@pytest.mark.parametrize(
    "name", [*named("plain functions"), *named("other types", "pandas aggregates", slow=True)]
)
def test_functions_on_worker_daemons(distributed: SparkSession, cluster: LocalCluster, name: str) -> None:
    for key, value in cluster.settings.items():
        distributed.conf.set(key, value)
    assert_same_rows(distributed, QUERIES[name])


def test_a_worker_runs_functions_only_if_its_owner_said_so() -> None:
    process = PythonProcess("app", "no-such-python", "3.11", (), "", (), (), None, True)
    program = PythonProgram(EvalType.ARROW_BATCHED, (PythonCall("f", (b"",), ()),), (), (), 10, 0, process)
    attempt = AttemptId(TaskId(StageId(QueryId.new(), 0), 0), 0)
    sent_source = FeedInput(0, SourceScan("mine", f"{CODE}3.11::", (), ()))

    async def outcome(plan: Node) -> object:
        slots = Slots("w", 1, 1, MemoryStore("w"), code=CodePolicy(python=False))
        assert slots.reserve(attempt)
        return await slots.start(TaskSpec(attempt, plan, None, False, ())).done()

    for plan in (PythonEval(program, (), (), OneRow()), Limit(1, 0, True, sent_source)):
        failure = asyncio.run(outcome(plan))
        assert isinstance(failure, TaskFailure)
        assert (failure.failure, "does not run Python functions" in failure.message) == (Failure.DATA, True)
    refused = CliRunner().invoke(worker, ["--python-functions", "--no-token"])
    assert (refused.exit_code, "needs a token" in refused.output) == (2, True)


@pytest.mark.slow
def test_functions_of_the_results_of_functions(distributed: SparkSession) -> None:
    """Each operator has workers of its own, and they run at the same time: this takes long to start."""
    assert_same_rows(distributed, functions_everywhere)
    distributed.conf.set("spark.volley.local.workers", "3")
    assert_same_rows(distributed, functions_everywhere)
