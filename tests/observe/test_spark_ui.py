# SPDX-License-Identifier: Apache-2.0
"""Spark's own views of a native query: its SQL tab, and `explain`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import volley
from volley.observe.spark_tasks import SparkTasks
from volley.plan.jvm import Java
from volley.testing.session import conf


def last_entry(spark: SparkSession) -> int:
    """The number of the newest entry of the SQL tab. Spark forgets old entries, so counting them would not do."""
    return max((entry.executionId() for entry in _entries(spark)), default=-1)


def entries_after(spark: SparkSession, number: int) -> list[tuple[str, bool, str]]:
    """What the SQL tab lists since that entry: description, whether it is over, error."""
    return [
        (entry.description(), entry.completionTime().isDefined(), str(entry.errorMessage()))
        for entry in sorted(_entries(spark), key=lambda entry: int(entry.executionId()))
        if entry.executionId() > number
    ]


def _entries(spark: SparkSession) -> list[Java]:
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(30_000)
    found = spark._jsparkSession.sharedState().statusStore().executionsList()
    return [found.apply(position) for position in range(found.size())]


def test_the_sql_tab_lists_native_queries(spark: SparkSession, tmp_path: Path) -> None:
    before = last_entry(spark)
    with conf(spark, {"spark.volley.ui": "on"}), SparkTasks(spark) as tasks:
        spark.range(100).groupBy((F.col("id") % 7).alias("k")).count().collect()
        spark.range(5).write.parquet(str(tmp_path / "t"))
        list(spark.range(3).toLocalIterator())
    assert tasks.count == 0
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "native"
    added = entries_after(spark, before)
    assert [over for _, over, _ in added] == [True, True, True]
    assert all("native by Volley" in description for description, _, _ in added)
    assert added[0][0].startswith("collect at test_spark_ui.py:")
    assert not any("rror" in error for _, _, error in added)
    assert (
        f"volley history {report.query}"
        in max(_entries(spark), key=lambda entry: int(entry.executionId())).details()
    )
    with conf(spark, {"spark.volley.ui": "off"}):
        spark.range(3).count()
    # Spark has no UI here, so that nothing is listed unasked.
    spark.range(3).count()
    assert entries_after(spark, before) == added


def test_a_replayed_query_says_so(spark: SparkSession) -> None:
    before = last_entry(spark)
    with conf(spark, {"spark.volley.ui": "on"}), pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        spark.range(3).select(F.expr("1 / (id - 1)")).collect()
    # Ours, and the one of Spark's own attempt.
    added = entries_after(spark, before)
    assert ["native by Volley" in description for description, _, _ in added] == [True, False]
    assert all(over and "DIVIDE_BY_ZERO" in error for _, over, error in added)


def test_explain_says_both(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    frame = spark.range(3).select(F.shuffle(F.array(F.lit(1), F.lit(2))))
    frame.explain()
    assert "== Volley ==" not in capsys.readouterr().out
    with conf(spark, {"spark.volley.explain.spark": "true"}):
        frame.explain()
    said = capsys.readouterr().out
    assert "== Physical Plan ==" in said
    assert "== Volley ==\nSpark runs this query" in said
