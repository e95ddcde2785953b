# SPDX-License-Identifier: Apache-2.0
"""The 99 TPC-DS queries: natively, and with Spark's rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from volley.bench.engines import register_tables
from volley.bench.tpcds import QUERIES, SETTINGS, query_text, tables, tpcds_data
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data() -> Path:
    return tpcds_data(0.1)


@pytest.fixture(scope="module")
def views(spark_session: SparkSession, data: Path) -> None:
    """Registered once: each reading of a schema is a Spark job."""
    register_tables(spark_session, data, tables(data))


@pytest.fixture
def tpcds(spark: SparkSession, views: None) -> Iterator[SparkSession]:
    with conf(spark, SETTINGS):
        yield spark


@pytest.mark.parametrize("query", QUERIES)
def test_one_worker(tpcds: SparkSession, data: Path, query: str) -> None:
    assert_same_rows(tpcds, query_text(data, query))


@pytest.mark.parametrize("query", QUERIES)
def test_three_workers(tpcds: SparkSession, data: Path, query: str) -> None:
    with conf(tpcds, {"spark.volley.local.workers": "3", **DISTRIBUTED_SETTINGS}):
        assert_same_rows(tpcds, query_text(data, query))
