# SPDX-License-Identifier: Apache-2.0
"""Queries that no engine runs alone: Spark runs what is not native, the native plan above it reads Spark's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import PandasUDFType, pandas_udf

import volley
from helpers.sampling import every
from volley.cluster import LocalCluster
from volley.errors import FallbackError
from volley.observe.report import QueryReport
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

pytestmark = pytest.mark.usefixtures("functions_on_spark")

DERBY = "jdbc:derby:memory:volley;create=true"


def udf_in_the_middle(spark: SparkSession) -> DataFrame:
    first = F.udf(lambda text: text.split("-")[0], "string")
    orders = spark.table("orders").where("o_orderkey % 3 = 0").withColumn("rank", first("o_orderpriority"))
    joined = orders.join(spark.table("customer"), F.col("o_custkey") == F.col("c_custkey"))
    return joined.groupBy("rank", "c_mktsegment").agg(F.sum("o_totalprice").alias("t")).orderBy("rank", "t")


def pandas_udf_in_the_middle(spark: SparkSession) -> DataFrame:
    twice = pandas_udf(lambda numbers: numbers * 2, "long", PandasUDFType.SCALAR)
    orders = spark.table("orders").select("o_orderkey", twice("o_custkey").alias("k"))
    joined = orders.join(spark.table("lineitem"), F.col("o_orderkey") == F.col("l_orderkey"))
    return joined.groupBy("k").agg(F.max("l_shipdate"), F.count("*"))


def rdd_below_a_join(spark: SparkSession) -> DataFrame:
    rows = spark.sparkContext.parallelize([(number, f"name {number}", None) for number in range(25)], 3)
    named = spark.createDataFrame(rows, "key int, label string, nothing double")
    nations = spark.table("nation").join(named, F.col("n_nationkey") == F.col("key"))
    return nations.groupBy("n_regionkey").agg(F.max("label"), F.count("nothing")).orderBy("n_regionkey")


def unsupported_below_a_join(spark: SparkSession) -> DataFrame:
    tagged = spark.table("orders").select("o_custkey", F.hash("o_comment").alias("tag"))
    joined = tagged.join(spark.table("customer"), F.col("o_custkey") == F.col("c_custkey"), "left")
    return joined.groupBy("c_nationkey").agg(F.min("tag"), F.countDistinct("tag"))


def lists_below_a_join(spark: SparkSession) -> DataFrame:
    """The whole aggregate is Spark's: its halves would not understand each other."""
    lists = (
        spark.table("nation")
        .repartition(3)
        .groupBy("n_regionkey")
        .agg(F.histogram_numeric("n_nationkey", F.lit(3)).alias("bins"))
    )
    joined = lists.join(spark.table("region"), F.col("n_regionkey") == F.col("r_regionkey"))
    return joined.select("r_name", "bins").orderBy("r_name")


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


def udf_at_the_top(spark: SparkSession) -> DataFrame:
    """Spark reads the rows of the native part; its order is Spark's."""
    spelled = F.udf(lambda text: text.lower(), "string")
    joined = spark.table("orders").join(spark.table("customer"), F.col("o_custkey") == F.col("c_custkey"))
    totals = joined.groupBy("c_mktsegment").agg(F.sum("o_totalprice").alias("total"))
    return totals.orderBy(F.desc("total")).select(spelled("c_mktsegment"), "total")


def between(spark: SparkSession) -> DataFrame:
    """Native, Spark, native: a join and an aggregate below a UDF, another join and aggregate above it."""
    first = F.udf(lambda text: text[:1], "string")
    joined = spark.table("orders").join(spark.table("customer"), F.col("o_custkey") == F.col("c_custkey"))
    totals = joined.groupBy("c_nationkey", "o_orderpriority").agg(F.max("o_orderdate").alias("last"))
    ranked = totals.withColumn("rank", first("o_orderpriority"))
    named = ranked.join(spark.table("nation"), F.col("c_nationkey") == F.col("n_nationkey"))
    return named.groupBy("n_name", "rank").agg(F.max("last"), F.count("*")).orderBy("n_name", "rank")


