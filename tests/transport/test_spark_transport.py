# SPDX-License-Identifier: Apache-2.0
"""Native tasks inside Spark's own executors: same rows, as many Spark tasks as native ones, nothing left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from volley.bench.queries import QUERIES, query_text
from volley.errors import QueryCancelled
from volley.observe.report import QueryReport
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

SOME = ("q11", "q18")
SHUFFLED = {"spark.sql.autoBroadcastJoinThreshold": "-1"}


@pytest.fixture
def executors(tpch: SparkSession) -> Iterator[SparkSession]:
    with conf(tpch, {"spark.volley.transport": "spark", **DISTRIBUTED_SETTINGS}):
        yield tpch


def report_of(spark: SparkSession) -> QueryReport:
    report = volley.last_query(spark)
    assert report is not None
    return report


def assert_native_tasks(spark: SparkSession) -> None:
    report = report_of(spark)
    assert report.engine == "native", [str(reason) for reason in report.reasons]
    assert report.spark_tasks == report.native_tasks >= sum(stage.attempts for stage in report.stages)
    if len(report.stages) > 1:
        assert report.native_tasks > 1


@pytest.mark.parametrize(
    "query", [pytest.param(q, marks=[] if q in SOME else pytest.mark.slow) for q in QUERIES]
)
def test_tpch(executors: SparkSession, query: str) -> None:
    with conf(executors, SHUFFLED):
        assert_same_rows(executors, query_text(query), native=False)
        assert_native_tasks(executors)


@pytest.mark.slow
def test_python_functions_run_beside_the_sidecars(executors: SparkSession) -> None:
    """Functions of rows and of groups, and one that needs a broadcast variable."""

    def show(group: pd.DataFrame) -> pd.DataFrame:
        ids = sorted(group["o_orderkey"])
        return pd.DataFrame({"n": [len(group)], "ids": [repr((ids[:3], group.dtypes))]})

    def query(session: SparkSession) -> DataFrame:
        orders = session.table("orders").where("o_orderkey < 4000")
        upper = F.udf(lambda text: text.upper(), "string")
        return orders.groupBy(upper("o_orderpriority").alias("p")).applyInPandas(show, "n long, ids string")

    assert_same_rows(executors, query, native=False)
    assert_native_tasks(executors)
    table = executors.sparkContext.broadcast({1: 2})
    look_up = F.udf(lambda number: table.value.get(number), "long")
    assert_same_rows(executors, lambda session: session.range(9).select(look_up("id")), native=False)
    assert_native_tasks(executors)


@pytest.mark.slow
def test_jvms_beside_the_sidecars_evaluate_expressions(executors: SparkSession) -> None:
    """They have the Java and the jars of the executor."""
    query = """select date_format(o_orderdate, 'E') day, max(levenshtein(o_orderpriority, o_orderstatus)),
      count_min_sketch(o_custkey, 0.5d, 0.5d, 1) from orders where o_orderkey < 4000 group by 1"""
    with conf(executors, {"spark.sql.session.timeZone": "Asia/Kathmandu"}):
        assert_same_rows(executors, query, native=False)
    assert_native_tasks(executors)
    assert report_of(executors).jvm_rows > 0


def test_a_spark_task_for_each_native_one(executors: SparkSession) -> None:
    """Also of subqueries."""
    executors.sql("select l_returnflag, count(*) from lineitem group by 1").collect()
    report = report_of(executors)
    assert report.native
    assert report.spark_tasks == report.native_tasks == sum(stage.attempts for stage in report.stages) > 1
    executors.sql(
        "select count(*) from orders where o_totalprice > (select avg(o_totalprice) from orders)"
    ).collect()
    report = report_of(executors)
    assert report.native
    assert report.spark_tasks == report.native_tasks == sum(stage.attempts for stage in report.stages) > 1


def test_rows_come_back_in_order_and_whole(executors: SparkSession) -> None:
    assert_same_rows(executors, "select * from orders order by o_orderkey", ordered=True, native=False)
    assert_native_tasks(executors)
    nothing = executors.sql("select o_orderkey from orders where o_orderkey < 0")
    assert nothing.collect() == []
    assert_native_tasks(executors)


def test_a_limit_ends_the_tasks(executors: SparkSession) -> None:
    """Nobody could read all of these rows."""
    text = "select id from range(1000000000000) where id % 7 = 3 limit 5"
    assert len(executors.sql(text).collect()) == 5
    assert_native_tasks(executors)


def test_executors_write(executors: SparkSession, tmp_path: Path) -> None:
    orders = executors.table("orders")
    orders.write.partitionBy("o_orderstatus").parquet(str(tmp_path / "t"))
    assert_native_tasks(executors)
    assert report_of(executors).rows == orders.count()
    with conf(executors, {"spark.volley.enabled": "false"}):
        assert executors.read.parquet(str(tmp_path / "t")).count() == orders.count()


def test_cancelling_the_job_group_cancels_the_query(executors: SparkSession) -> None:
    context = executors.sparkContext
    failures: list[BaseException] = []

    def ask() -> None:
        context.setJobGroup("a group of the user's", "a long query")
        try:
            # DataFusion does not stop inside such a join. It takes seconds, so that no core is busy with it for long.
            executors.sql(
                "select sum(a.id * b.id) from range(20000) a join range(20000) b on a.id % 3 <> b.id % 5"
            ).collect()
        except BaseException as error:
            failures.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    # Not until a task is active: Spark's tracker may show that no sooner than the next heartbeat, in ten seconds.
    tracker = context.statusTracker()
    deadline = time.monotonic() + 60
    while not tracker.getJobIdsForGroup("a group of the user's") and time.monotonic() < deadline:
        time.sleep(0.02)
    context.cancelJobGroup("a group of the user's")
    asking.join(60)
    assert [type(failure) for failure in failures] == [QueryCancelled]
    # The sidecar is free again: another query gets its room at once.
    assert executors.sql("select count(*) as n from nation").collect()[0].n == 25
    assert_native_tasks(executors)


def test_jobs_say_what_they_are(executors: SparkSession) -> None:
    executors.sql("select count(*) as n from orders").collect()
    store = executors.sparkContext._jsc.sc().statusStore()
    text = store.jobsList(None).apply(0).description().get()
    assert text.startswith("Volley query ")
    assert text.endswith("native tasks")


def test_bad_data_is_sparks_own_error(executors: SparkSession) -> None:
    with (
        conf(executors, {"spark.sql.ansi.enabled": "true"}),
        pytest.raises(Exception, match="DIVIDE_BY_ZERO"),
    ):
        executors.sql("select sum(o_custkey / (o_custkey - o_custkey)) from orders").collect()


def test_subqueries_run_there_too(executors: SparkSession) -> None:
    text = "select count(*) as n from orders where o_totalprice > (select avg(o_totalprice) from orders)"
    assert_same_rows(executors, text, native=False)
    assert report_of(executors).engine == "native"


@pytest.mark.slow
def test_an_object_store_holds_the_data(executors: SparkSession, tmp_path: Path) -> None:
    with conf(executors, {"spark.volley.shuffle.store": tmp_path.as_uri(), **SHUFFLED}):
        assert_same_rows(executors, query_text("q03"), native=False)
        assert_native_tasks(executors)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
