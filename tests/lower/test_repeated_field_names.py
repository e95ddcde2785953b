# SPDX-License-Identifier: Apache-2.0
"""Fields of a struct are known by their position: names may repeat, in the user's structs and in Spark's own."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import volley
from volley.testing.session import conf

TWICE = "named_struct('a', n_nationkey, 'a', n_name, 'A', n_comment)"
QUERIES = {
    # Spark merges such subqueries into one that returns a struct.
    "merged subqueries": "select (select max(n_nationkey) v from nation) a, (select min(n_nationkey) v from nation) b",
    "merged subqueries that are joined": "select x.v, y.v from (select sum(n_nationkey) + 1 v from nation) x,"
    " (select sum(n_nationkey) v from nation) y",
    "whole": f"select {TWICE} s from nation",
    "a field": "select s.b, t.s.b from (select s, struct(s) t from (select named_struct('a', n_nationkey, 'b', n_name,"
    " 'a', n_regionkey) s from nation))",
    "inline": f"select * from (select inline(array({TWICE})) as (p, q, r) from nation)",
    "zipped arrays": "select arrays_zip(a, a, b) from (select array(n_nationkey, null) a, array(n_name) b from nation)",
    "groups": "select s, count(*) from (select named_struct('a', n_regionkey, 'a', n_nationkey % 2) s from nation)"
    " group by s",
    "order": "select s from (select named_struct('a', n_regionkey, 'a', n_nationkey % 7) s, n_nationkey k from nation)"
    " order by s desc, k",
    "comparison": f"select count(*) from nation where {TWICE} > named_struct('a', 3L, 'a', 'x', 'A', '')",
    "join": "select count(*) from (select named_struct('a', n_regionkey, 'a', n_nationkey) s from nation) x"
    " join (select named_struct('a', r_regionkey, 'a', r_regionkey + 5) s from region) y on x.s = y.s",
    "union": f"select {TWICE} s from nation union all select {TWICE} from nation where n_regionkey = 1",
    "maximum": "select max(named_struct('a', n_regionkey, 'a', n_name)) from nation",
    "by Spark's code": f"select to_json({TWICE}), cast({TWICE} as string), to_csv({TWICE}) from nation",
    "transformed": "select transform(arrays_zip(a, a), x -> x) from (select array(n_nationkey, null) a from nation)",
    "constants": "select named_struct('a', 1, 'a', 'two') s, array(named_struct('a', 1, 'a', 2)) l, n_name from nation",
}


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("workers", ["1", pytest.param("3", marks=pytest.mark.slow)])
@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
def test_rows_are_sparks(tpch: SparkSession, query: str, workers: str) -> None:
    """Compared as rows: Arrow tables of PySpark refuse such structs."""
    tpch.conf.set("spark.volley.local.workers", workers)
    with conf(tpch, {"spark.volley.enabled": "false"}):
        expected = tpch.sql(query).collect()
    found = tpch.sql(query).collect()
    report = volley.last_query(tpch)
    assert report is not None
    assert (report.engine, report.spark_tasks) == ("native", 0), report.reasons
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    if " order by " in query:
        assert found == expected
