# SPDX-License-Identifier: Apache-2.0
"""One Spark session for the whole run: starting Java costs seconds, and most tests need only a fresh configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from answers import Answers
from hypothesis import settings
from pyspark.sql import DataFrame, SparkSession
from tables import frames

import volley
from volley.bench.data import tpch_data
from volley.bench.engines import register_tables
from volley.splits.measure import fits_one_task
from volley.testing.session import restored

# The same cases every time: a build must not fail because of what chance drew.
# HYPOTHESIS_PROFILE=default looks further.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# Java's better compiler and its collector for large heaps are slow to start. Child processes inherit this.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session", autouse=True)
def _little_data_counts_as_much() -> Iterator[None]:
    """Tables of tests are so small that one task would do everything; then nothing would be shared or exchanged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("volley.stages.scans.BYTES_A_TASK", 1)
        patch.setattr("volley.stages.exchanges.WHOLE_BYTES", -1)
        patch.setattr("volley.stages.adapt.CONTINUED_BYTES", -1)
        patch.setattr("volley.native_run.fits_one_task", lambda plan, limit_bytes: False)
        yield


@pytest.fixture
def little_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little data counts as little, as it does for users."""
    monkeypatch.setattr("volley.stages.scans.BYTES_A_TASK", 2 * 2**20)
    monkeypatch.setattr("volley.stages.exchanges.WHOLE_BYTES", 3 * 2**20)
    monkeypatch.setattr("volley.stages.adapt.CONTINUED_BYTES", 12 * 2**20)
    monkeypatch.setattr("volley.native_run.fits_one_task", fits_one_task)


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session itself. Tests take `spark`, which gives it back as it was."""
    # Otherwise Spark's Python workers are whatever python3 is on PATH, without our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    warehouse = tmp_path_factory.mktemp("warehouse")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("volley tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        # Thousands of tiny queries: compiling each of them to Java costs far more than running it.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.warehouse.dir", str(warehouse))
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture
def spark(spark_session: SparkSession) -> Iterator[SparkSession]:
    """The session with Volley enabled; settings that a test leaves behind, and its views, are gone after it."""
    before = _views(spark_session)
    with restored(spark_session):
        volley.enable(spark_session)
        yield spark_session
    for view in _views(spark_session) - before:
        spark_session.catalog.dropTempView(view)


@pytest.fixture
def shared_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """For programs that start a session and stop it: they are given the one of the tests, which stays."""
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)
    return spark


def _views(spark: SparkSession) -> set[str]:
    """The session's temporary views, without the Spark query that listing tables would be."""
    found = spark._jsparkSession.sessionState().catalog().listLocalTempViews("*").mkString(",")
    return {name.strip("`") for name in found.split(",") if name}


@pytest.fixture(scope="session")
def tpch_directory() -> Path:
    """TPC-H at scale 0.01, kept in the user's cache from one run to the next."""
    return tpch_data(0.01)


@pytest.fixture(scope="session")
def tpch_views(spark_session: SparkSession, tpch_directory: Path) -> None:
    """Registered once: each reading of a schema is a Spark job."""
    register_tables(spark_session, tpch_directory)


@pytest.fixture
def tpch(spark: SparkSession, tpch_views: None) -> SparkSession:
    """`spark` with a view for each TPC-H table."""
    return spark


@pytest.fixture(scope="session")
def answers() -> Answers:
    return Answers()


@pytest.fixture(scope="session")
def table_frames(
    spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, DataFrame]:
    """Made once: finding the files of a table takes Spark longer than reading them."""
    return frames(spark_session, tmp_path_factory.mktemp("tables"))


@pytest.fixture
def tables(spark: SparkSession, table_frames: dict[str, DataFrame]) -> SparkSession:
    """`spark` with the views of `tables.py`."""
    for name, frame in table_frames.items():
        frame.createOrReplaceTempView(name)
    return spark
