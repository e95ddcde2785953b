"""Queries that no engine runs alone: Spark runs what is not native, the native plan above it reads Spark's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from volley.cluster import LocalCluster
from volley.errors import FallbackError
from volley.observe.report import QueryReport
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf
from volley.transport.flight import close_fleets

DERBY = "jdbc:derby:memory:volley;create=true"


def udf_in_the_middle(spark: SparkSession) -> DataFrame:
    first = F.udf(lambda text: text.split("-")[0], "string")
    orders = spark.table("orders").where("o_orderkey % 3 = 0").withColumn("rank", first("o_orderpriority"))
    joined = orders.join(spark.table("customer"), F.col("o_custkey") == F.col("c_custkey"))
    return joined.groupBy("rank", "c_mktsegment").agg(F.sum("o_totalprice").alias("t")).orderBy("rank", "t")


def pandas_udf_in_the_middle(spark: SparkSession) -> DataFrame:
    twice = F.pandas_udf(lambda numbers: numbers * 2, "long")
    orders = spark.table("orders").select("o_orderkey", twice("o_custkey").alias("k"))
    joined = orders.join(spark.table("lineitem"), F.col("o_orderkey") == F.col("l_orderkey"))
    return joined.groupBy("k").agg(F.max("l_shipdate"), F.count("*"))


def rdd_below_a_join(spark: SparkSession) -> DataFrame:
    rows = spark.sparkContext.parallelize([(number, f"name {number}", None) for number in range(25)], 3)
    named = spark.createDataFrame(rows, "key int, label string, nothing double")
    nations = spark.table("nation").join(named, F.col("n_nationkey") == F.col("key"))
    return nations.groupBy("n_regionkey").agg(F.max("label"), F.count("nothing")).orderBy("n_regionkey")


def unsupported_below_a_join(spark: SparkSession) -> DataFrame:
    tagged = spark.table("orders").select("o_custkey", F.md5(F.col("o_comment").cast("binary")).alias("tag"))
    joined = tagged.join(spark.table("customer"), F.col("o_custkey") == F.col("c_custkey"), "left")
    return joined.groupBy("c_nationkey").agg(F.min("tag"), F.countDistinct("tag"))


def lists_below_a_join(spark: SparkSession) -> DataFrame:
    """The whole aggregate is Spark's: its halves would not understand each other."""
    lists = (
        spark.table("nation")
        .groupBy("n_regionkey")
        .agg(F.sort_array(F.collect_list("n_name")).alias("names"))
    )
    joined = lists.join(spark.table("region"), F.col("n_regionkey") == F.col("r_regionkey"))
    return joined.select("r_name", "names").orderBy("r_name")


def udf_under_a_window(spark: SparkSession) -> DataFrame:
    spark.udf.register("plus_one", lambda number: number + 1, "int")
    return spark.sql(
        "select r, n, count(*) as c from (select n_name as n, rank() over (partition by k order by n_name) as r from "
        "(select n_name, plus_one(n_regionkey) as k from nation)) group by r, n order by r, n limit 7"
    )


QUERIES: dict[str, Callable[[SparkSession], DataFrame]] = {
    "python udf": udf_in_the_middle,
    "pandas udf": pandas_udf_in_the_middle,
    "rdd": rdd_below_a_join,
    "expression": unsupported_below_a_join,
    "lists": lists_below_a_join,
    "window": udf_under_a_window,
}


def report_of(spark: SparkSession) -> QueryReport:
    report = volley.last_query(spark)
    assert report is not None
    return report


def assert_mixed(spark: SparkSession, query: Callable[[SparkSession], DataFrame]) -> None:
    assert_same_rows(spark, query, native=False)
    report = report_of(spark)
    assert report.engine == "mixed", [str(reason) for reason in report.reasons]
    assert report.spark_tasks > 0
    assert report.reasons
    assert report.stages


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("workers", ["1", pytest.param("3", marks=pytest.mark.slow)])
def test_spark_below_native(tpch: SparkSession, query: str, workers: str) -> None:
    with conf(tpch, {"spark.volley.local.workers": workers}):
        assert_mixed(tpch, QUERIES[query])


def test_a_cached_table(tpch: SparkSession) -> None:
    cached = tpch.table("customer").where("c_acctbal > 0").cache()
    try:
        cached.count()

        def query(spark: SparkSession) -> DataFrame:
            orders = spark.table("orders").join(cached, F.col("o_custkey") == F.col("c_custkey"))
            return orders.groupBy("c_mktsegment").agg(F.avg("c_acctbal"), F.sum("o_totalprice"))

        assert_mixed(tpch, query)
    finally:
        cached.unpersist()