def two_islands(spark: SparkSession) -> DataFrame:
    """A join on what only Spark computes, of two aggregates."""
    by_customer = spark.table("orders").groupBy("o_custkey").agg(F.count("*").alias("orders"))
    by_nation = spark.table("customer").groupBy("c_nationkey").agg(F.avg("c_acctbal").alias("balance"))
    same = F.hash(F.col("o_custkey").cast("string")) == F.hash(F.col("c_nationkey").cast("string"))
    return by_customer.join(by_nation, same)


ABOVE: dict[str, Callable[[SparkSession], DataFrame]] = {
    "top": udf_at_the_top,
    "between": between,
    "two": two_islands,
}


def report_of(spark: SparkSession) -> QueryReport:
    report = volley.last_query(spark)
    assert report is not None
    return report


def assert_mixed(spark: SparkSession, query: Callable[[SparkSession], DataFrame]) -> None:
    # Otherwise the JVM evaluates what has no native form, and the query is native.
    with conf(spark, {"spark.volley.jvmExpressions": "off"}):
        assert_same_rows(spark, query, native=False)
    report = report_of(spark)
    assert report.engine == "mixed", [str(reason) for reason in report.reasons]
    assert report.spark_tasks
    assert report.reasons
    assert report.stages


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("query", every(2, QUERIES))
@pytest.mark.parametrize("workers", ["1", pytest.param("3", marks=pytest.mark.slow)])
def test_spark_below_native(tpch: SparkSession, query: str, workers: str) -> None:
    with conf(tpch, {"spark.volley.local.workers": workers}):
        assert_mixed(tpch, QUERIES[query])


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("query", ABOVE)
@pytest.mark.parametrize("workers", ["1", pytest.param("3", marks=pytest.mark.slow)])
def test_spark_above_native(tpch: SparkSession, query: str, workers: str) -> None:
    with conf(tpch, {"spark.volley.local.workers": workers}):
        assert_mixed(tpch, ABOVE[query])


def test_an_order_above_native_rows(tpch: SparkSession) -> None:
    assert_same_rows(tpch, udf_at_the_top, ordered=True, native=False)
    assert report_of(tpch).engine == "mixed"


def test_every_way_to_ask(tpch: SparkSession) -> None:
    frame = udf_at_the_top(tpch)
    with conf(tpch, {"spark.volley.enabled": "false"}):
        expected = frame.collect()
    pandas: Any = frame.toPandas()
    answers = [
        frame.collect(),
        frame.take(9),
        pandas.values.tolist(),
        [frame.first(), *frame.tail(4)],
    ]
    for answer in answers:
        assert [tuple(row) for row in answer] == [tuple(row) for row in expected]
    assert report_of(tpch).engine == "mixed"
    assert frame.count() == 5
    assert list(frame.toLocalIterator()) == expected
    # Row by row it is Spark's, since what Spark answers here comes at once.
    assert report_of(tpch).engine == "spark"


def test_types_that_cross_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    text = """
        select cast(id as tinyint) as b, cast(id * 300 as smallint) as s, cast(id * 70000 as int) as i, id as l,
               cast(id / 3 as float) as f, if(id % 4 = 0, double('nan'), id / -7) as d, id % 2 = 0 as flag,
               cast(id * 1.5 as decimal(7, 2)) as small, cast(id * -1.25 as decimal(38, 10)) as wide,
               if(id % 5 = 0, null, concat('name ', id, ' ü')) as name, encode(cast(id as string), 'utf-8') as raw,
               date_add(date'1581-12-30', cast(id * 9000 as int)) as day,
               timestamp'1899-12-31 23:59:59.123456' + make_dt_interval(cast(id * 3000 as int)) as moment,
               timestamp_ntz'1899-12-31 23:59:59.123456' as local, if(id > 3, null, id) as gone
        from range(40)
    """
    with conf(spark, {"spark.volley.enabled": "false"}):
        spark.sql(text).write.parquet(str(tmp_path / "t"))
    same = F.udf(lambda number: number, "long")
    rows = spark.read.parquet(str(tmp_path / "t"))
    grouped = rows.groupBy("l").agg(
        *(F.max(column).alias(column) for column in rows.columns if column != "l")
    )
    assert_mixed(spark, lambda spark: grouped.withColumn("same", same("l")))


