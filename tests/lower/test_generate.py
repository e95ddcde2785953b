# SPDX-License-Identifier: Apache-2.0
"""Generators with Spark as the oracle: NULL and empty arrays, structs, outer variants, order, several tasks."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from helpers.captured import plan_of
from volley.plan.nodes import Generate, walk
from volley.support.check import check
from volley.support.reasons import Reason
from volley.testing.rows import assert_same_rows

QUERIES = (
    "select explode(a) from n",
    "select id, a, explode(a) as e from n",
    "select id, explode_outer(a) from n",
    "select id, posexplode(a) from n",
    "select id, posexplode_outer(s) from n",
    "select id, e from n lateral view explode(s) v as e",
    "select id, e, g from n lateral view explode(aa) v as e lateral view explode(e) w as g",
    "select id, e, g from n lateral view outer explode(aa) v as e lateral view outer explode(e) w as g",
    "select id, inline(st) from n",
    "select id, inline_outer(st) from n",
    "select inline(array(named_struct('p', id, 'q', k), null)) from n",
    # Spark reads only the fields that are used.
    "select id, e.y, e.z from n lateral view outer explode(st) v as e",
    "select e.y, count(*) from n lateral view explode(st) v as e group by e.y",
    "select id, e.x, g from n lateral view explode(st) v as e lateral view explode(e.z) w as g",
    "select id, o.z from n",
    # No column is read, or no row is there.
    "select count(*) from (select explode(a) from n)",
    "select count(*) from (select explode_outer(a) from n)",
    "select 1 from n lateral view explode(a) v as e",
    "select explode(array(1, 2)) from n",
    "select explode_outer(a), stack(2, id, id + 1) from none",
    "select explode(array(1, 2, null))",
    "select posexplode(array('a', null))",
    "select id, e from n lateral view explode(array(null, null)) v as e",
    # Constants, incomplete rows, and NULLs without a type.
    "select stack(2, id, k, 7L, null) from n",
    "select id, stack(3, k, 'a', k, 'b') from n",
    "select k from n intersect all select k from n where id < 20",
    "select k, id % 2 from n except all select k, id % 2 from n where id < 9",
    # A condition that Spark puts below the generator, and one that guards another.
    "select id, e from n lateral view explode(a) v as e where e > 3 and k = 2",
    "select id, e from n lateral view explode(a) v as e where size(a) > 1 and a[1] > 2",
    "select t.id, m.k, e from (select *, explode(a) e from n) t join n m on m.id = e",
    "select k, e, sum(id) from n lateral view explode(s) v as e group by rollup(k, e)",
    "select id, (select max(e) from (select explode(a) e from n m where m.id = n.id)) from n",
    "select id, x.e from n left join lateral (select explode(a) e) x",
    "select id, pos, e from n lateral view posexplode(a) v as pos, e order by id, pos",
)

# The rows of one array follow each other in its order, wherever a result depends on that.
ORDERED = (
    "select id, e from (select * from n order by id desc) lateral view explode(a) v as e",
    "select id, e from (select * from n order by k, id desc) lateral view explode(a) v as e limit 7",
    "select id, e from n lateral view explode(a) v as e order by id",
    "select id, g from n lateral view explode(aa) v as e lateral view explode(e) w as g order by id desc",
    "select id, e, row_number() over (partition by k order by id) r from n lateral view explode(a) v as e"
    " order by k, r",
    "select id, e, first(e) over (partition by id order by k) f from n lateral view outer explode(s) v as e"
    " order by id",
    "select id, e, row_number() over (partition by k order by k) r"
    " from (select id, k, explode(a) e from (select * from n order by id)) order by k, r",
)


@pytest.mark.parametrize("query", QUERIES)
def test_queries(nested: SparkSession, query: str) -> None:
    assert_same_rows(nested, query)


@pytest.mark.parametrize("query", ORDERED)
def test_order(nested: SparkSession, query: str) -> None:
    assert_same_rows(nested, query, ordered=True)


@pytest.mark.usefixtures("distributed")
@pytest.mark.slow
def test_across_tasks(nested: SparkSession) -> None:
    nested.conf.set("spark.volley.local.workers", "3")
    for query in QUERIES:
        assert_same_rows(nested, query)
    for query in ORDERED:
        assert_same_rows(nested, query, ordered=True)


def test_what_spark_runs(nested: SparkSession) -> None:
    frame = nested.sql("select json_tuple('{\"a\": 1}', 'a') from n")
    (node,) = [node for node in walk(plan_of(frame)) if isinstance(node, Generate)]
    assert {reason.reason for reason in check(node).reasons} == {Reason.EXPRESSION}
