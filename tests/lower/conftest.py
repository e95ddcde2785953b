# SPDX-License-Identifier: Apache-2.0
"""Tables that several tests of operators read."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from helpers.nested_tables import nested_frames


@pytest.fixture(scope="session")
def nested_views(
    spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, DataFrame]:
    return nested_frames(spark_session, tmp_path_factory.mktemp("nested"))


@pytest.fixture
def nested(spark: SparkSession, nested_views: dict[str, DataFrame]) -> SparkSession:
    """The session with the views of `helpers/nested_tables.py`: arrays, structs and arrays of arrays."""
    for name, frame in nested_views.items():
        frame.createOrReplaceTempView(name)
    return spark
