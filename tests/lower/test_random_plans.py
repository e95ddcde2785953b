# SPDX-License-Identifier: Apache-2.0
"""Random plans over leaves of every kind, with Spark as the oracle.

Tables are small and full of NULLs and duplicates; some have no rows. Plans may keep no column of their input at all, or
the same one twice. What only Spark can read is handed over: such plans are mixed, or Spark's, and are counted.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import volley
from helpers.leaves import COLUMNS, NATIVE, SPARKS
from volley.cluster import LocalCluster
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf
from volley.transport.flight import close_fleets

NUMBERS = st.sampled_from(["k", "l", "m", "d", "id", "k + 1", "l % 3", "m * 2", "coalesce(k, 0)"])
TEXTS = st.sampled_from(["s", "upper(s)", "concat(s, 'x')", "coalesce(s, '-')"])
KEYS = st.lists(st.sampled_from(["k", "s", "b", "dt", "f", "g", "l"]), min_size=1, max_size=3, unique=True)
CONSTANTS = st.lists(
    st.sampled_from(["7", "'x'", "null", "cast(null as int)", "true", "1.5", "date'2020-01-01'"]),
    min_size=1,
    max_size=3,
)
TOTALS = st.lists(
    st.sampled_from(
        [
            "count(*)",
            "count(1)",
            "sum(1)",
            "count(null)",
            "max('x')",
            "min(cast(null as int))",
            "count(distinct 1)",
        ]
    ),
    min_size=1,
    max_size=3,
)
CALLS = st.lists(
    st.one_of(
        st.builds("{}({})".format, st.sampled_from(["sum", "avg", "min", "max", "count"]), NUMBERS),
        st.builds("{}({})".format, st.sampled_from(["min", "max", "count", "count(distinct s),max"]), TEXTS),
        st.builds("count(distinct {})".format, NUMBERS),
        st.builds("sum({}) filter (where {} > 1)".format, NUMBERS, NUMBERS),
        # Which of the zeros is the smallest is not said.
        st.sampled_from(["min(f) + 0D", "max(g)", "count(*)", "bool_or(b)", "max(ts)"]),
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
    # Spark folds some of these, and so leaves plans without rows or without columns.
    st.sampled_from(["true", "false", "1 = 1", "id < 0", "cast(null as boolean)"]),
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
LIST = ", ".join(COLUMNS)
JOINS = st.sampled_from(["join", "left join", "right join", "full join"])


@st.composite
def sources(draw: st.DrawFn, leaves: st.SearchStrategy[str]) -> str:
    """A leaf, filtered, joined, united or cut: always with the columns of a leaf."""
    leaf, condition = draw(leaves), draw(CONDITIONS)
    match draw(st.sampled_from(["plain", "filter", "join", "semi", "union", "limit", "spread"])):
        case "plain":
            return f"select {LIST} from {leaf}"
        case "filter":
            return f"select {LIST} from {leaf} where {condition}"
        case "join":
            on = draw(
                st.sampled_from(
                    ["x.k = y.k", "x.k = y.k and x.m > y.m", "x.s = y.s and x.b = y.b", "x.id < 3"]
                )
            )
            sides = ("x" if draw(st.booleans()) else "y" for _ in COLUMNS)
            chosen = ", ".join(f"{side}.{name}" for side, name in zip(sides, COLUMNS, strict=True))
            joined = f"select {chosen} from {leaf} x {draw(JOINS)} {draw(leaves)} y on {on}"
            return f"select * from ({joined}) where {condition}"
        case "semi":
            word = draw(st.sampled_from(["exists", "not exists"]))
            other = f"select 1 from {draw(leaves)} y where y.k = x.k and y.id > 5"
            return f"select {LIST} from {leaf} x where {word} ({other})"
        case "union":
            return f"select {LIST} from {leaf} where {condition} union all select {LIST} from {draw(leaves)}"
        case "spread":
            hint = draw(
                st.sampled_from(["repartition(3)", "repartition(3, k)", "repartition(2, s)", "coalesce(1)"])
            )
            return f"select /*+ {hint} */ {LIST} from {leaf}"
        case _:
            return f"select {LIST} from {leaf} order by m, id limit {draw(st.integers(0, 70))}"


@st.composite
def columnless(draw: st.DrawFn, leaves: st.SearchStrategy[str]) -> str:
    """A query that reads no column of its input, or only to drop rows."""
    source, other = draw(sources(leaves)), draw(leaves)
    constants, totals = ", ".join(draw(CONSTANTS)), ", ".join(draw(TOTALS))
    word = draw(st.sampled_from(["exists", "not exists"]))
    match draw(
        st.sampled_from(
            ["count", "constants", "cross", "outer", "sets", "exists", "scalar", "union", "window"]
        )
    ):
        case "count":
            return f"select {totals} from ({source})"
        case "constants":
            return f"select {constants} from ({source})"
        case "cross":
            return f"select {totals} from ({source}) cross join (select {constants} from {other})"
        case "outer":
            on = draw(st.sampled_from(["true", "false", "1 = 1"]))
            return f"select {constants} from ({source}) x {draw(JOINS)} {other} y on {on}"
        case "sets":
            having = draw(st.sampled_from(["", " having count(*) > 3"]))
            return f"select {constants}, {totals} from ({source}) group by grouping sets (()){having}"
        case "exists":
            return f"select {constants} from ({source}) where {word} (select 1 from {other})"
        case "scalar":
            asked = f"(select {totals.split(', ')[0]} from {other})"
            return f"select (select count(*) from {other}), {constants} from ({source}) where {asked} is not null"
        case "window":
            return f"select count(*) over (), count(null) over (partition by 1), {constants} from ({source})"
        case _:
            branches = (
                f"select {number} from {one}" for number, one in enumerate((f"({source})", other, other))
            )
            return f"select {totals} from ({' union all '.join(branches)})"


@st.composite
def queries(draw: st.DrawFn, leaves: st.SearchStrategy[str]) -> str:
    source = draw(sources(leaves))
    match draw(
        st.sampled_from(["rows", "twice", "groups", "distinct", "sorted", "window", "none", "none", "none"])
    ):
        case "rows":
            return f"select {draw(NUMBERS)} x, {draw(TEXTS)} y, f from ({source})"
        case "twice":
            number = draw(NUMBERS)
            return f"select {number}, s, {number}, s as k, s, null from ({source})"
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
            count = draw(st.integers(0, 40))
            return f"select * from ({source}) order by {order}, {LIST} limit {count}"
        case "window":
            keys = ", ".join(draw(KEYS))
            call = draw(st.sampled_from(["rank()", "dense_rank()", "sum(m)", "count(s)", "min(g)", "max(k)"]))
            return f"select id, {call} over (partition by {keys} order by {draw(NUMBERS)}) w from ({source})"
        case _:
            return draw(columnless(leaves))


def compare(spark: SparkSession, plans: st.SearchStrategy[str], examples: int, native: bool) -> Counter[str]:
    """The engines that ran so many plans, each of which gave Spark's rows."""
    engines: Counter[str] = Counter()

    @settings(
        max_examples=examples,
        suppress_health_check=list(HealthCheck),
    )
    @given(plans)
    def check(query: str) -> None:
        # No sum of floats is among them, so every bit counts.
        assert_same_rows(spark, query, native=native, tolerance=0.0)
        report: Any = volley.last_query(spark)
        assert report.engine == "spark" or not any(str(r).startswith("[REPLAY") for r in report.reasons)
        engines[report.engine] += 1

    check()
    return engines


