# SPDX-License-Identifier: Apache-2.0
"""Random plans over small tables full of NULLs and duplicates, with Spark as the oracle."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from volley.testing.rows import assert_same_rows

NUMBERS = st.sampled_from(["k", "l", "m", "d", "id", "k + 1", "l % 3", "m * 2", "coalesce(k, 0)"])
TEXTS = st.sampled_from(["s", "upper(s)", "concat(s, 'x')", "coalesce(s, '-')"])
KEYS = st.lists(st.sampled_from(["k", "s", "b", "dt", "f", "g", "l"]), min_size=1, max_size=3, unique=True)
CALLS = st.lists(
    st.one_of(
        st.builds("{}({})".format, st.sampled_from(["sum", "avg", "min", "max", "count"]), NUMBERS),
        st.builds("{}({})".format, st.sampled_from(["min", "max", "count", "count(distinct s),max"]), TEXTS),
        st.builds("count(distinct {})".format, NUMBERS),
        st.builds("sum({}) filter (where {} > 1)".format, NUMBERS, NUMBERS),
        st.sampled_from(["min(f)", "max(g)", "count(*)", "bool_or(b)", "max(ts)"]),
    ),
    min_size=1,
    max_size=4,
)
COMPARISONS = st.one_of(
    st.builds("{} {} {}".format, NUMBERS, st.sampled_from(["<", "<=", "=", "<>", ">", "<=>"]), NUMBERS),
    st.builds("{} {} {}".format, NUMBERS, st.sampled_from(["<", "=", ">="]), st.integers(-3, 5)),
    st.builds("{} is {}null".format, NUMBERS, st.sampled_from(["", "not "])),
    st.builds(
        "s {} ('a', 'zz'{})".format, st.sampled_from(["in", "not in"]), st.sampled_from(["", ", null"])
    ),
    st.sampled_from(["b", "not b", "f > 1", "f = g", "s like '%z'", "dt > date'2020-01-10'"]),
)
CONDITIONS = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("not ({})".format, inner),
    ),
    max_leaves=4,
)
COLUMNS = "id, k, l, s, d, m, f, g, b, dt, ts"


@st.composite
def sources(draw: st.DrawFn) -> str:
    """A table, filtered or joined: always with the columns of a table."""
    table = draw(st.sampled_from(["t", "u"]))
    kind = draw(st.sampled_from(["plain", "filter", "join", "semi", "union", "limit"]))
    condition = draw(CONDITIONS)
    match kind:
        case "plain":
            return f"select {COLUMNS} from {table}"
        case "filter":
            return f"select {COLUMNS} from {table} where {condition}"
        case "join":
            word = draw(st.sampled_from(["join", "left join", "right join", "full join"]))
            on = draw(st.sampled_from(["t.k = u.k", "t.k = u.k and t.m > u.m", "t.s = u.s and t.b = u.b"]))
            sides = ("t" if draw(st.booleans()) else "u" for _ in COLUMNS.split(", "))
            chosen = ", ".join(
                f"{side}.{name}" for side, name in zip(sides, COLUMNS.split(", "), strict=True)
            )
            return f"select * from (select {chosen} from t {word} u on {on}) where {condition}"
        case "semi":
            word = draw(st.sampled_from(["exists", "not exists"]))
            return f"select {COLUMNS} from t where {word} (select 1 from u where u.k = t.k and u.id > 5)"
        case "union":
            return f"select {COLUMNS} from t where {condition} union all select {COLUMNS} from u"
        case _:
            return f"select {COLUMNS} from t order by m, id limit {draw(st.integers(0, 70))}"


@st.composite
def queries(draw: st.DrawFn) -> str:
    source = draw(sources())
    match draw(st.sampled_from(["rows", "groups", "distinct", "sorted", "window"])):
        case "rows":
            return f"select {draw(NUMBERS)} x, {draw(TEXTS)} y, f from ({source})"
        case "groups":
            keys, calls = ", ".join(draw(KEYS)), ", ".join(draw(CALLS))
            shape = draw(st.sampled_from(["{}", "rollup({})", "cube({})"])).format(keys)
            return f"select {keys}, {calls} from ({source}) group by {shape}"
        case "distinct":
            return f"select distinct {', '.join(draw(KEYS))} from ({source})"
        case "sorted":
            order = ", ".join(
                f"{key} {draw(st.sampled_from(['asc', 'desc', 'desc nulls first']))}" for key in draw(KEYS)
            )
            count = draw(st.integers(1, 40))
            return f"select * from ({source}) order by {order}, {COLUMNS} limit {count}"
        case _:
            keys = ", ".join(draw(KEYS))
            call = draw(st.sampled_from(["rank()", "dense_rank()", "sum(m)", "count(s)", "min(f)", "max(k)"]))
            return f"select id, {call} over (partition by {keys} order by {draw(NUMBERS)}) w from ({source})"


# Several workers run what one runs, cut into stages: fewer cases tell whether the cuts are right.
@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize(
    ("workers", "examples"),
    [("1", 30), ("3", 15), *(pytest.param(n, 200, marks=pytest.mark.slow) for n in ("1", "3"))],
)
def test_random_plans(tables: SparkSession, workers: str, examples: int) -> None:
    tables.conf.set("spark.volley.local.workers", workers)

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(queries())
    def check(query: str) -> None:
        assert_same_rows(tables, query)

    check()
