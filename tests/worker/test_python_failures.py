# SPDX-License-Identifier: Apache-2.0
"""Python functions that raise, crash or never end, and those that only a task of Spark can run."""

from __future__ import annotations

import importlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from helpers.function_rows import rows
from helpers.waiting import eventually
from volley.errors import QueryCancelled
from volley.testing.rows import spark_rows

pytestmark = pytest.mark.embedded


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


LIBRARY = """
from pyspark import TaskContext

def partition(number):
    return TaskContext.get().partitionId()

def caught(number):
    try:
        return TaskContext.get().partitionId()
    except BaseException:
        return -1

def exists(number):
    return TaskContext.get() is not None
"""


@pytest.mark.parametrize(
    ("name", "engine"),
    [("partition", "spark"), pytest.param("caught", "spark", marks=pytest.mark.slow), ("exists", "native")],
)
def test_the_task_context_in_a_library(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, engine: str
) -> None:
    """A pickled function only names its module, so what the module does is seen when it runs."""
    module = f"library_{name}"
    (tmp_path / f"{module}.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    spark.sparkContext.addPyFile(str(tmp_path / f"{module}.py"))
    function = F.udf(getattr(importlib.import_module(module), name), "string")

    def query(session: SparkSession) -> DataFrame:
        return session.range(0, 40, 1, 4).select("id", function("id").alias("v"))

    expected = spark_rows(spark, query)
    found = query(spark).orderBy("id").toArrow()
    report = volley.last_query(spark)
    assert report is not None
    assert (report.engine, found) == (engine, expected.sort_by("id"))


def test_floating_point_groups_are_left_to_spark(spark: SparkSession) -> None:
    """0.0 and -0.0 are one group, and a function may see either."""
    frame = rows(spark).groupBy("dbl").applyInPandas(lambda group: group[["id"]], "id long")
    assert "key of type double" in str(volley.explain(frame).reasons[0])