def test_whether_a_column_may_be_null_crosses_too(tpch: SparkSession, tmp_path: Path) -> None:
    """Spark writes what it knows of nullability into files; a count is never NULL."""
    for name, settings in (("spark", {"spark.volley.enabled": "false"}), ("volley", {})):
        with conf(tpch, settings):
            same = F.udf(lambda number: number, "long")
            counted = tpch.table("orders").groupBy("o_orderstatus").agg(F.count("*").alias("n"))
            counted.withColumn("same", same("n")).write.parquet(str(tmp_path / name))
    assert report_of(tpch).engine == "mixed"
    files = [next((tmp_path / name).glob("part-*.parquet")) for name in ("spark", "volley")]
    assert pq.read_schema(files[0]).metadata == pq.read_schema(files[1]).metadata
    assert (
        str(pq.read_metadata(files[0]).schema).split("\n", 1)[1]
        == str(pq.read_metadata(files[1]).schema).split("\n", 1)[1]
    )


@pytest.mark.parametrize(
    "format", ["csv", *(pytest.param(n, marks=pytest.mark.slow) for n in ("json", "orc"))]
)
def test_formats_that_only_spark_writes(tpch: SparkSession, tmp_path: Path, format: str) -> None:
    """The rows are computed natively, Spark's writer writes them."""
    for name, settings in (("spark", {"spark.volley.enabled": "false"}), ("volley", {})):
        with conf(tpch, settings):
            totals = (
                tpch.table("orders")
                .groupBy("o_orderpriority", "o_orderstatus")
                .agg(F.sum("o_totalprice"), F.max(F.timestamp_seconds("o_orderkey").cast("timestamp_ntz")))
            )
            totals.write.partitionBy("o_orderstatus").format(format).save(str(tmp_path / name))
    assert report_of(tpch).engine == "mixed"
    assert report_of(tpch).stages
    with conf(tpch, {"spark.volley.enabled": "false"}):
        found = [tpch.read.format(format).load(str(tmp_path / name)) for name in ("spark", "volley")]
        assert found[0].schema == found[1].schema
        assert sorted(found[0].collect()) == sorted(found[1].collect())


@pytest.mark.since("4.1")  # before, saveAsTable does not give its command
def test_tables_that_only_spark_writes(tpch: SparkSession) -> None:
    latest = "cast(timestamp_seconds(max(o_orderkey)) as timestamp_ntz)"
    totals = tpch.table("orders").groupBy("o_orderpriority").agg(F.expr(latest).alias("latest"))
    totals.write.format("json").saveAsTable("totals_in_json")
    try:
        assert report_of(tpch).engine == "mixed"
        assert "FILE_FORMAT_NOT_SUPPORTED" in str(report_of(tpch).reasons[0])
        tpch.sql(f"insert into totals_in_json select o_orderpriority, {latest} from orders group by 1")
        assert report_of(tpch).engine == "mixed"
        with conf(tpch, {"spark.volley.enabled": "false"}):
            expected = sorted(totals.collect() * 2)
            assert sorted(tpch.table("totals_in_json").collect()) == expected
    finally:
        tpch.sql("drop table totals_in_json")


def test_rows_that_show_how_spark_spread_them_are_sparks(tpch: SparkSession) -> None:
    counted = tpch.table("orders").groupBy("o_orderstatus").count()
    for frame in (
        counted.withColumn("id", F.monotonically_increasing_id()),
        counted.agg(F.histogram_numeric("count", F.lit(2))),
        counted.mapInArrow(lambda batches: batches, counted.schema),
    ):
        frame.collect()
        assert report_of(tpch).engine == "spark"


def test_bad_data_below_spark_is_sparks_error(tpch: SparkSession) -> None:
    same = F.udf(lambda number: number, "long")
    broken = (
        tpch.table("nation").groupBy("n_regionkey").agg(F.sum(F.expr("1 div (n_nationkey - 7)")).alias("q"))
    )
    with conf(tpch, {"spark.sql.ansi.enabled": "true"}), pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        broken.select(same("q")).collect()


def test_a_cached_table_that_spark_keeps(tpch: SparkSession) -> None:
    tpch.conf.set("spark.volley.cache.memory", "0")
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
    options = {"url": DERBY, "driver": "org.apache.derby.jdbc.EmbeddedDriver", "dbtable": "labels"}
    with conf(tpch, {"spark.volley.enabled": "false"}):
        labels = tpch.sql("select cast(id as int) as k, concat('label ', id) as label from range(5)")
        labels.write.format("jdbc").options(**options).mode("overwrite").save()

    def query(spark: SparkSession) -> DataFrame:
        read = spark.read.format("jdbc").options(**options).load()
        joined = spark.table("nation").join(read, F.col("n_regionkey") == F.col("k"))
        return joined.groupBy("label").agg(F.count("*").alias("n")).orderBy("label")

    assert_mixed(tpch, query)


