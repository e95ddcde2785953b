# SPDX-License-Identifier: Apache-2.0
"""Rows to write."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from helpers.writes import AWKWARD, PLAIN
from volley.testing.session import conf


@pytest.fixture(scope="module")
def source(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("writes") / "source"
    text = f"select id, {AWKWARD}[id % 10] as name, id % 3 = 0 as flag, id % 7 as day from range(100)"
    with conf(spark_session, PLAIN):
        spark_session.sql(text).repartition(4).write.parquet(str(path))
    return str(path)


@pytest.fixture
def rows(spark: SparkSession, source: str) -> DataFrame:
    return spark.read.parquet(source)
