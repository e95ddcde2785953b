# SPDX-License-Identifier: Apache-2.0
"""A query that is cancelled or interrupted ends at once, with one clear error, and leaves the session usable."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from pyspark import InheritableThread
from pyspark.sql import SparkSession

import volley
from helpers.waiting import eventually
from volley.errors import QueryCancelled
from volley.query import session_state
from volley.testing.session import conf

# Far longer than any test: only a cancellation ends it in time.
ENDLESS = "select count(*) from range(1000000000000) where (id * 3) % 7 = 3"


def is_idle() -> bool:
    """Whether nothing computes in this process any more."""
    before = time.process_time()
    time.sleep(0.2)
    return time.process_time() - before < 0.1


def running(spark: SparkSession) -> int:
    return len(session_state.running(spark))


def test_cancel_ends_a_query_of_another_thread(spark: SparkSession) -> None:
    raised: list[BaseException] = []

    def collect() -> None:
        try:
            spark.sql(ENDLESS).collect()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=collect)
    thread.start()
    eventually(lambda: running(spark))
    assert volley.cancel(spark) == 1
    thread.join(120)
    assert not thread.is_alive()
    assert isinstance(raised[0], QueryCancelled)
    assert "volley.cancel" in str(raised[0])
    eventually(is_idle)
    assert_usable(spark)


STOPS: dict[str, Callable[[SparkSession], object]] = {
    "interruptAll": lambda spark: spark.interruptAll(),
    "interruptTag": lambda spark: spark.interruptTag("nightly"),
    "interruptOperation": lambda spark: spark.interruptOperation(session_state.running(spark)[0].id),
    "cancelAllJobs": lambda spark: spark.sparkContext.cancelAllJobs(),
    "cancelJobGroup": lambda spark: spark.sparkContext.cancelJobGroup("reports"),
    "cancelJobsWithTag": lambda spark: spark.sparkContext.cancelJobsWithTag("mine"),
}
MISSES: dict[str, Callable[[SparkSession], object]] = {
    "interruptAll of another session": lambda spark: spark.newSession().interruptAll(),
    "interruptTag of another session": lambda spark: spark.newSession().interruptTag("nightly"),
    "another tag": lambda spark: spark.interruptTag("mine"),
    "another group": lambda spark: spark.sparkContext.cancelJobGroup("nightly"),
    "another job tag": lambda spark: spark.sparkContext.cancelJobsWithTag("nightly"),
}


def test_what_stops_spark_jobs_stops_native_queries(spark: SparkSession) -> None:
    raised: list[BaseException] = []

    def collect() -> None:
        spark.sparkContext.setJobGroup("reports", "a report")
        spark.sparkContext.addJobTag("mine")
        spark.addTag("nightly")
        try:
            spark.sql(ENDLESS).collect()
        except BaseException as error:
            raised.append(error)

    for name, stop in STOPS.items():
        raised.clear()
        thread = InheritableThread(target=collect, daemon=True)
        thread.start()
        eventually(lambda: running(spark))
        for miss in MISSES.values():
            miss(spark)
        assert running(spark) == 1
        stopped = stop(spark)
        thread.join(120)
        assert not thread.is_alive(), name
        assert isinstance(raised[0], QueryCancelled), name
        assert name in str(raised[0])
        if name.startswith("interrupt"):
            assert isinstance(stopped, list)
            assert len(stopped) == 1
    assert spark.interruptAll() == []
    assert_usable(spark)


class TimeLimit(Exception):
    """What a program's own signal handler raises."""


class Alarm:
    def __call__(self, number: int, frame: object) -> None:
        raise TimeLimit


def raise_time_limit(number: int, frame: object) -> None:
    raise TimeLimit


HANDLERS = {
    "a function": raise_time_limit,
    "an object": Alarm(),
    "a part of a function": partial(raise_time_limit),
}


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_a_signal_handler_that_raises_ends_the_query(
    spark: SparkSession, handler: Callable[[int, object], None]
) -> None:
    previous = signal.signal(signal.SIGUSR1, handler)

    def alarm() -> None:
        eventually(lambda: running(spark))
        os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=alarm, daemon=True)
    thread.start()
    try:
        with pytest.raises(TimeLimit), conf(spark, {"spark.volley.fallback": "error"}):
            spark.sql(ENDLESS).collect()
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, previous)
    report = volley.last_query(spark)
    assert report is not None
    assert (report.engine, report.outcome) == ("native", "failed")
    eventually(is_idle)
    assert_usable(spark)


def assert_usable(spark: SparkSession) -> None:
    assert running(spark) == 0
    assert spark.range(5).count() == 5
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "native"