@pytest.fixture
def elsewhere(tpch: SparkSession, cluster: LocalCluster) -> Iterator[SparkSession]:
    with conf(tpch, cluster.settings | DISTRIBUTED_SETTINGS):
        yield tpch


@pytest.mark.slow
def test_workers_in_other_processes(elsewhere: SparkSession) -> None:
    for query in (udf_in_the_middle, lists_below_a_join, between):
        assert_mixed(elsewhere, query)


@pytest.mark.slow
def test_all_of_it_on_workers_in_other_processes(elsewhere: SparkSession) -> None:
    for query in (*QUERIES.values(), *ABOVE.values()):
        assert_mixed(elsewhere, query)


@pytest.mark.usefixtures("distributed")
@pytest.mark.slow
def test_inside_executors(tpch: SparkSession) -> None:
    with conf(tpch, {"spark.volley.transport": "spark"}):
        for query in (*QUERIES.values(), *ABOVE.values()):
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
        lambda spark: spark.table("small").where("id > 1").select(F.udf(lambda number: number, "long")("id")),
    ],
)
def test_small_islands_stay_with_spark(
    spark: SparkSession, tmp_path: Path, query: Callable[[SparkSession], DataFrame]
) -> None:
    with conf(spark, {"spark.volley.enabled": "false"}):
        spark.range(5).write.parquet(str(tmp_path / "small"))
    spark.read.parquet(str(tmp_path / "small")).createOrReplaceTempView("small")
    query(spark).collect()
    report = report_of(spark)
    assert report.engine == "spark"
    assert "NOT_WORTH_A_HAND_OVER" in str(report.reasons[-1])
    assert "NOT_WORTH_A_HAND_OVER" in str(volley.explain(query(spark)))


def test_an_order_is_not_handed_over(tpch: SparkSession) -> None:
    """The rows of the sort are limited above it: which ones depends on an order that only Spark knows."""

    def query(spark: SparkSession) -> DataFrame:
        pairs = spark.table("nation").orderBy(F.struct("n_regionkey", "n_name")).limit(7)
        joined = pairs.join(spark.table("region"), F.col("n_regionkey") == F.col("r_regionkey"))
        return joined.groupBy("r_name").agg(F.max("n_name"), F.count("*"))

    assert_same_rows(tpch, query, native=False)


@pytest.mark.since("4.0")
@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize(
    "udf",
    [pytest.param("c_mktsegment", marks=pytest.mark.slow), "upper_case(c_mktsegment)"],
    ids=["above", "below"],
)
def test_plans_that_spark_does_not_analyse_again(tpch: SparkSession, udf: str) -> None:
    """A correlated LIMIT becomes a `row_number()` without an order, which a query may not contain."""
    tpch.udf.register("upper_case", lambda text: text.upper())
    tpch.conf.set("spark.volley.pythonFunctions", "false")
    assert_same_rows(
        tpch,
        f"select c_nationkey, count(distinct {udf}) from customer where c_custkey not in (select o_orderkey from orders"
        " where o_custkey > c_nationkey order by o_custkey desc, o_orderkey limit 1) group by c_nationkey",
        native=False,
    )


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
    assert len(explanation.spark_inputs) == 1
    text = str(explanation)
    assert text.startswith("Volley and Spark run this query")
    assert text.count("~ hand-over") == 1
    explanation = volley.explain(between(tpch))
    for text in (str(explanation), explanation._repr_html_()):
        assert text.count("~ hand-over: Spark runs this") == 1
        assert text.count("~ hand-over: Volley runs this") == 1


def test_bad_data_of_spark_is_sparks_error(tpch: SparkSession) -> None:
    fails = F.udf(lambda number: 1 // (number - 5), "int")
    nations = tpch.table("nation").withColumn("x", fails("n_nationkey"))
    joined = nations.join(tpch.table("region"), F.col("n_regionkey") == F.col("r_regionkey"))
    with pytest.raises(Exception, match="ZeroDivisionError"):
        joined.groupBy("r_name").agg(F.sum("x")).collect()
