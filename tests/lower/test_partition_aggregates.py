# SPDX-License-Identifier: Apache-2.0
"""Aggregates that depend on how Spark partitions rows: sketches, and what shows the order of rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import volley
from helpers.releases import runnable
from volley.support.reasons import Reason
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

CALLS = (
    "first(v), last(s), first(v, true), any_value(s), collect_list(v), listagg(s, ',')",
    "mode(v), mode(s), histogram_numeric(d, 5), approx_percentile(d, array(0.3, 0.9), 20)",
    "hll_sketch_agg(v), hll_union(hll_sketch_agg(v), hll_sketch_agg(s)), collect_set(d)",
    "collect_list(v) filter (where id % 4 = 1), mode(v) filter (where id > 100),"
    " hll_sketch_agg(s) filter (where v > 9), histogram_numeric(d, 3) filter (where id < 3),"
    " approx_percentile(v, 0.5, 9) filter (where v is null)",
)
# Of up to 200 rows: Spark itself draws random numbers to compress a larger KLL sketch.
SKETCHES = (
    "approx_top_k(s, 4), approx_top_k_estimate(approx_top_k_accumulate(v, 20), 3)",
    "tuple_sketch_agg_double(v, d), tuple_sketch_summary_integer(tuple_sketch_agg_integer(s, i))",
    "kll_sketch_agg_bigint(i), kll_sketch_get_n_double(kll_sketch_agg_double(d))",
    "vector_sum(x), vector_avg(x) filter (where id > 80), collect_union(a)",
)
COLUMNS = """id, id % 3 k, if(id % 7 = 0, null, id * 7919 % 211) v, id / 7D d, cast(id % 9 as int) i,
if(id % 5 = 0, null, cast(id * 37 % 101 as string)) s, array(id % 5, id % 3) a,
array(cast(id as float), cast(id / 3 as float)) x"""
# Rows and partitions: several, some of which are empty, one, and no rows at all.
RANGES = ((150, 4), (3, 5), (120, 1), (0, 2))


def query(calls: str, source: str, keys: str = "") -> str:
    rows = f"(select {COLUMNS} from {source})"
    return f"select {keys}, {calls} from {rows} group by {keys}" if keys else f"select {calls} from {rows}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that Spark reads in parts, or several together; one of them has no rows."""
    folder = tmp_path_factory.mktemp("files")
    first = 0
    for name, rows in {"a": 2_000, "b": 100, "c": 3_000, "d": 0, "e": 7}.items():
        ids = pa.array(range(first, first + rows), pa.int64())
        pq.write_table(pa.table({"id": ids}), folder / f"{name}.parquet", row_group_size=400)
        first += rows
    return folder


@pytest.mark.parametrize("calls", CALLS)
def test_partitions_of_ranges(spark: SparkSession, calls: str) -> None:
    for rows, partitions in RANGES:
        source = f"range(0, {rows}, 1, {partitions})"
        assert_same_rows(spark, query(calls, source), tolerance=0.0)
        assert_same_rows(spark, query(calls, source, "k"), tolerance=0.0)


@pytest.mark.since("4.3")
@pytest.mark.parametrize("calls", SKETCHES)
def test_sketches(spark: SparkSession, calls: str) -> None:
    for rows, partitions in RANGES:
        source = f"range(0, {rows}, 1, {partitions})"
        assert_same_rows(spark, query(calls, source), tolerance=0.0)
    assert_same_rows(spark, query(calls, "range(0, 150, 1, 4)", "k"), tolerance=0.0)


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("workers", ["1", "3"])
def test_files(spark: SparkSession, folder: Path, workers: str) -> None:
    settings = {
        **DISTRIBUTED_SETTINGS,
        "spark.volley.local.workers": workers,
        "spark.sql.files.maxPartitionBytes": "6k",
        "spark.sql.files.openCostInBytes": "1000",
    }
    with conf(spark, settings):
        for calls in (*CALLS, *runnable(SKETCHES[-1:])):
            assert_same_rows(spark, query(calls, f"parquet.`{folder}`"), tolerance=0.0)
            assert_same_rows(spark, query(calls, f"parquet.`{folder}`", "k, i % 2"), tolerance=0.0)


@pytest.mark.parametrize(
    "settings",
    [
        # Rows become values in one step, whose state is not sent.
        {"spark.sql.execution.bypassPartialAggregation": "true"},
        {"spark.sql.execution.combineAdjacentAggregation": "false"},
        {"spark.sql.execution.useObjectHashAggregateExec": "false"},
        {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "5"},
    ],
    ids=str,
)
def test_plans_of_spark(spark: SparkSession, settings: dict[str, str]) -> None:
    with conf(spark, settings):
        for calls in CALLS[:3]:
            for partitions in (1, 4):
                source = f"range(0, 150, 1, {partitions})"
                assert_same_rows(spark, query(calls, source), tolerance=0.0)
                assert_same_rows(spark, query(calls, source, "k"), tolerance=0.0)


