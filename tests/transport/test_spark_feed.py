# SPDX-License-Identifier: Apache-2.0
"""Splits that flow to native tasks inside Spark's executors while discovery runs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import volley
from volley.errors import QueryCancelled, SourceError
from volley.observe.report import QueryReport
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf
from volley.testing.sources import Numbers

SPLITS, ROWS = 40, 25


@pytest.fixture
def executors(spark: SparkSession) -> Iterator[SparkSession]:
    spark.dataSource.register(Numbers)
    with conf(
        spark, {"spark.volley.transport": "spark", "spark.volley.fallback": "error"} | DISTRIBUTED_SETTINGS
    ):
        yield spark


def numbers(spark: SparkSession, **options: Any) -> None:
    reader = spark.read.format("numbers")
    for key, value in options.items():
        reader = reader.option(key, str(value))
    reader.load().createOrReplaceTempView("numbers")


def native_report(spark: SparkSession) -> QueryReport:
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "native"
    assert report.spark_tasks
    return report


def test_rows_are_sparks(executors: SparkSession) -> None:
    numbers(executors, splits=9, rows=100)
    sql = "select split, count(*), sum(id) from numbers where id % 3 = 0 group by split"
    assert_same_rows(executors, sql, native=False)
    executors.sql(sql).collect()
    (feed,) = native_report(executors).stages[0].feeds
    assert (feed.found, feed.queued, feed.running, feed.done, feed.final) == (9, 0, 0, 9, True)


def test_splits_are_read_while_discovery_looks_for_more(executors: SparkSession, tmp_path: Path) -> None:
    """Discovery goes on only when what it has found so far is being read."""
    calls = tmp_path / "calls"
    calls.mkdir()
    numbers(executors, splits=6, rows=10, calls=calls, follow="true")
    rows = executors.sql("select /*+ repartition(2, id) */ id from numbers").collect()
    assert sorted(row.id for row in rows) == list(range(60))
    assert len(list(calls.glob("reading-*"))) == 6
    native_report(executors)


def test_an_endless_source_under_a_limit_finishes(executors: SparkSession, tmp_path: Path) -> None:
    numbers(executors, splits="endless", calls=tmp_path)
    assert len(executors.sql("select id from numbers").take(25)) == 25
    (feed,) = native_report(executors).stages[0].feeds
    assert not feed.final
    assert (tmp_path / "closed").exists()


def test_a_limit_does_not_wait_for_a_source_that_hangs(executors: SparkSession, tmp_path: Path) -> None:
    """Whoever has read enough says so while others of its stage still wait for splits."""
    numbers(executors, splits=10, rows=ROWS, hang_after=2, calls=tmp_path)
    # One split has all the rows that are wanted; who has only the other one waits for a third that does not come.
    assert len(executors.sql("select id from numbers where split = 0").take(ROWS)) == ROWS
    native_report(executors)
    assert (tmp_path / "closed").exists()


@pytest.mark.slow
def test_cancelling_stops_discovery_and_frees_the_executors(executors: SparkSession, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()
    numbers(executors, splits="endless", calls=calls, pause=0.001)
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            executors.sql("select sum(id) from numbers").collect()
        except BaseException as error:
            failures.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    deadline = time.monotonic() + 60
    while not list(calls.glob("reading-*")) and time.monotonic() < deadline:
        time.sleep(0.005)
    volley.cancel(executors)
    asking.join(60)
    assert [type(failure) for failure in failures] == [QueryCancelled]
    assert (calls / "closed").exists()
    numbers(executors, splits=3)
    assert executors.sql("select id from numbers").count() == 30
    native_report(executors)


def test_a_discovery_that_fails_fails_the_query_with_its_cause(
    executors: SparkSession, tmp_path: Path
) -> None:
    gate = tmp_path / "never"
    numbers(executors, splits=10, raise_after=3, wait_for=gate)
    try:
        with pytest.raises(SourceError, match="failed after 3 splits") as info:
            executors.sql("select count(*) from numbers").collect()
    finally:
        gate.touch()
    assert isinstance(info.value.__cause__, OSError)


@pytest.mark.slow
def test_a_sidecar_is_killed_with_splits_in_its_hands(executors: SparkSession, tmp_path: Path) -> None:
    gate, calls = tmp_path / "gate", tmp_path / "calls"
    calls.mkdir()
    killed: set[int] = set()

    def strike() -> None:
        # Splits from the tenth on wait to be read, so whoever begins with one of them holds it.
        deadline = time.monotonic() + 60
        while not killed and time.monotonic() < deadline:
            begun = [path.name.split("-")[1:] for path in calls.glob("reading-*")]
            killed.update(int(pid) for split, pid in begun if int(split) >= 10)
            time.sleep(0.005)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        gate.touch()

    striker = threading.Thread(target=strike)
    striker.start()
    numbers(executors, splits=SPLITS, rows=ROWS, wait_for=gate, wait_from=10, calls=calls)
    rows = executors.sql("select /*+ repartition(3, id) */ id from numbers").collect()
    striker.join()
    assert sorted(row.id for row in rows) == list(range(SPLITS * ROWS))
    report = native_report(executors)
    assert killed, "the blow hit nothing"
    assert sum(stage.attempts for stage in report.stages) > sum(stage.tasks for stage in report.stages)
    # What the victim had begun to read was read by somebody else after that.
    begun = [path.name.split("-")[1:] for path in calls.glob("reading-*")]
    lost = {split for split, pid in begun if int(pid) in killed}
    assert lost
    assert lost <= {split for split, pid in begun if int(pid) not in killed}
