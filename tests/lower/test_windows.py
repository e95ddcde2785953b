# SPDX-License-Identifier: Apache-2.0
"""Window functions over every kind of frame, with Spark as the oracle."""

from __future__ import annotations

import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import SparkSession

import volley
from helpers.releases import runnable
from volley.support.reasons import Reason
from volley.testing.rows import assert_same_rows

EXPRESSIONS = (
    "row_number() over (partition by k order by id), row_number() over (order by id desc)",
    "rank() over (w), dense_rank() over (w), percent_rank() over (w), cume_dist() over (w)",
    "rank() over (order by f), rank() over (order by f desc nulls first)",
    "dense_rank() over (partition by f order by g)",
    "ntile(3) over (partition by k order by id), ntile(100) over (order by id)",
    "lag(s) over (i), lead(s, 2) over (i), lag(s, 1, 'none') over (i)",
    "lead(l, 1, id) over (i), lag(l, 0) over (i)",
    "lag(s) ignore nulls over (i), lead(s) ignore nulls over (i), lead(s, 1, 'x') ignore nulls over (i)",
    "sum(l) over (i), avg(l) over (i), count(s) over (i), min(m) over (i), max(m) over (i), avg(w) over (i)",
    "sum(m) over (partition by k), avg(m) over (partition by k)",
    "count(*) over (partition by k), count(*) over ()",
    "sum(m) over (w), avg(w) over (w), sum(d) over (w)",
    "sum(m) over (i rows between 2 preceding and current row)",
    "avg(l) over (i rows between 1 preceding and 1 following)",
    "sum(m) over (i rows between 3 preceding and 1 preceding)",
    "count(*) over (i rows between 1 following and 2 following)",
    "min(l) over (i rows between 1 preceding and 1 following)",
    "max(s) over (i rows between 1 preceding and 1 following)",
    "sum(l) over (i rows between current row and unbounded following)",
    "sum(g) over (i), avg(g) over (i), min(f) over (i), max(f) over (i)",
    "max(f) over (i rows between 1 preceding and 1 following)",
    "min(g) over (i rows between 2 preceding and 1 preceding)",
    "sum(l) over (partition by s order by k range between 1 preceding and 1 following)",
    "count(*) over (partition by s order by k range between 1 preceding and current row)",
    "count(*) over (partition by s order by k desc range between 1 preceding and 2 following)",
    "count(*) over (order by l range between 2 preceding and 2 following)",
    "sum(m) over (order by l range between unbounded preceding and 1 preceding)",
    "count(*) over (order by l desc nulls first range between 1 preceding and unbounded following)",
    "count(*) over (order by dt range between 3 preceding and 1 following)",
    "first_value(s) over (i), last_value(s) over (i), nth_value(s, 2) over (i)",
    "first_value(s) ignore nulls over (i)",
    "last_value(s) ignore nulls over (i), nth_value(s, 2) ignore nulls over (i)",
    "first_value(s) over (i rows between 1 following and 3 following)",
    "last_value(s) over (i rows between unbounded preceding and unbounded following)",
    "stddev(l) over (i), var_pop(m) over (partition by k)",
    "bool_or(b) over (i), bool_and(b) over (i rows between 1 preceding and current row)",
    "sum(l) over (order by f, id), lag(f) over (order by f, id)",
    "count(*) over (order by cast(s as binary)), sum(l) over (partition by k order by cast(s as binary) desc, id)",
    "count(*) over (order by b), sum(l) over (order by b desc, dt)",
    "sum(case when b then 1 else 0 end) over (partition by upper(s) order by abs(id - 30), id) + 1",
    "row_number() over (partition by f order by id), row_number() over (partition by g, b order by dt, id)",
)
FRAMES = (
    "partition by k order by id rows between 3 preceding and 1 following",
    "order by id rows between current row and unbounded following",
    "partition by k order by id rows between 5 preceding and 2 preceding",
    "partition by s order by id range between 3 preceding and 4 following",
)
GROWING = "partition by k order by id"
# Equal to the last bit: Spark adds the rows of a frame in their order.
AGGREGATES = (
    *("sum(f)", "avg(f)", "sum(g)", "avg(l)", "stddev(l)", "var_pop(g)", "variance(m)", "stddev_pop(f)"),
    *("corr(l, id)", "covar_samp(g, l)", "covar_pop(f, id)", "skewness(l)", "kurtosis(m)"),
    *("regr_slope(l, m)", "regr_r2(l, id)", "regr_intercept(id, l)", "regr_sxy(l, m)", "regr_sxx(m, id)"),
    *("bit_and(l)", "bit_or(id)", "bit_xor(l)", "max_by(s, id)", "min_by(s, -id)"),
    *("collect_list(s)", "collect_set(k)", "mode() within group (order by k)", "percentile(id, 0.5)"),
)
QUERIES = (
    "select * from (select id, k, row_number() over (partition by k order by id) r from t) where r <= 2",
    "select * from (select id, k, rank() over (partition by k order by s) r from t) where r = 1",
    "select k, sum(sum(m)) over (order by k), rank() over (order by sum(m) desc) from t group by k",
    "select id, count(*) over () from e",
)
REFUSED = {
    "lead(s, 2) ignore nulls over (order by id)": Reason.WINDOW,
    "first_value(s) over ()": Reason.NONDETERMINISTIC,
    "collect_list(k) over (partition by s)": Reason.NONDETERMINISTIC,
    "mode(k) over (order by id)": Reason.NONDETERMINISTIC,
}


