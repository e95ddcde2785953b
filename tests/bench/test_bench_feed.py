# SPDX-License-Identifier: Apache-2.0
"""The measured feed is a real one, and the figures are of what ran."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from volley.bench.feed import FeedRun, Pace, feed_table, measure


@pytest.mark.slow
def test_it_measures_volley_and_spark_with_the_same_source(spark: SparkSession) -> None:
    told: list[str] = []
    pace = Pace(splits=4, rows=5, discovery_seconds=0.2, read_seconds=0.01)
    ours, theirs = measure(spark, pace, ("volley", "spark"), told.append)
    assert (ours.engine, ours.rows, sum(ours.by_task)) == ("volley", 20, 4)
    assert (theirs.engine, theirs.rows) == ("spark", 20)
    # Spark has found everything before it reads anything.
    assert theirs.first_row_seconds > pace.discovery_seconds
    assert theirs.first_split_seconds > 0.75 * pace.discovery_seconds
    # The first row does not wait for the last split, which is found three quarters of the time later.
    assert 0 < ours.first_split_seconds < ours.first_row_seconds
    assert len(told) == 6


def test_the_table_says_what_was_measured() -> None:
    table = feed_table(
        Pace(100, 1, 10.0, 0.4), 4, [FeedRun("volley", 100, 0.25, 0.125, 11.0, (25, 25, 24, 26))]
    )
    cells = [next(iter(column.cells)) for column in table.columns]
    assert cells == ["volley", "0.25", "0.12", "11.00", "1.10", "25 25 24 26"]
    assert "10.0 s with perfect overlap, 20.0 s without" in str(table.caption)
