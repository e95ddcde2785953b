# SPDX-License-Identifier: Apache-2.0
"""Aggregates: every function, mode and type, with Spark as the oracle."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import volley
from volley.support.reasons import Reason
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

CALLS = (
    "count(*), count(k), count(k, l), count(1)",
    "sum(k), sum(l), sum(m), sum(w), sum(g)",
    "avg(k), avg(l), avg(m), avg(w), avg(g)",
    "sum(f) filter (where f < 100), avg(f) filter (where f < 100)",
    "min(f), max(f), min(g), max(g), min(l), max(l), min(w), max(w), min(d), max(d)",
    "min(s), max(s), min(b), max(b), min(dt), max(dt), min(ts), max(ts)",
    "bool_and(b), bool_or(b), count_if(b)",
    "stddev(m), stddev_pop(l), variance(k), var_pop(w), std(id)",
    "count(distinct s)",
    "count(distinct s, l), count(*), sum(m)",
    "count(distinct s), count(distinct l), sum(m), avg(m), max(s), count(*)",
    "sum(distinct l), avg(distinct m), sum(m)",
    "sum(m) filter (where l > 0), count(*) filter (where s = 'a'), count(distinct s) filter (where l > 0)",
    "count(distinct s) filter (where l > 0), count(distinct l) filter (where b), sum(m) filter (where b)",
    "sum(cast(id as tinyint)), avg(cast(id as smallint)), sum(cast(k as double))",
    "sum(cast(l as decimal(38, 10))), avg(cast(m as decimal(38, 18)))",
    "sum(if(b, 1, 0)), sum(m) / count(m), max(id) - min(id), 7",
    "try_sum(l), try_avg(m)",
    "bit_and(l), bit_or(l), bit_xor(l), bit_and(cast(id as tinyint)), bit_xor(k) filter (where k > 1)",
    "bit_xor(distinct k), bit_or(distinct id), bit_and(k + 1), count(distinct s)",
)
QUERIES = (
    "select f, count(*) from t group by f",
    "select g, f, count(*) from t group by g, f",
    "select f, min(f), max(f), min(g), max(g) from t group by f",
    "select distinct k, s from t",
    "select distinct f from t",
    "select k from t group by k",
    "select count(*) from (select distinct k, l from t)",
    "select k, s, sum(m), grouping(k), grouping_id(k, s) from t group by rollup(k, s)",
    "select k, s, b, sum(m), count(*) from t group by cube(k, s, b)",
    "select k, s, sum(l) from t group by grouping sets ((k), (s), ())",
    "select k, s, count(distinct l) from t group by rollup(k, s)",
    "select k + 1, sum(m) * 2 from t group by k + 1 having sum(m) > 0",
    "select k, count(*) c from t group by k order by c desc, k limit 3",
    "select sum(x) from (select sum(l) x from t group by k)",
    "select s, count(*) from t where k is null group by s",
    "select stddev_samp(id), stddev_pop(id), var_samp(id) from t where id = 1",
    "select k, stddev_pop(f), var_pop(f), variance(f) from t group by k, id",
    "select stddev_pop(f), var_pop(f), variance(f) from t where id = 1",
    "select k, s, sum(m) from t group by k, s, k",
    "select count(*) from t where id < 0",
    "select k, sum(m) from t where id < 0 group by k",
)
REFUSED = {
    "first(k)": Reason.NONDETERMINISTIC,
    "any_value(s)": Reason.NONDETERMINISTIC,
    "last(s, true)": Reason.NONDETERMINISTIC,
    "first(s, true) filter (where k = 1)": Reason.NONDETERMINISTIC,
    "collect_list(k)": Reason.NONDETERMINISTIC,
    "max(array(f))": Reason.ARGUMENT_TYPES,
}


@pytest.mark.parametrize("calls", CALLS)
def test_grouped(tables: SparkSession, calls: str) -> None:
    assert_same_rows(tables, f"select k, {calls} from t group by k")


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("source", [pytest.param("t", marks=pytest.mark.slow), "e"])
def test_global(tables: SparkSession, calls: str, source: str) -> None:
    assert_same_rows(tables, f"select {calls} from {source}")


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("calls", CALLS)
def test_across_tasks(tables: SparkSession, calls: str) -> None:
    """Three workers: states travel between the halves of each aggregate."""
    tables.conf.set("spark.volley.local.workers", "3")
    assert_same_rows(tables, f"select s, {calls} from t group by s")


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("query", QUERIES[:8])
def test_queries_across_tasks(tables: SparkSession, query: str) -> None:
    tables.conf.set("spark.volley.local.workers", "3")
    assert_same_rows(tables, query)


@pytest.mark.parametrize("query", QUERIES)
def test_queries(tables: SparkSession, query: str) -> None:
    assert_same_rows(tables, query)


@pytest.mark.parametrize("call", REFUSED)
def test_refused(tables: SparkSession, call: str) -> None:
    verdict = volley.explain(tables.sql(f"select {call} from (select /*+ repartition(3) */ * from t)"))
    assert not verdict.native
    # That what is left is too little to be cut out is not about the call.
    assert {reason.reason for reason in verdict.reasons} - {Reason.MIXED} == {REFUSED[call]}


OVERFLOWS = ("sum(9223372036854775807L + k - k)", "sum(cast(l as decimal(38, 0)) * 0 + 9e37BD)")


@pytest.mark.parametrize("call", OVERFLOWS)
def test_overflow_is_sparks_error(tables: SparkSession, call: str) -> None:
    with pytest.raises(Exception, match=r"ARITHMETIC_OVERFLOW|NUMERIC_VALUE_OUT_OF_RANGE"):
        tables.sql(f"select {call} from t").collect()
    assert volley.last_query(tables) is not None


@pytest.mark.parametrize("call", OVERFLOWS)
def test_overflow_without_ansi_is_sparks_value(tables: SparkSession, call: str) -> None:
    tables.conf.set("spark.sql.ansi.enabled", "false")
    assert_same_rows(tables, f"select {call} from t", native=False)


@pytest.mark.parametrize("workers", ["1", "3"])
def test_sums_of_longs_wrap_without_ansi(distributed: SparkSession, workers: str) -> None:
    distributed.conf.set("spark.volley.local.workers", workers)
    distributed.conf.set("spark.sql.ansi.enabled", "false")
    longs = "values (1, 9223372036854775807L), (1, 9223372036854775806L), (2, -9223372036854775808L), (2, -2L) t(k, v)"
    assert_same_rows(distributed, f"select sum(v), sum(distinct v), sum(v) filter (where k = 1) from {longs}")
    assert_same_rows(distributed, f"select k, sum(v) from {longs} group by cube(k)")
    assert_same_rows(distributed, f"select k, sum(v) over (order by v rows 1 preceding) from {longs}")


@pytest.mark.parametrize("workers", ["1", "3"])
def test_average_of_longs_that_doubles_cannot_hold(distributed: SparkSession, workers: str) -> None:
    """Spark adds them as doubles: the first two cancel out, although they are not opposites."""
    distributed.conf.set("spark.volley.local.workers", workers)
    longs = "values (1, 9223372036854775807L), (1, -9223372036854775808L), (2, 3L), (2, 4L) t(k, v)"
    assert_same_rows(distributed, f"select avg(v), sum(v) from {longs} where k = 1")
    assert_same_rows(distributed, f"select k, avg(v), avg(distinct v) from {longs} group by k")


def test_rows_below_an_aggregate_without_functions_are_computed(tpch: SparkSession) -> None:
    text = "select 1 from nation where 1 / (n_nationkey - {}) = 1 having 1 < 2"
    assert_same_rows(tpch, text.format(77))
    for enabled in ("true", "false"):
        with (
            conf(tpch, {"spark.volley.enabled": enabled}),
            pytest.raises(Exception, match="BY_ZERO"),
        ):
            tpch.sql(text.format(3)).collect()
