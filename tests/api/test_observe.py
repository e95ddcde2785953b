# SPDX-License-Identifier: Apache-2.0
"""`df.observe`: the metrics are those that Spark observes, whoever runs the query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

import volley
from helpers.waiting import eventually
from volley.errors import DeadlineExceeded, FallbackError
from volley.plan.reader import instantiate
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
def rows(spark: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    """A table `t` in several files, so that Spark has several tasks, and an empty table `nothing`."""
    frame = spark.range(0, 100, 1, 4).selectExpr("id", "id % 7 as k")
    for name, written in (("t", frame), ("nothing", frame.where("id < 0"))):
        written.write.parquet(str(tmp_path / name))
        spark.read.parquet(str(tmp_path / name)).createOrReplaceTempView(name)
    spark.conf.set("spark.sql.files.maxPartitionBytes", "1k")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    yield spark
    spark.catalog.clearCache()


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
        return act(frame), metrics_of(observation)


def metrics_of(observation: Observation) -> Any:
    """What was observed, or the error of PySpark where Spark has no metrics. Fails instead of waiting for an action."""
    java: Any = observation._jo
    eventually(lambda: java.future().isCompleted())
    try:
        return observation.get
    except Exception as error:
        return type(error)


def engine_of(spark: SparkSession) -> str:
    report = volley.last_query(spark)
    assert report is not None
    return report.engine


NATIVE: dict[str, Program] = {
    "random rows": lambda spark, observe: observe(spark.table("t").where("rand(1) < 0.5")),
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
    "over a cached frame": lambda spark, observe: observe(spark.table("t").where("id < 9").cache()),
}


@pytest.mark.parametrize("name", NATIVE)
def test_native_queries_have_sparks_metrics(rows: SparkSession, name: str) -> None:
    expected = observe(rows, NATIVE[name], enabled=False)
    actual = observe(rows, NATIVE[name], enabled=True)
    assert engine_of(rows) == "native", volley.last_query(rows)
    assert actual == expected


DEPENDS: dict[str, Program] = {
    "limit": lambda spark, observe: observe(spark.table("t")).limit(3),
    "self join": lambda spark, observe: _with_itself(observe(spark.table("t"))),
    "rows that may differ": lambda spark, observe: observe(spark.table("t").limit(3)),
    "in a cached frame": lambda spark, observe: observe(spark.table("t")).cache(),
    "in a subquery": lambda spark, observe: spark.table("t").where(
        F.col("id") > observe(spark.table("t")).agg(F.max("id") - 3).scalar()
    ),
}


def _with_itself(frame: DataFrame) -> DataFrame:
    return frame.alias("a").join(frame.alias("b"), "k")


@pytest.mark.parametrize("name", DEPENDS)
def test_what_depends_on_sparks_execution_is_sparks(rows: SparkSession, name: str) -> None:
    expected = observe(rows, DEPENDS[name], enabled=False)
    actual = observe(rows, DEPENDS[name], enabled=True)
    assert engine_of(rows) == "spark"
    assert actual == expected


def test_metrics_of_a_query_that_is_native_in_part_are_sparks(rows: SparkSession) -> None:
    computed = rows.createDataFrame(rows.sparkContext.parallelize([(1,), (2,)]).map(tuple), "k long")

    def program(spark: SparkSession, observe: Observe) -> DataFrame:
        return observe(spark.table("t")).groupBy("k").count().join(computed, "k")

    program(rows, lambda frame: frame).collect()
    assert engine_of(rows) == "mixed"
    expected = observe(rows, program, enabled=False)
    assert observe(rows, program, enabled=True) == expected
    assert engine_of(rows) == "spark"


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


EARLY: dict[str, Callable[[DataFrame], Any]] = {
    "tail": lambda frame: frame.tail(3),
    "take": lambda frame: frame.take(3),
    "isEmpty": lambda frame: frame.isEmpty(),
    "toLocalIterator": lambda frame: len(list(frame.toLocalIterator())),
}


@pytest.mark.parametrize("act", EARLY.values(), ids=EARLY)
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


def test_a_write_of_a_new_table_is_observed(rows: SparkSession) -> None:
    def write(frame: DataFrame) -> list[Any]:
        with created_table(rows, "observed_rows"):
            frame.write.saveAsTable("observed_rows")
            return sorted(rows.table("observed_rows").collect())

    expected = observe(rows, NATIVE["above a filter"], write, enabled=False)
    assert observe(rows, NATIVE["above a filter"], write, enabled=True) == expected


@contextmanager
def created_table(spark: SparkSession, name: str) -> Iterator[None]:
    try:
        yield
    finally:
        spark.sql(f"drop table if exists {name}")


def test_an_observation_is_that_of_the_first_action(rows: SparkSession) -> None:
    observation = Observation()
    frame = rows.table("t").observe(observation, F.count(F.lit(1)).alias("n"))
    frame.where("k = 1").collect()
    assert engine_of(rows) == "native"
    first = observation.get
    rows.table("t").where("false").collect()
    frame.collect()
    assert observation.get == first


def test_several_parts_of_a_query_are_observed(rows: SparkSession) -> None:
    def act(enabled: bool) -> list[Any]:
        inner, outer, dropped, other = (Observation(name) for name in ("inner", "outer", "dropped", "other"))
        with conf(rows, {"spark.volley.enabled": str(enabled).lower()}):
            below = rows.table("t").observe(inner, F.count("id").alias("n")).where("id % 2 = 0")
            above = below.observe(outer, F.count("id").alias("n"), F.sum("k").alias("total"))
            nothing = rows.table("t").observe(dropped, F.count("id").alias("n")).where("false")
            second = rows.table("t").observe(other, F.max("id").alias("n"))
            result = sorted(above.union(nothing).union(second).collect())
        return [result, *map(metrics_of, (inner, outer, dropped, other))]

    expected = act(enabled=False)
    assert act(enabled=True) == expected
    assert engine_of(rows) == "native"


def test_a_query_that_fails_on_spark_completes_its_observation(rows: SparkSession) -> None:
    def act(frame: DataFrame) -> str:
        with pytest.raises(PySparkException) as raised:
            frame.collect()
        return str(raised.value.getCondition())

    def program(spark: SparkSession, observe: Observe) -> DataFrame:
        return observe(spark.table("t").repartition(1)).selectExpr("1 / (id - 50)")

    assert observe(rows, program, act, enabled=True) == observe(rows, program, act, enabled=False)


def test_a_refused_action_completes_its_observation(rows: SparkSession) -> None:
    def act(frame: DataFrame) -> None:
        with pytest.raises(FallbackError):
            frame.collect()

    with conf(rows, {"spark.volley.fallback": "error"}):
        _, metrics = observe(rows, DEPENDS["limit"], act, enabled=True)
    assert metrics["n"] == 0


def test_an_action_that_ends_early_completes_its_observation(rows: SparkSession) -> None:
    def program(spark: SparkSession, observe: Observe) -> DataFrame:
        endless = spark.range(10**12).where("(id * 3) % 7 = 3").selectExpr("id", "id % 7 as k")
        return observe(endless).groupBy().count()

    def act(frame: DataFrame) -> None:
        with pytest.raises(DeadlineExceeded):
            frame.collect()

    # Spark must not run it: it would not end.
    with conf(rows, {"spark.volley.timeoutSeconds": "0.5", "spark.volley.fallback": "error"}):
        _, metrics = observe(rows, program, act, enabled=True)
    assert metrics["n"] == 0


def test_a_frame_is_observed_again_by_spark(rows: SparkSession) -> None:
    """What a native action observed is not left in the plan of the frame."""
    frame = rows.table("t").observe("metrics", F.count(F.lit(1)).alias("n"))
    frame.collect()
    assert engine_of(rows) == "native"
    frame.tail(1)
    assert engine_of(rows) == "spark"
    execution: Any = frame._jdf.queryExecution()
    with conf(rows, {"spark.volley.enabled": "false"}):
        assert "[100]" in str(execution.observedMetrics())
        execution.executedPlan().resetMetrics()
        assert "[0]" in str(execution.observedMetrics())


def test_rows_that_spark_counts_twice_are_sparks(rows: SparkSession) -> None:
    with conf(rows, {"spark.sql.legacy.observeMetricsAggregateAllAttempts": "true"}):
        expected = observe(rows, NATIVE["below an order"], enabled=False)
        assert observe(rows, NATIVE["below an order"], enabled=True) == expected
    assert engine_of(rows) == "spark"


_LISTENER = """
package volley;