# Several workers run what one runs, cut into stages: fewer cases tell whether the cuts are right.
@pytest.mark.parametrize(
    ("workers", "examples"),
    [("3", 15), *(pytest.param(n, 400, marks=pytest.mark.slow) for n in ("1", "3"))],
)
def test_native_leaves(leaves: SparkSession, workers: str, examples: int) -> None:
    leaves.conf.set("spark.volley.local.workers", workers)
    # Spark starts a Python process for each plan of a data source, so it is drawn less often.
    names = [*(name for name in NATIVE if name != "source" for _ in range(3)), "source"]
    engines = compare(leaves, queries(st.sampled_from(names)), examples, native=True)
    assert engines == {"native": examples}


@pytest.mark.parametrize(
    ("workers", "examples"),
    [("3", 16), *(pytest.param(n, 150, marks=pytest.mark.slow) for n in ("1", "3"))],
)
def test_leaves_of_spark(leaves: SparkSession, workers: str, examples: int) -> None:
    """Which part is native is up to the plan; that there is one, in a third of all of them, is not."""
    leaves.conf.set("spark.volley.local.workers", workers)
    names = [*(name for name in SPARKS for _ in NATIVE), *NATIVE]
    engines = compare(leaves, queries(st.sampled_from(names)), examples, native=False)
    assert engines["mixed"] + engines["native"] >= examples // 3, engines
    assert engines["mixed"], engines


@pytest.mark.slow
def test_worker_daemons(leaves: SparkSession) -> None:
    with LocalCluster(2, cores=1) as cluster, conf(leaves, cluster.settings):
        try:
            names = [*NATIVE, *NATIVE, *SPARKS]
            engines = compare(leaves, queries(st.sampled_from(names)), 150, native=False)
        finally:
            close_fleets()
    assert engines["native"] >= 60, engines
    assert engines["mixed"], engines
