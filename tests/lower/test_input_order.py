# SPDX-License-Identifier: Apache-2.0
"""Rows that depend on the order of their input: subqueries with ORDER BY, windows that leave rows equal, limits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import volley
from helpers.releases import is_before, runnable
from helpers.sampling import draw_queries
from volley.support.reasons import Reason
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows

# Keys of two columns, or of text: Spark's sort by a single number is not stable when there are NULLs.
LOOSE = st.sampled_from(["k, b", "s", "b, l", "s desc, k", "dt, k", "b desc, g"])
SORTED = st.builds(
    "{} {}, id".format,
    st.sampled_from(["m", "d", "s", "f", "k", "l", "m % 7", "upper(s)", "round(f, 1)"]),
    st.sampled_from(["asc", "desc", "desc nulls first", "asc nulls last"]),
)
CALLS = st.sampled_from(
    [
        "row_number() over ({})",
        "ntile(4) over ({})",
        "lag(id) over ({})",
        "lead(id, 2, -1) over ({})",
        "first_value(id) over ({})",
        "last_value(id) over ({})",
        "sum(l) over ({} rows between unbounded preceding and current row)",
        "max(id) over ({} rows between 2 preceding and 1 preceding)",
        "last_value(id) over ({} rows between unbounded preceding and unbounded following)",
        "nth_value(id, 3) over ({} rows between unbounded preceding and unbounded following)",
        "rank() over ({})",
    ]
)
PARTITIONS = st.sampled_from(["", "partition by k, b ", "partition by s "])


@st.composite
def sorted_rows(draw: st.DrawFn) -> str:
    """Rows in an order that was asked for, at times behind operators that keep it."""
    order, count = draw(SORTED), draw(st.integers(1, 50))
    rows = f"select * from t order by {order} limit {count}"
    match draw(st.sampled_from(["plain", "offset", "filter", "join", "semi", "union"])):
        case "offset":
            return f"{rows} offset {draw(st.integers(1, 5))}"
        case "filter":
            return f"select * from ({rows}) where m % 3 <> 1 or k > 1"
        case "join":
            kind = draw(st.sampled_from(["join", "left join"]))
            return f"select /*+ broadcast(o) */ t.* from ({rows}) t {kind} (select distinct k from u) o on t.k = o.k"
        case "semi":
            return f"select * from ({rows}) t where exists (select 1 from u where u.s = t.s)"
        case "union":
            return f"({rows}) union all (select * from u order by {draw(SORTED)} limit 5)"
        case _:
            return rows


@st.composite
def ordered_queries(draw: st.DrawFn) -> str:
    correlated = [] if is_before("4.0") else ["scalar", "lateral"]
    match draw(st.sampled_from([*correlated, "window", "frame", "limit", "sort"])):
        case "scalar":
            inner = f"select t.id from t where t.k = u.k order by {_of_t(draw(SORTED))} limit 1"
            return f"select u.id, ({inner}) x from u"
        case "lateral":
            kind = draw(st.sampled_from(["cross join", "left join"]))
            column = draw(st.sampled_from(["t.id", "t.id, t.s", "t.m"]))
            inner = f"select {column} from t where t.s = u.s order by {_of_t(draw(SORTED))}"
            return f"select u.id, x.* from u {kind} lateral ({inner} limit {draw(st.integers(1, 4))}) x"
        case "window":
            call = draw(CALLS).format(f"{draw(PARTITIONS)}order by {draw(LOOSE)}")
            return f"select id, {call} w from ({draw(sorted_rows())})"
        case "frame":
            over = f"over ({draw(PARTITIONS)}rows between unbounded preceding and current row)"
            return f"select id, count(m) {over}, max(s) {over} from (select * from t order by {draw(SORTED)})"
        case "limit":
            return f"select id, k from ({draw(sorted_rows())}) limit {draw(st.integers(1, 20))}"
        case _:
            return f"select id, s from ({draw(sorted_rows())}) order by {draw(LOOSE)} limit 1000"


@st.composite
def tied_queries(draw: st.DrawFn) -> str:
    """Windows and limits over the files themselves, which Spark reads in a certain order."""
    if draw(st.booleans()):
        where = draw(st.sampled_from(["", "where k > 1", "where s <> 'a' or b"]))
        return f"select id, s from t {where} limit {draw(st.integers(1, 50))}"
    call = draw(CALLS).format(f"{draw(PARTITIONS)}order by {draw(LOOSE)}")
    source = draw(st.sampled_from(["t", "(select * from t union all select * from u)"]))
    return f"select id, {call} w from {source}"


def _of_t(order: str) -> str:
    for name in ("id", "m", "d", "s", "f", "k", "l"):
        order = " ".join(
            part.replace(name, f"t.{name}") if part.strip(",") == name else part for part in order.split(" ")
        )
    return order


@pytest.mark.parametrize(
    ("workers", "examples"),
    [("3", 8), *(pytest.param(n, 250, marks=pytest.mark.slow) for n in ("1", "3"))],
)
def test_random_orders(tables: SparkSession, workers: str, examples: int) -> None:
    _spread(tables, workers)
    native = list(_checked(tables, ordered_queries(), examples))
    assert sum(native) >= 0.6 * len(native), f"{sum(native)} of {len(native)} ran natively"


@pytest.mark.parametrize("examples", [6, pytest.param(250, marks=pytest.mark.slow)])
def test_random_ties_in_files(tables: SparkSession, examples: int) -> None:
    native = list(_checked(tables, tied_queries(), examples))
    assert all(native)


def _spread(tables: SparkSession, workers: str) -> None:
    """Over so many workers, however small the tables are."""
    for key, value in {"spark.volley.local.workers": workers, **DISTRIBUTED_SETTINGS}.items():
        tables.conf.set(key, value)


def _checked(tables: SparkSession, queries: st.SearchStrategy[str], examples: int) -> Iterator[bool]:
    """Whether each of so many queries, all of which had Spark's rows, ran natively."""
    found: list[bool] = []

    @draw_queries(examples)
    @given(queries)
    def check(query: str) -> None:
        assert_same_rows(tables, query, native=False, ordered=False)
        report = volley.last_query(tables)
        assert report is not None
        assert all(reason.reason is not Reason.REPLAY for reason in report.reasons), report.reasons
        found.append(report.engine == "native")

    check()
    yield from found


