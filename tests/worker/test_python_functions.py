# SPDX-License-Identifier: Apache-2.0
"""Python functions in native queries: PySpark's own worker calls them, so they see and return what they do in Spark."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JJavaError
from pyspark.errors import PythonException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf, pandas_udf

import volley
from helpers.waiting import eventually
from volley.cli.worker import worker
from volley.cluster import LocalCluster
from volley.errors import QueryCancelled
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.plan.nodes import OneRow
from volley.plan.python_nodes import EvalType, PythonCall, PythonEval, PythonProcess, PythonProgram
from volley.rpc.messages import Failure, TaskFailure, TaskSpec
from volley.shuffle.memory import MemoryStore
from volley.testing.rows import assert_same_rows
from volley.worker.slots import Slots

pytestmark = pytest.mark.embedded

ZONE = {"spark.sql.session.timeZone": "America/Los_Angeles"}


def in_pandas(function: Callable[..., Any], result: str) -> Callable[..., Column]:
    """`pandas_udf`, whose overloads do not know type hints."""
    made: Callable[..., Column] = pandas_udf(function, result)  # type: ignore[call-overload]
    return made


def in_arrow(function: Callable[..., Any], result: str) -> Callable[..., Column]:
    """`arrow_udf`, likewise."""
    made: Callable[..., Column] = arrow_udf(function, result)  # type: ignore[call-overload]
    return made


COLUMNS = {
    "id": "id",
    "tiny": "cast(id % 7 - 3 as tinyint)",
    "small": "cast(id as smallint)",
    "i": "cast(id as int)",
    "flag": "id % 2 = 0",
    "f": "cast(id as float) / 3",
    "dbl": "cast(id as double) / 7",
    "d": "cast(id as decimal(10, 2))",
    "wide": "cast(id as decimal(38, 18))",
    "t": "timestamp_seconds(id * 86400 * 31)",
    "dt": "date_add(date'1960-02-27', cast(id * 99 as int))",
    "s": "case when id % 3 > 0 then cast(id as string) end",
    "b": "cast(cast(id as string) as binary)",
    "a": "array(id, null)",
    "st": "named_struct('x', id, 'y', 'q')",
    "k": "case when id % 4 > 0 then id % 4 end",
}
"""Columns of every type that functions can be given natively, some with NULLs."""


def rows(spark: SparkSession) -> DataFrame:
    columns = ", ".join(f"{expression} as {name}" for name, expression in COLUMNS.items())
    return spark.sql(f"select {columns} from range(0, 60, 1, 2)")


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
        return F.udf(value, kind)("id").alias(kind)

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


@pytest.mark.parametrize("name", QUERIES)
def test_functions_give_the_rows_of_spark(spark: SparkSession, name: str) -> None:
    for key, value in ZONE.items():
        spark.conf.set(key, value)
    assert_same_rows(spark, QUERIES[name])


@pytest.mark.parametrize("name", ["plain functions", "applyInPandas", "pandas aggregates", "windows"])
def test_functions_on_several_workers(distributed: SparkSession, name: str) -> None:
    distributed.conf.set("spark.volley.local.workers", "3")
    assert_same_rows(distributed, QUERIES[name])


@pytest.mark.parametrize("name", ["plain functions", "pandas aggregates"])
def test_functions_on_worker_daemons(distributed: SparkSession, cluster: LocalCluster, name: str) -> None:
    for key, value in cluster.settings.items():
        distributed.conf.set(key, value)
    assert_same_rows(distributed, QUERIES[name])


def test_files_of_the_driver_do_not_reach_worker_daemons(spark: SparkSession, cluster: LocalCluster) -> None:
    for key, value in cluster.settings.items():
        spark.conf.set(key, value)
    table = spark.sparkContext.broadcast({1: 2})
    frame = rows(spark).select(F.udf(lambda number: table.value.get(number), "long")("id"))
    assert "on the driver's machine" in str(volley.explain(frame).reasons[0])


def test_a_worker_runs_functions_only_if_its_owner_said_so() -> None:
    process = PythonProcess("app", "no-such-python", "3.11", (), "", (), (), None, True)
    program = PythonProgram(EvalType.ARROW_BATCHED, (PythonCall("f", (b"",), ()),), (), (), 10, 0, process)
    attempt = AttemptId(TaskId(StageId(QueryId.new(), 0), 0), 0)
    task = TaskSpec(attempt, PythonEval(program, (), (), OneRow()), None, False, ())

    async def outcome() -> object:
        slots = Slots("w", 1, 1, MemoryStore("w"), runs_python=False)
        assert slots.reserve(attempt)
        return await slots.start(task).done()

    failure = asyncio.run(outcome())
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


def test_no_rows(spark: SparkSession) -> None:
    def same(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield from batches

    def empty(session: SparkSession) -> DataFrame:
        frame = rows(session).where("id > 1000").select("id", "s", "k")
        called = frame.select(F.udf(lambda number: 1 // 0, "long")("id").alias("id"), "s", "k")
        return called.mapInPandas(same, "id long, s string, k long")

    assert_same_rows(spark, empty)


def test_batches_are_cut_as_in_spark(spark: SparkSession) -> None:
    """A batch has maxRecordsPerBatch rows, and a function sees all batches of its stream in one call."""

    def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [batch.num_rows for batch in batches]
        yield pa.RecordBatch.from_pydict({"sizes": [str(found)]})

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    spark.conf.set("spark.volley.local.cores", "1")
    expected = assert_same_rows(
        spark, lambda session: session.range(0, 2500, 1, 1).mapInArrow(sizes, "sizes string")
    )
    assert expected.column(0).to_pylist() == ["[1000, 1000, 500]"]


def test_a_function_may_leave_rows_unread(spark: SparkSession) -> None:
    """Its process ends with it, and nothing waits for the rows. Spark takes half a minute for this."""

    def first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches).slice(0, 1)

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    assert spark.range(0, 3_000_000, 1, 1).repartition(1).mapInArrow(first, "id long").count() == 1
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "native"


def test_one_partition_is_one_call(spark: SparkSession) -> None:
    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"n": [sum(batch.num_rows for batch in batches)]})

    frame = spark.range(0, 20_000, 1, 2)
    for gathered in (frame.coalesce(1), frame.repartition(1), frame.coalesce(1).where("id >= 0")):
        assert gathered.mapInArrow(count, "n long").collect() == [(20_000,)]
        report = volley.last_query(spark)
        assert report is not None
        assert report.engine == "native"


def test_a_function_does_not_see_rows_that_a_filter_below_drops(spark: SparkSession) -> None:
    """A condition above drops NULLs too, but a function must not meet them before."""
    length = F.udf(lambda text: len(text), "int")
    rows(spark).createOrReplaceTempView("rows_with_nulls")

    def query(session: SparkSession) -> DataFrame:
        texts = session.table("rows_with_nulls").where("s is not null").select("s", length("s").alias("n"))
        return texts.where("n > 1 and s > '1'")

    assert_same_rows(spark, query)


def test_rows_that_were_sorted_for_a_function_come_in_that_order(spark: SparkSession) -> None:
    def runs(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        last, count = None, 0
        for batch in batches:
            for key, number in zip(batch["k"], batch["id"], strict=True):
                count += key != last
                last = key
                yield pd.DataFrame({"k": [key], "id": [number], "starts": [0]})

    def placed(session: SparkSession) -> DataFrame:
        frame = rows(session).where("k is not null").select("k", "id")
        return (
            frame.repartition("k")
            .sortWithinPartitions("k", "id")
            .mapInPandas(runs, "k long, id long, starts long")
        )

    assert_same_rows(spark, placed, ordered=True)


def test_broadcast_variables_and_large_functions(spark: SparkSession) -> None:
    table = spark.sparkContext.broadcast({number: number * 2 for number in range(40)})
    large = list(range(400_000))
    twice = F.udf(lambda number: table.value.get(number), "long")
    item = F.udf(lambda number: large[-number], "long")
    assert_same_rows(spark, lambda session: rows(session).select(twice("id"), item("id")))


def test_an_exception_is_the_one_that_spark_raises(spark: SparkSession) -> None:
    def fail(number: int) -> int:
        if number == 50:
            raise ValueError("no fifty")
        return number

    with pytest.raises(PythonException, match=r"(?s)in fail.*ValueError: no fifty"):
        rows(spark).select(F.udf(fail, "long")("id")).collect()
    report = volley.last_query(spark)
    assert report is not None
    reasons = [str(reason) for reason in report.reasons]
    assert any("REPLAYED_ON_SPARK" in reason and "no fifty" in reason for reason in reasons)


def test_a_crash_costs_an_attempt(spark: SparkSession, tmp_path: Path) -> None:
    mark = tmp_path / "crashed"

    def crash_once(number: int) -> int:
        if number == 50 and not mark.exists():
            mark.touch()
            os._exit(3)
        return number

    assert rows(spark).select(F.udf(crash_once, "long")("id")).count() == 60
    assert rows(spark).where(F.udf(crash_once, "long")("id") >= 0).count() == 60
    report = volley.last_query(spark)
    assert report is not None
    assert (report.engine, mark.exists()) == ("native", True)


def test_a_crash_in_every_attempt_is_the_error_of_spark(spark: SparkSession) -> None:
    def crash(number: int) -> int:
        os._exit(3)

    with pytest.raises(Py4JJavaError, match="Python worker exited unexpectedly"):
        rows(spark).select(F.udf(crash, "long")("id")).collect()


def test_a_query_that_ends_takes_its_functions_with_it(spark: SparkSession, tmp_path: Path) -> None:
    started = tmp_path / "pid"

    def never(number: int) -> int:
        import time

        started.with_suffix(".new").write_text(str(os.getpid()))
        started.with_suffix(".new").rename(started)
        while True:
            time.sleep(1)

    frame = rows(spark).limit(1).select(F.udf(never, "long")("id"))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(frame.collect)
        eventually(started.exists)
        assert volley.cancel(spark) == 1
        with pytest.raises(QueryCancelled):
            running.result()
    process = Path("/proc") / started.read_text()
    eventually(lambda: not process.exists())


def test_what_only_a_task_of_spark_has_is_left_to_spark(spark: SparkSession) -> None:
    from pyspark import TaskContext

    counter = spark.sparkContext.accumulator(0)

    def count(number: int) -> int:
        counter.add(1)
        return number

    def partition(number: int) -> int:
        context = TaskContext.get()
        assert context is not None
        return context.partitionId()

    def reasons(function: Any) -> str:
        return " ".join(str(reason) for reason in volley.explain(rows(spark).select(function("id"))).reasons)

    assert "PYTHON_FUNCTION_NOT_SUPPORTED" in reasons(F.udf(count, "long"))
    assert "an accumulator" in reasons(F.udf(count, "long"))
    assert "TaskContext" in reasons(F.udf(partition, "int"))
    assert "nondeterministic" in reasons(F.udf(lambda number: number, "long").asNondeterministic())
    spark.conf.set("spark.sql.pyspark.udf.profiler", "perf")
    assert "spark.sql.pyspark.udf.profiler" in reasons(F.udf(lambda number: number, "long"))
    spark.conf.unset("spark.sql.pyspark.udf.profiler")
    spark.conf.set("spark.volley.pythonFunctions", "false")
    assert "do not run Python functions" in reasons(F.udf(lambda number: number, "long"))


def test_floating_point_groups_are_left_to_spark(spark: SparkSession) -> None:
    """0.0 and -0.0 are one group, and a function may see either."""
    frame = rows(spark).groupBy("dbl").applyInPandas(lambda group: group[["id"]], "id long")
    assert "key of type double" in str(volley.explain(frame).reasons[0])
