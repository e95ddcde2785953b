# SPDX-License-Identifier: Apache-2.0
"""`df.observe`: the metrics are those that Spark observes, whoever runs the query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

import volley
from volley.testing.session import conf

Observe = Callable[[DataFrame], DataFrame]
Program = Callable[[SparkSession, Observe], DataFrame]

_METRICS = (
    "count(1) as n",
    "sum(id) as total",
    "min(k) as same",
    "max(k) as same",
    "max(id) - min(id) + 1 as span",
    "avg(id) as mean",
    "sum(cast(id as decimal(10, 2))) as exact",
    "max(timestamp_micros(id)) as latest",
    "max(struct(k, id)) as largest",
)


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> SparkSession:
    """A table `t` in several files, so that Spark has several tasks, and an empty table `nothing`."""
    frame = spark.range(0, 100, 1, 4).selectExpr("id", "id % 7 as k")
    for name, written in (("t", frame), ("nothing", frame.where("id < 0"))):
        written.write.parquet(str(tmp_path / name))
        spark.read.parquet(str(tmp_path / name)).createOrReplaceTempView(name)
    spark.conf.set("spark.sql.files.maxPartitionBytes", "1k")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    return spark


def observe(
    spark: SparkSession,
    program: Program,
    act: Callable[[DataFrame], Any] = lambda frame: sorted(frame.collect(), key=str),
    *,
    enabled: bool,
) -> tuple[Any, Any]:
    """The result of an action and what was observed."""
    observation = Observation("metrics")
    with conf(spark, {"spark.volley.enabled": str(enabled).lower()}):
        frame = program(spark, lambda below: below.observe(observation, *map(F.expr, _METRICS)))
        result = act(frame)
        try:
            return result, observation.get
        except Exception as error:  # Spark has no metrics, and PySpark trips over that
            return result, type(error)


def engine_of(spark: SparkSession) -> str:
    report = volley.last_query(spark)
    assert report is not None
    return report.engine


NATIVE: dict[str, Program] = {
    "all": lambda spark, observe: observe(spark.table("t")),
    "no rows": lambda spark, observe: observe(spark.table("nothing")),
    "below a filter": lambda spark, observe: observe(spark.table("t")).where("id < 5"),
    "above a filter": lambda spark, observe: observe(spark.table("t").where("id < 5")),
    "of groups": lambda spark, observe: observe(spark.table("t").groupBy("k").agg(F.sum("id").alias("id"))),
    "below groups": lambda spark, observe: observe(spark.table("t")).groupBy("k").count(),
    "below a total": lambda spark, observe: observe(spark.table("nothing")).agg(F.count("id")),
    "below an order": lambda spark, observe: observe(spark.table("t")).orderBy("k", "id"),
    "below a top": lambda spark, observe: observe(spark.table("t")).orderBy("k", "id").limit(3),
    "below a join": lambda spark, observe: observe(spark.table("t")).join(
        F.broadcast(spark.table("t").select("k").distinct()), "k"
    ),
    "on the build side": lambda spark, observe: spark.table("t").join(
        F.broadcast(observe(spark.table("t").where("id < 7"))), "k"
    ),
    "below a merge join": lambda spark, observe: (
        observe(spark.table("t"))
        .hint("merge")
        .join(spark.table("t").where("id > 3").select("k").distinct(), "k")
    ),
    "below an outer join": lambda spark, observe: observe(spark.table("t")).join(
        spark.table("nothing").select("k"), "k", "left"
    ),
    "in a union": lambda spark, observe: observe(spark.table("t")).union(spark.table("nothing")),
    "below a window": lambda spark, observe: observe(spark.table("t")).selectExpr(
        "id", "row_number() over (partition by k order by id) as place"
    ),
    "nothing is left": lambda spark, observe: observe(spark.table("t")).where("false"),
}


@pytest.mark.parametrize("name", NATIVE)
def test_native_queries_have_sparks_metrics(rows: SparkSession, name: str) -> None:
    expected = observe(rows, NATIVE[name], enabled=False)
    actual = observe(rows, NATIVE[name], enabled=True)
    assert engine_of(rows) == "native", volley.last_query(rows).reasons
    assert actual == expected


DEPENDS: dict[str, Program] = {
    "limit": lambda spark, observe: observe(spark.table("t")).limit(3),
    "self join": lambda spark, observe: _with_itself(observe(spark.table("t"))),
    "rows that may differ": lambda spark, observe: observe(spark.table("t").limit(3)),
    "random rows": lambda spark, observe: observe(spark.table("t").where("rand(1) < 0.5")),
}


def _with_itself(frame: DataFrame) -> DataFrame:
    return frame.alias("a").join(frame.alias("b"), "k")


@pytest.mark.parametrize("name", DEPENDS)
def test_what_depends_on_sparks_execution_is_sparks(rows: SparkSession, name: str) -> None:
    expected = observe(rows, DEPENDS[name], enabled=False)
    actual = observe(rows, DEPENDS[name], enabled=True)
    assert engine_of(rows) == "spark"
    assert actual == expected


EMPTY: dict[str, Program] = {
    "groups of no rows": lambda spark, observe: observe(spark.table("nothing")).groupBy("k").count(),
    "a join with no rows": lambda spark, observe: observe(spark.table("t")).join(
        F.broadcast(spark.table("nothing").select("k")), "k"
    ),
    "a filter that leaves no rows": lambda spark, observe: (
        observe(spark.table("t")).where("id < 0").groupBy("k").count()
    ),
}


@pytest.mark.parametrize("name", EMPTY)
def test_spark_decides_what_is_observed_of_an_empty_query(rows: SparkSession, name: str) -> None:
    """Adaptive execution removes what is empty, with its metrics."""
    expected = observe(rows, EMPTY[name], enabled=False)
    assert observe(rows, EMPTY[name], enabled=True) == expected
    assert engine_of(rows) == "spark"


ACTIONS: dict[str, Callable[[DataFrame], Any]] = {
    "count": lambda frame: frame.count(),
    "toArrow": lambda frame: frame.toArrow().num_rows,
    "toPandas": lambda frame: len(frame.toPandas()),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_actions_that_read_all_rows_are_native(rows: SparkSession, name: str) -> None:
    expected = observe(rows, NATIVE["all"], ACTIONS[name], enabled=False)
    assert observe(rows, NATIVE["all"], ACTIONS[name], enabled=True) == expected
    assert engine_of(rows) == "native"


@pytest.mark.parametrize(
    "act", [lambda frame: frame.tail(3), lambda frame: frame.take(3)], ids=["tail", "take"]
)
def test_actions_that_stop_early_are_sparks(rows: SparkSession, act: Callable[[DataFrame], Any]) -> None:
    expected = observe(rows, NATIVE["all"], act, enabled=False)
    assert observe(rows, NATIVE["all"], act, enabled=True) == expected
    assert engine_of(rows) == "spark"


def test_a_write_is_observed(rows: SparkSession, tmp_path: Path) -> None:
    def write(frame: DataFrame) -> list[Any]:
        frame.write.mode("overwrite").parquet(str(tmp_path / "copy"))
        assert engine_of(rows) == ("native" if rows.conf.get("spark.volley.enabled") == "true" else "spark")
        return sorted(rows.read.parquet(str(tmp_path / "copy")).collect())

    assert observe(rows, NATIVE["above a filter"], write, enabled=True) == observe(
        rows, NATIVE["above a filter"], write, enabled=False
    )


def test_an_observation_is_that_of_the_first_action(rows: SparkSession) -> None:
    observation = Observation()
    frame = rows.table("t").observe(observation, F.count(F.lit(1)).alias("n"))
    frame.where("k = 1").collect()
    assert engine_of(rows) == "native"
    first = observation.get
    rows.table("t").where("false").collect()
    frame.collect()
    assert observation.get == first


def test_explain_says_why_metrics_are_sparks(rows: SparkSession) -> None:
    frame = DEPENDS["limit"](rows, lambda below: below.observe("metrics", *map(F.expr, _METRICS)))
    assert "a LIMIT above" in str(volley.explain(frame))
    assert volley.explain(rows.table("t").observe("metrics", *map(F.expr, _METRICS))).native
