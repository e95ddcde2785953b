# SPDX-License-Identifier: Apache-2.0
"""Arrays and structs as keys of groups, joins, set operations and exchanges, with Spark as the oracle."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import volley
from volley.support.reasons import Reason
from volley.testing.rows import assert_same_rows

QUERIES = (
    "select a, count(*), sum(id) from n group by a",
    "select st, aa, o, count(distinct id) from n group by st, aa, o",
    "select struct(k, a) g, max(id) from n group by 1",
    "select count(distinct a), count(distinct st) from n",
    "select * from n union select * from n",
    "select a, st from n except select a, st from n where id > 5",
    "select a from n intersect all select a from n where k > 1",
    "select x.id, y.id from n x join n y on x.a = y.a",
    "select x.id, y.id from n x join n y on x.o <=> y.o",
    "select x.id, y.id from n x left join n y on x.st = y.st and x.k = y.k",
    "select x.id from n x where a in (select a from n where k = 1)",
    "select x.id from n x where not exists (select 1 from n y where x.s = y.s and y.k = 1)",
    "select a, o, count(*) from none group by a, o",
)


@pytest.mark.parametrize("query", QUERIES)
def test_queries(nested: SparkSession, query: str) -> None:
    assert_same_rows(nested, query)


@pytest.mark.usefixtures("distributed")
@pytest.mark.slow
def test_across_tasks(nested: SparkSession) -> None:
    """With joins by shuffle: below them Spark sorts by the keys."""
    nested.conf.set("spark.volley.local.workers", "3")
    nested.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    for query in QUERIES:
        assert_same_rows(nested, query)


@pytest.mark.parametrize(
    "query",
    ["select id from n order by a", "select array(f), count(*) from values (1d) v(f) group by 1"],
)
def test_what_spark_runs(nested: SparkSession, query: str) -> None:
    assert Reason.ARGUMENT_TYPES in {r.reason for r in volley.explain(nested.sql(query)).reasons}
