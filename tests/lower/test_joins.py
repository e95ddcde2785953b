# SPDX-License-Identifier: Apache-2.0
"""Every kind of join, with Spark as the oracle."""

from __future__ import annotations

from itertools import product

import pytest
from pyspark.sql import SparkSession

from helpers.sampling import every
from volley.testing.rows import assert_same_rows

KINDS = ("join", "left join", "right join", "full join")
CONDITIONS = (
    "t.k = u.k",
    "t.k = u.k and t.l = u.l",
    "t.k = u.k and t.m > u.m",
    "t.m > u.m",
    "t.s <=> u.s",
    "t.f = u.f",
    "t.f <=> u.f and t.b = u.b",
    "t.k = u.k and t.id > 30",
)
OTHERS = (
    "select t.id, u.id x from t cross join u",
    "select count(*) from t cross join u",
    "select a.id, b.id x from t a join t b on a.k = b.l",
    "select t.id, u.id x from t join e u on t.k = u.k",
    "select t.id, u.id x from t left join e u on t.k = u.k",
    "select t.id, u.id x from e t right join u on t.k = u.k",
    "select t.id from t left join u on t.k = u.k and u.id > 10 where u.id is null",
    "select t.id, v.y from t join values (1, 'a'), (2, 'b') v(x, y) on t.k = v.x",
    "select id, (select max(id) from u where u.k = t.k) m from t",
    "select * from t where id = (select max(id) from u)",
    "with c as (select k, sum(m) s from t group by k) select a.k, a.s, b.s x from c a join c b on a.k = b.k",
)
HINTS = ("merge(u)", "shuffle_hash(u)", "broadcast(t)", "broadcast(u)")
FILTERS = (
    "k in (select k from u)",
    "k not in (select k from u)",
    "k not in (select k from u where k is not null)",
    "k not in (select k from e)",
    "k not in (select k from u where k = 77)",
    "(k, l) not in (select k, l from u)",
    "(k, l) not in (select k, l from u where k is not null and l is not null)",
    "exists (select 1 from u where u.k = t.k)",
    "not exists (select 1 from u where u.k = t.k)",
    "exists (select 1 from u where u.k = t.k and u.m < t.m)",
    "not exists (select 1 from u where u.k = t.k and u.m < t.m)",
    "exists (select 1 from u where u.m < t.m)",
    "not exists (select 1 from u where u.m < t.m)",
    "exists (select 1 from u where u.k = t.k) or l = 1",
    "exists (select 1 from u where u.k = t.k and u.m < t.m) or l = 1",
    "exists (select 1 from u where u.m < t.m) or l = 1",
    "k not in (select k from u where k > 2) or l = 1",
    "exists (select 1 from u where id > 100) or l = 1",
)


@pytest.mark.parametrize(("condition", "kind"), every(5, product(CONDITIONS, KINDS)))
def test_pairs(tables: SparkSession, kind: str, condition: str) -> None:
    assert_same_rows(tables, f"select t.id, t.s, u.id x from t {kind} u on {condition}")


@pytest.mark.parametrize(("hint", "kind"), every(5, product(HINTS, KINDS)))
def test_build_side(tables: SparkSession, kind: str, hint: str) -> None:
    assert_same_rows(tables, f"select /*+ {hint} */ t.id, u.id x from t {kind} u on t.k = u.k and t.m < u.m")


@pytest.mark.parametrize("condition", every(2, FILTERS))
def test_semi_anti_existence(tables: SparkSession, condition: str) -> None:
    assert_same_rows(tables, f"select id, s from t where {condition}")


@pytest.mark.parametrize("query", OTHERS)
def test_others(tables: SparkSession, query: str) -> None:
    assert_same_rows(tables, query)


def test_exists_as_a_value(tables: SparkSession) -> None:
    assert_same_rows(tables, "select id, exists (select 1 from u where u.k = t.k) found from t")


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("condition", FILTERS[:6])
def test_with_real_exchanges(tables: SparkSession, condition: str) -> None:
    tables.conf.set("spark.volley.local.workers", "3")
    tables.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    assert_same_rows(
        tables,
        f"select a.k, count(*) from t a join (select * from t where {condition}) b on a.k = b.k group by a.k",
    )
