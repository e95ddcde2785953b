# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from pyspark.sql import SparkSession

import volley
from volley.testing.session import conf

# Clocks in New York were set back from 2:00 to 1:00 at 06:00 UTC, and from local mean time by four minutes in 1883.
INSTANTS = [
    "2021-11-07 05:30:00Z",
    "2021-11-07 06:30:00Z",
    "2021-11-07 07:30:00Z",
    "2021-03-14 06:30:00Z",
    "1883-11-18 17:01:00Z",
    "0001-01-05 00:00:00Z",
]


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("new_york")
def test_hours_that_occur_twice(spark: SparkSession) -> None:
    """`==` ignores the fold, `repr` does not."""
    values = ", ".join(f"(timestamp'{instant}')" for instant in (*INSTANTS, "2021-11-07 06:59:59.999999Z"))
    query = (
        f"select t, array(t, null) a, struct(t, 1 as n) s, map('k', t) m, cast(t as timestamp_ntz) z"
        f" from values {values}, (null) v(t)"
    )
    with conf(spark, {"spark.volley.enabled": "false"}):
        expected = spark.sql(query).collect()
    found = spark.sql(query).collect()
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "native"
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert repr(datetime(2021, 11, 7, 1, 30, fold=1)) in repr(found)