NATIVE = (
    "select u.id, (select t.id from t where t.k = u.k order by t.m desc, t.id limit 1) x from u",
    "select u.id, x.id from u, lateral (select t.id from t where t.k = u.k order by t.m desc, t.id limit 2) x",
    "select id, row_number() over (partition by k, b order by s) r from (select * from t order by m, id limit 40)",
    "select id, sum(id) over (rows between unbounded preceding and current row) r"
    " from (select * from t order by m, id)",
    "select /*+ broadcast(b) */ a.id from (select * from t order by m, id limit 40) a"
    " join (select distinct k from u) b on a.k = b.k limit 9",
    "select id from ((select * from t order by m, id limit 5) union all (select * from t order by d, id limit 5))"
    " limit 7",
    "select id, last_value(id) over (order by b, k) r from (select * from t order by m, id limit 40)",
)


@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.slow), "3"])
@pytest.mark.parametrize("query", runnable(NATIVE))
def test_native(tables: SparkSession, query: str, workers: str) -> None:
    _spread(tables, workers)
    assert_same_rows(tables, query, ordered=False)


REFUSED = (
    # The sort by a single number that may be NULL is not stable in Spark.
    "select id, row_number() over (order by k) r from (select * from t order by m, id limit 40)",
    "select id, nth_value(id, 2) over (order by b, k) r from (select * from t order by m, id limit 40)",
    "select x.id, y.id from (select * from t order by m, id limit 9) x full join"
    " (select * from u order by m, id limit 9) y on x.k = y.k limit 5",
)


@pytest.mark.parametrize("query", REFUSED)
def test_refused(tables: SparkSession, query: str) -> None:
    verdict = volley.explain(tables.sql(query))
    assert Reason.ORDER in [reason.reason for reason in verdict.reasons]
    assert_same_rows(tables, query, native=False, ordered=False)


def test_equal_rows_keep_their_order(tables: SparkSession) -> None:
    query = "select id from (select * from t order by m, id limit 40) order by s"
    assert_same_rows(tables, query, ordered=True)


RUN_THROUGH = (
    # Two subqueries that Spark merges into one struct, of which one field is never NULL.
    "select (select count(*) from t) a, (select max(d) from t) b",
    "select x.a, x.b.c from (select named_struct('a', 1, 'b', named_struct('c', 'x', 'd', k)) x from t) where x.a > 0",
    # A Python function in an ordering.
    "select id from t order by round(f, 2), id",
    "select id, f from t order by round(f, 1) desc, id limit 9",
    # A column that is constant in a branch of a union.
    "select * from (select id, 1 x, k from t union all select id, 2 x, l from t) order by k, x, id",
    "select id, x, row_number() over (order by x, id) r from (select id, 1 x from t union all select id, 2 x from t)",
    # The same, below a join and below an aggregate.
    "select /*+ broadcast(u) */ y.id, x, s from (select id, k, 1 x from t union all select id, k, 2 x from t) y"
    " left join (select distinct k, s from u) u on y.k = u.k order by s, x, y.id",
    "select x, k, count(*) n from (select k, 1 x from t union all select k, 2 x from t) group by x, k order by k, x",
    # Stages that are read twice.
    "with c as (select k, sum(l) s from t group by k) select * from c union all select * from c",
    "with c as (select k, sum(l) s from t group by k) select a.k, a.s, b.s from c a full join c b on a.k = b.k + 1",
    "with c as (select k, count(*) n from t group by k) select a.k, b.n from c a, c b, c d"
    " where a.k = b.k and b.k = d.k",
)


@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.slow), "3"])
def test_no_replay(tables: SparkSession, workers: str) -> None:
    # A stage may go on with the work of another one, as it does for users.
    settings = {"local.workers": workers, "singleTaskSize": "0", "planner.scanTaskSize": "1"}
    for option, value in settings.items():
        tables.conf.set(f"spark.volley.{option}", value)
    for query in RUN_THROUGH:
        assert_same_rows(tables, query)