def test_rows_of_the_driver(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(n % 2, str(n)) for n in range(7)], "k int, v string").repartition(3)
    frame.createOrReplaceTempView("moved")
    values = "values (1, 'b'), (2, 'a'), (1, 'a'), (2, 'c'), (1, null) t(k, v)"
    for calls in ("mode(v), collect_list(v), listagg(v)", "first(v), last(v)"):
        assert_same_rows(spark, f"select {calls} from {values}")
        assert_same_rows(spark, f"select k, {calls} from {values} group by k")
    explained = volley.explain(spark.sql("select listagg(v) from moved"))
    assert [reason.reason for reason in explained.reasons][:1] == [Reason.NONDETERMINISTIC]


def test_intervals_of_months(spark: SparkSession) -> None:
    values = "values (interval '0' month, 1), (interval '10' month, 2), (null, 1), (interval '50' month, 2) t(v, k)"
    calls = (
        "median(v)",
        "percentile(v, 0.3)",
        "try_avg(v)",
        "mode(v)",
        "max(v)",
        "first(v)",
        "approx_percentile(v, 0.4)",
    )
    texts = ", ".join(f"cast({call} as string)" for call in calls)
    assert_same_rows(spark, f"select {texts} from {values}")
    assert_same_rows(
        spark,
        f"select k, {texts}, cast(percentile_disc(0.2) within group (order by v) as string)"
        f" from {values} group by k",
    )
    large = "values (interval '2147483647' month), (interval '1' month) t(v)"
    assert_same_rows(spark, f"select cast(try_avg(v) as string) from {large}")


def test_rows_with_other_values_of_their_partitions(spark: SparkSession) -> None:
    rows = "select id % 3 k, cast(rand(3) * 50 as int) v from range(0, 200, 1, 3) where rand(4) < 0.7"
    calls = "collect_list(v), mode(v), approx_percentile(v, 0.4, 9)"
    assert_same_rows(spark, f"select k, {calls} from ({rows}) group by k")
    assert_same_rows(spark, f"select {calls} from ({rows})")


def test_rows_of_other_totals(spark: SparkSession) -> None:
    """Each total is one row in a partition of its own; Spark may compute several of them in one subquery."""
    totals = "select hll_sketch_agg({}) s, max(id) m from range(0, {}, 1, 3)"
    parts = " union all ".join(
        totals.format(value, rows) for value, rows in (("id", 90), ("id", 40), ("-id", 50))
    )
    assert_same_rows(spark, f"select hll_union_agg(s, true), collect_list(m), mode(m) from ({parts})")
    assert_same_rows(spark, f"select hll_sketch_estimate(hll_union_agg(s)) e from ({parts}) where m > 40")
    assert_same_rows(spark, f"select m % 2 k, hll_union_agg(s) from ({parts}) group by 1", native=False)


def test_more_groups_than_spark_aggregates_in_order(spark: SparkSession) -> None:
    """Beyond 128 Spark sorts the rest of its rows by group, and the order of the rows of a group changes."""
    source = "range(0, 2000, 1, 3)"
    calls = "collect_list(id), mode(id % 9)"
    for groups, engine in ((127, "native"), (128, "spark"), (400, "spark")):
        rows = f"select id * 7 % {groups} k, id from {source}"
        # Where the order changes depends on settings, so Spark runs the same plan.
        assert_same_rows(spark, spark.sql(f"select k, {calls} from ({rows}) group by k"), native=False)
        assert _engine(spark) == engine
        # A table of numbers has no such limit.
        assert_same_rows(spark, f"select k, first(id), last(id) from ({rows}) group by k")
    with conf(spark, {"spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "500"}):
        assert_same_rows(spark, f"select id % 400 k, collect_list(id) from {source} group by 1")


def test_keys_that_an_unstable_sort_moves(spark: SparkSession) -> None:
    """Spark sorts rows by key for states of text. With NULL keys, its radix sort is not stable."""
    rows = "select {} k, cast(id as string) s from range(0, 900, 1, 3)"
    calls = "first(s), last(s)"
    for key, engine in (("id % 200 + 0", "native"), ("if(id % 9 = 0, null, id % 5)", "spark")):
        frame = spark.sql(f"select k, {calls} from ({rows.format(key)}) group by k")
        assert_same_rows(spark, frame, native=False)
        assert _engine(spark) == engine
    text = rows.format("if(id % 9 = 0, null, cast(id % 5 as string))")
    assert_same_rows(spark, f"select k, {calls} from ({text}) group by k")


def test_many_rows_are_left_to_spark(spark: SparkSession) -> None:
    explained = volley.explain(spark.sql("select mode(id) from range(100000000)"))
    assert [reason.reason for reason in explained.reasons] == [Reason.NONDETERMINISTIC]


@pytest.mark.since("4.3")
def test_a_compressed_sketch_is_one_that_spark_may_give(spark: SparkSession) -> None:
    """Spark draws random numbers to compress it, and answers differently each time."""
    call = "kll_sketch_agg_bigint(id) s"
    shown = "kll_sketch_get_n_bigint(s), kll_sketch_get_quantile_bigint(s, 0.0), length(s)"
    assert_same_rows(spark, f"select {shown} from (select {call} from range(0, 5000, 1, 3))")
    assert_same_rows(
        spark,
        f"select kll_sketch_get_quantile_bigint(s, 0.5) / 1D from (select {call} from range(0, 9000, 1, 3))",
        tolerance=0.2,
    )


def _engine(spark: SparkSession) -> str:
    report = volley.last_query(spark)
    assert report is not None
    return report.engine