public final class Listener implements org.apache.spark.sql.util.QueryExecutionListener {
    private final java.util.List heard = new java.util.Vector();

    public void onSuccess(String action, org.apache.spark.sql.execution.QueryExecution execution, long nanoseconds) {
        heard.add(action + " " + execution.observedMetrics());
    }

    public void onFailure(String action, org.apache.spark.sql.execution.QueryExecution execution, Exception error) {
        heard.add(action + " failed");
    }

    public String heard() {
        return heard.toString();
    }
}
"""


def test_listeners_hear_of_metrics(rows: SparkSession, tmp_path: Path) -> None:
    manager: Any = rows._jsparkSession.listenerManager()

    def act(enabled: bool) -> str:
        listener = instantiate(rows.sparkContext._gateway, _LISTENER)
        frame = rows.table("t").observe("metrics", F.count(F.lit(1)).alias("n"), F.max("id").alias("last"))
        manager.register(listener)
        try:
            with conf(rows, {"spark.volley.enabled": str(enabled).lower()}):
                for action in (frame.collect, frame.toArrow, frame.count):
                    action()
                frame.write.parquet(str(tmp_path / f"copy-{enabled}"))
            rows.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
            return str(listener.heard())
        finally:
            manager.unregister(listener)

    expected = act(enabled=False)
    assert expected.count("metrics -> [100,99]") == 4
    assert act(enabled=True) == expected
    assert engine_of(rows) == "native"


def test_explain_says_why_metrics_are_sparks(rows: SparkSession) -> None:
    frame = DEPENDS["limit"](rows, lambda below: below.observe("metrics", *map(F.expr, _METRICS)))
    assert "a LIMIT above" in str(volley.explain(frame))
    assert volley.explain(rows.table("t").observe("metrics", *map(F.expr, _METRICS))).native
