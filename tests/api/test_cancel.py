# SPDX-License-Identifier: Apache-2.0
"""A query that is cancelled or interrupted ends at once, with one clear error, and leaves the session usable."""

from __future__ import annotations

import threading
import time

from pyspark.sql import SparkSession

import volley
from helpers.waiting import eventually
from volley import history
from volley.errors import QueryCancelled

# Far longer than any test: only a cancellation ends it in time.
ENDLESS = "select count(*) from range(1000000000000) where (id * 3) % 7 = 3"


def is_idle() -> bool:
    """Whether nothing computes in this process any more."""
    before = time.process_time()
    time.sleep(0.2)
    return time.process_time() - before < 0.1


def running(spark: SparkSession) -> int:
    return len(history.running(spark))


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
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(raised[0], QueryCancelled)
    assert "volley.cancel" in str(raised[0])
    eventually(is_idle)
    assert_usable(spark)


def assert_usable(spark: SparkSession) -> None:
    assert running(spark) == 0
    assert spark.range(5).count() == 5
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "native"