def _query(expressions: str) -> str:
    return f"select id, {expressions} from t".replace("over (w", "over (partition by k order by s").replace(
        "over (i", "over (partition by k order by id"
    )


@pytest.mark.parametrize("expressions", EXPRESSIONS)
def test_functions(tables: SparkSession, expressions: str) -> None:
    assert_same_rows(tables, _query(expressions))


@pytest.mark.parametrize("query", QUERIES)
def test_queries(tables: SparkSession, query: str) -> None:
    assert_same_rows(tables, query)


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.slow), "3"])
def test_aggregates_over_moving_frames(tables: SparkSession, workers: str) -> None:
    tables.conf.set("spark.volley.local.workers", workers)
    for frame in FRAMES:
        calls = ", ".join(f"{call} over ({frame})" for call in runnable(AGGREGATES))
        assert_same_rows(tables, f"select id, {calls} from t", tolerance=0.0)
    calls = ", ".join(f"{call} over ({GROWING})" for call in runnable(AGGREGATES))
    assert_same_rows(tables, f"select id, {calls} from t")


@pytest.mark.since("4.3")
@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.slow), "3"])
def test_counter_diff(tables: SparkSession, workers: str) -> None:
    """NULLs are skipped, and resets give NULL, by the counter itself or by its start time."""
    tables.conf.set("spark.volley.local.workers", workers)
    started = "if(id % 7 = 0, null, timestamp_seconds(id div 10))"
    for counter in (
        "abs(l)",
        "if(id % 3 = 0, null, id % 20)",
        "abs(f)",
        "abs(m)",
        "smallint(id % 9)",
        "cast(0.1 / (id + 1) as decimal(38,38))",
    ):
        for arguments in (counter, f"{counter}, {started}"):
            assert_same_rows(
                tables, f"select id, counter_diff({arguments}) over (partition by k order by id) from t"
            )
    for query in (
        "select counter_diff(id - 5) over (order by id) from t",
        f"select counter_diff(id, {started}) over (order by id desc) from t",
    ):
        with pytest.raises(SparkRuntimeException, match="COUNTER_DIFF"):
            tables.sql(query).collect()


@pytest.mark.since("4.3")
def test_frames_of_equal_values(tables: SparkSession) -> None:
    """Where a variance is exactly zero, Spark has rules of its own."""
    calls = (
        "corr(a, b)",
        "corr(b, a)",
        "regr_r2(a, b)",
        "regr_r2(b, a)",
        "regr_slope(a, b)",
        "regr_slope(b, a)",
    )
    frames = ("order by id rows 2 preceding", "")
    for frame in frames:
        listed = ", ".join(f"{call} over ({frame})" for call in calls)
        query = f"select id, {listed} from values (1, 1, 3), (2, 1, 4), (3, 1, 5), (4, 2, 5), (5, 2, 5) t(id, a, b)"
        assert_same_rows(tables, query)
        assert_same_rows(tables, query + " where id < 3")
        assert_same_rows(tables, query + " where id > 3")


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("expressions", EXPRESSIONS[:8])
def test_across_tasks(tables: SparkSession, expressions: str) -> None:
    tables.conf.set("spark.volley.local.workers", "3")
    assert_same_rows(tables, _query(expressions))


@pytest.mark.parametrize("expression", REFUSED)
def test_refused(tables: SparkSession, expression: str) -> None:
    verdict = volley.explain(tables.sql(f"select id, {expression} from t"))
    assert not verdict.native
    assert REFUSED[expression] in [reason.reason for reason in verdict.reasons]


def test_range_that_overflows_is_left_to_spark(tables: SparkSession) -> None:
    query = "select id, count(*) over (order by cast(id as tinyint) range between current row and 100 following) from t"
    tables.conf.set("spark.sql.ansi.enabled", "false")
    assert_same_rows(tables, query, native=False)


def test_average_of_longs_that_doubles_cannot_hold(tables: SparkSession) -> None:
    longs = "values (1, 9223372036854775807L), (2, -9223372036854775808L), (3, 3L) t(id, v)"
    assert_same_rows(tables, f"select id, avg(v) over (order by id) from {longs}")
    moving = "rows between 1 preceding and current row"
    assert_same_rows(tables, f"select id, avg(v) over (order by id {moving}) from {longs}", native=False)
    assert_same_rows(tables, f"select id, avg(v) over (order by id {moving}) from {longs} where id = 3")