def test_a_jdbc_source(tpch: SparkSession) -> None:
    """Derby comes with Spark and needs no server."""
    options = {"url": DERBY, "driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver", "dbtable": "labels"}
    with conf(tpch, {"spark.volley.enabled": "false"}):
        labels = tpch.sql("select cast(id as int) as k, concat('label ', id) as label from range(5)")
        labels.write.format("jdbc").options(**options).mode("overwrite").save()

    def query(spark: SparkSession) -> DataFrame:
        read = spark.read.format("jdbc").options(**options).load()
        joined = spark.table("nation").join(read, F.col("n_regionkey") == F.col("k"))
        return joined.groupBy("label").agg(F.count("*").alias("n")).orderBy("label")

    assert_mixed(tpch, query)


@pytest.fixture
def elsewhere(tpch: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    with (
        LocalCluster(2) as cluster,
        conf(tpch, {**cluster.settings, "spark.volley.mixed.directory": str(tmp_path)}),
    ):
        yield tpch
        close_fleets()


def test_workers_in_other_processes(elsewhere: SparkSession, tmp_path: Path) -> None:
    """Spark's tasks write the rows where the workers read them; afterwards they are gone."""
    assert_mixed(elsewhere, udf_in_the_middle)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_inside_executors(tpch: SparkSession) -> None:
    with conf(tpch, {"spark.volley.transport": "spark"}):
        for query in QUERIES.values():
            assert_mixed(tpch, query)


def test_a_mixed_write(tpch: SparkSession, tmp_path: Path) -> None:
    udf_in_the_middle(tpch).write.partitionBy("rank").parquet(str(tmp_path / "t"))
    assert report_of(tpch).engine == "mixed"
    with conf(tpch, {"spark.volley.enabled": "false"}):
        assert tpch.read.parquet(str(tmp_path / "t")).count() == udf_in_the_middle(tpch).count()


@pytest.mark.parametrize(
    "query",
    [
        lambda spark: spark.createDataFrame(spark.sparkContext.parallelize([(1,), (2,)]), "k int").where(
            "k > 1"
        ),
        lambda spark: (
            spark.createDataFrame(spark.sparkContext.parallelize([(1,), (2,)]), "k int").groupBy().count()
        ),
    ],
)
def test_small_islands_stay_with_spark(
    spark: SparkSession, query: Callable[[SparkSession], DataFrame]
) -> None:
    query(spark).collect()
    report = report_of(spark)
    assert report.engine == "spark"
    assert "NOT_WORTH_A_HAND_OVER" in str(report.reasons[-1])


def test_an_order_is_not_handed_over(tpch: SparkSession) -> None:
    """The rows of the sort are limited above it: which ones depends on an order that only Spark knows."""

    def query(spark: SparkSession) -> DataFrame:
        pairs = spark.table("nation").orderBy(F.struct("n_regionkey", "n_name")).limit(7)
        joined = pairs.join(spark.table("region"), F.col("n_regionkey") == F.col("r_regionkey"))
        return joined.groupBy("r_name").agg(F.max("n_name"), F.count("*"))

    assert_same_rows(tpch, query, native=False)


def test_settings(tpch: SparkSession) -> None:
    with conf(tpch, {"spark.volley.mixed": "false"}):
        rdd_below_a_join(tpch).collect()
        assert report_of(tpch).engine == "spark"
    with (
        conf(tpch, {"spark.volley.fallback": "error"}),
        pytest.raises(FallbackError, match="does not run natively"),
    ):
        rdd_below_a_join(tpch).collect()


def test_explain_shows_the_hand_over(tpch: SparkSession) -> None:
    explanation = volley.explain(rdd_below_a_join(tpch))
    assert not explanation.native
    assert len(explanation.hand_overs) == 1
    text = str(explanation)
    assert text.startswith("Volley and Spark run this query")
    assert text.count("~ hand-over") == 1


def test_bad_data_of_spark_is_sparks_error(tpch: SparkSession) -> None:
    fails = F.udf(lambda number: 1 // (number - 5), "int")
    nations = tpch.table("nation").withColumn("x", fails("n_nationkey"))
    joined = nations.join(tpch.table("region"), F.col("n_regionkey") == F.col("r_regionkey"))
    with pytest.raises(Exception, match="ZeroDivisionError"):
        joined.groupBy("r_name").agg(F.sum("x")).collect()
