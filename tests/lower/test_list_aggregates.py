# SPDX-License-Identifier: Apache-2.0
"""Aggregates over all values of a group, with Spark as the oracle: NULLs, NaN, empty groups, ties, order, tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import volley
from helpers.releases import runnable
from helpers.sampling import every
from volley.lower.list_aggregates import _finish
from volley.lower.sliding_frames import slide
from volley.support.reasons import Reason
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

QUERIES = (
    "select k, max_by(s, id), min_by(struct(id, f), id), max_by(id, m) filter (where id > 5) from t group by k",
    "select max_by(s, id), min_by(f, id), max_by(id, cast(null as int)) from t",
    "select k, max(struct(l, s, id)), min(struct(f, b, id)), max(struct(dt, struct(d, g))) from t group by k",
    "select min(struct(k, id)), max(if(b, struct(f, id), null)) filter (where id > 9) from t",
    "select k, corr(id, l), covar_pop(id, l), covar_samp(id, l), skewness(id), kurtosis(d) from t group by k",
    "select skewness(f), kurtosis(f), covar_pop(f, id), covar_samp(f, g), corr(f, id) from t",
    # One row a group, and numbers without variance.
    "select id, skewness(l), kurtosis(l), covar_pop(l, l), covar_samp(l, l), regr_slope(l, l), corr(l, l)"
    " from t group by id",
    "select skewness(0.1), kurtosis(0.1), regr_slope(id, 0.1), regr_intercept(id, 0.1) from t",
    "select k, regr_count(id, l), regr_slope(id, l), regr_intercept(id, l), regr_r2(id, l), regr_sxx(id, l),"
    " regr_syy(id, l), regr_sxy(id, l), regr_avgx(id, l), regr_avgy(id, l) from t group by k",
    "select corr(distinct id, l), skewness(distinct k) from t",
    "select k, percentile(id, 0.3), percentile(l, array(0.0, 0.1, 0.5, 0.77, 1.0)), median(d), median(g),"
    " percentile(w, 0.4), median(id) filter (where b) from t group by k",
    "select percentile_cont(0.25) within group (order by id desc), percentile_cont(0.9) within group (order by m),"
    " percentile_disc(0.25) within group (order by id desc), percentile_disc(0.0) within group (order by l),"
    " percentile_disc(1.0) within group (order by l), percentile_disc(0.31) within group (order by id) from t",
    "select k, percentile_disc(0.4) within group (order by l), percentile_disc(0.5) within group (order by d)"
    " from t group by k",
    "select s, mode() within group (order by l), mode() within group (order by s desc), mode(k, true)"
    " from t group by s",
    "select mode(b) from t",
    "select k, collect_set(l), collect_set(s), collect_set(b), collect_set(k) from t group by k",
    "select collect_set(k), collect_set(concat('x', repeat(s, 3), 'éèß')), collect_set(id % 11 - 4),"
    " collect_set(cast(id % 7 as tinyint)), collect_set(ts) filter (where id < 10), collect_set(distinct dt)"
    " filter (where id < 9) from t",
    "select size(collect_set(id * id * 31)) from range(3000)",
    "select k, size(collect_list(id)), array_contains(collect_set(id), 4L) from t group by k",
    "select approx_count_distinct(id), approx_count_distinct(s), approx_count_distinct(dt),"
    " approx_count_distinct(ts), approx_count_distinct(b), approx_count_distinct(k, 0.01) from t",
    # Few values are counted, more are corrected, many are estimated.
    "select id % 13, approx_count_distinct(id), approx_count_distinct(cast(id as string), 0.2),"
    " approx_count_distinct(id, 0.02) from range(26000) group by 1",
    "select * from (select k, s, l from t) pivot (sum(l) x, max(s) y for k in (0, 1, 7, null))",
    "select * from (select s, k, b from t) pivot (count(b) for s in ('a', '', null, 'b'))",
    "select * from (select k, dt, struct(id, s) o from t)"
    " pivot (max(o) for dt in (date'2024-01-01', date'1999-12-31'))",
    "select k, percentile_approx(id, 0.5), percentile_approx(l, array(0.0, 0.1, 0.5, 0.77, 1.0)),"
    " percentile_approx(dt, 0.3), percentile_approx(ts, 0.9, 500), percentile_approx(id, 0.004, 250) from t group by k",
    "select percentile_approx(id, array(0.00005, 0.2, 0.99995)),"
    " approx_percentile(f, 0.3) filter (where f between 1 and 9) from t",
    "select id % 3, percentile_approx(id, array(0.1, 0.5, 0.999)) from range(9000) group by 1",
    "select k, listagg(s, ',') within group (order by s desc), listagg(cast(id as string)) within group (order by id)"
    " from t group by k",
    "select k, listagg(distinct s, '|') within group (order by s) from t group by k",
    "select covar_pop(id, l), skewness(id), regr_slope(id, l), median(id), mode(k, true), collect_set(k),"
    " approx_count_distinct(k), max_by(id, k), size(collect_list(k)) from e",
    "select listagg(s, ',') within group (order by s), percentile(id, array(0.5)) from e",
    # The order of rows that the driver holds, of ranges, and of an ORDER BY.
    "select k, collect_list(x), first(x), last(x), first(x, true), any_value(x), listagg(x, ',')"
    " from values (1, 'a'), (2, null), (1, null), (1, 'b'), (2, 'c') v(k, x) group by k",
    "select id % 3, collect_list(id), array_agg(id) filter (where id > 4) from range(30) group by 1",
    "select collect_list(id), first(s), last(id), last(s, true), collect_list(struct(id, f)) from"
    " (select * from t order by id desc)",
    "select k, first(id), last(l, true) from (select * from t order by id) group by k",
)


@pytest.mark.parametrize("query", every(2, runnable(QUERIES)))
def test_queries(tables: SparkSession, query: str) -> None:
    assert_same_rows(tables, query)


def test_percentiles_to_the_last_digit(tables: SparkSession) -> None:
    """Releases of Spark round differently, and differ next to infinity."""
    query = (
        "select k, percentile(id, array(0.1, 0.3, 0.7, 0.9)), median(x), percentile(x, array(0.05, 0.2, 0.8, 0.95))"
        " from (select k, id, case id % 7 when 0 then double('-Infinity') when 1 then double('Infinity')"
        " else id / 3D end x from t) group by k"
    )
    assert_same_rows(tables, query, tolerance=0)


@pytest.mark.parametrize("kind", every(3, ["int", "bigint", "string", "date", "boolean", "tinyint"]))
def test_modes_of_equally_frequent_values(tables: SparkSession, kind: str) -> None:
    """Spark takes the first one of its hash table."""
    rows = "select id % 12 k, id * 7919 % 30 - 9 x from range(0, 48, 1, 1)"
    value = {"date": "date_from_unix_date(int(x))", "string": "concat('t', x)", "boolean": "x > 0"}
    column = value.get(kind, f"cast(x as {kind})")
    native = 0
    for group in range(12):
        with conf(tables, {"spark.volley.jvmExpressions": "off"}):
            assert_same_rows(tables, f"select mode({column}) from ({rows}) where k = {group}", native=False)
        report = volley.last_query(tables)
        native += report is not None and report.engine == "native"
    assert native > 6


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("workers", ["1", "3"])
def test_try_sums_that_overflow(tables: SparkSession, tmp_path: Path, workers: str) -> None:
    tables.conf.set("spark.volley.local.workers", workers)
    tables.range(0, 40, 1, 4).selectExpr(
        "id % 5 k",
        "case id % 5 when 1 then bigint('9223372036854775800') - id when 2 then null when 3 then"
        " bigint('-9223372036854775800') else id end v",
    ).write.parquet(str(tmp_path / "t"))
    tables.read.parquet(str(tmp_path / "t")).createOrReplaceTempView("large")
    for query in (
        "select k, try_sum(v), try_sum(int(k)) from large group by k",
        "select try_sum(v) from large where k in (0, 2)",
        "select try_sum(v), try_sum(k) from large where k = 3",
        "select try_sum(v) from large where k > 9",
        "select k, try_sum(distinct v), count(distinct k) from large group by k",
        "select k, try_sum(v) over (partition by k) from large",
    ):
        assert_same_rows(tables, query)


@pytest.mark.since("4.3")
def test_values_that_a_pivot_lists_twice(tables: SparkSession) -> None:
    """Before, Spark has one place for both and reads two."""
    assert_same_rows(
        tables, "select * from (select k, s, l from t) pivot (sum(l) for s in ('a', 'b', 'a', null, null))"
    )
    assert_same_rows(
        tables, "select * from (select k, id from t) pivot (max(id) x, sum(id) y for k in (1, 1))"
    )


@pytest.mark.since("4.3")
def test_several_extremes(tables: SparkSession) -> None:
    assert_same_rows(
        tables, "select k, max_by(s, id, 3), min_by(id, id, 2), max_by(struct(s, f), id, 1) from t group by k"
    )
    # Groups without values, and no rows at all.
    assert_same_rows(
        tables, "select k, max_by(s, if(k % 2 = 0, id, null), 3), min_by(s, id, 2) from t group by k"
    )
    assert_same_rows(tables, "select max_by(struct(s, id), id, 2) from t where id < 0")
    # Of equal ranks Spark keeps those that come first.
    assert_same_rows(tables, "select max_by(id, k, 4) from t", native=False)
    # The first two of a rank are equal, and another of it is not.
    ties = "select max_by(v, r, 2) from values (1, 1), (1, 1), (1, 1), (2, 1) as e(v, r)"
    assert_same_rows(tables, ties, native=False)
    report = volley.last_query(tables)
    assert report is not None
    assert report.engine == "spark"


@pytest.mark.usefixtures("distributed")
@pytest.mark.slow
def test_across_tasks(tables: SparkSession) -> None:
    tables.conf.set("spark.volley.local.workers", "3")
    for query in runnable(QUERIES):
        assert_same_rows(tables, query)


@pytest.mark.parametrize(
    "query",
    runnable(
        (
            # Spark takes the last of the rows with the largest value, whichever that is.
            "select max_by(id, k) from t",
            "select collect_set(id) from t",
            "select listagg(cast(id as string)) within group (order by k) from (select /*+ repartition(3) */ * from t)",
            "select percentile(f, 0.5) from t where f = 0.0 or f = 1.5",
        )
    ),
)
def test_spark_decides_what_depends_on_the_order_of_rows(tables: SparkSession, query: str) -> None:
    assert_same_rows(tables, query, native=False)
    report = volley.last_query(tables)
    assert report is not None
    assert [reason.reason for reason in report.reasons] == [Reason.REPLAY]


@pytest.mark.parametrize(
    "query",
    [
        "select k, collect_list(id) from (select /*+ repartition(3) */ * from t) group by k",
        "select k, first(id) from (select k, max(id) id from t group by k, s) group by k",
        "select collect_set(f) from (select /*+ repartition(3) */ * from t)",
        "select k, collect_list(s), count(distinct l) from t group by k",
        "select percentile_approx(id, 0.5) from range(10000000)",
    ],
)
def test_what_spark_runs(tables: SparkSession, query: str) -> None:
    codes = {reason.reason for reason in volley.explain(tables.sql(query)).reasons}
    assert codes & {Reason.NONDETERMINISTIC, Reason.AGGREGATE}


@pytest.mark.parametrize("workers", ["1", "3"])
def test_a_half_that_comes_from_a_reused_exchange(
    distributed: SparkSession, tables: SparkSession, workers: str
) -> None:
    """Spark exchanges the state of equal aggregates once, and the second one reads it under other ids."""
    halves = (
        "select k, regr_r2(id, m) v, max(id) w from t group by k",
        "select id % 3 k, stddev_pop(m) v, listagg(s, '-') within group (order by s) w from t group by id % 3",
        "select id % 3 k, median(id) v, count(*) w from t group by id % 3",
    )
    with conf(distributed, {"spark.volley.local.workers": workers, "spark.sql.adaptive.enabled": "false"}):
        for half in runnable(halves):
            assert_same_rows(distributed, f"{half} union all {half}")


def test_queries_that_differ_in_ids_only_share_kernels(tables: SparkSession) -> None:
    """Kernels are never dropped: a worker that lives long must not have new ones for each query."""
    counts = []
    for _ in range(2):
        tables.sql("select k, median(id), max_by(s, id) from t group by k").collect()
        tables.sql("select corr(id, m) over (order by id rows 2 preceding) from t").collect()
        counts.append((_finish.cache_info().currsize, slide.cache_info().currsize))
    assert counts[0] == counts[1]
