# SPDX-License-Identifier: Apache-2.0
"""Conditions on columns that have one value in every row: the result of a subquery is a constant of the native plan.

DataFusion may move such a condition anywhere, as it reads no column of what is below.
"""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from helpers.sampling import every
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows

_RELATIONS = {
    "totals": "select count(*) c, sum(id) s, {m} m from t",
    "totals that need all values": "select percentile(id, 0.5) p, stddev(id) d, {m} m from t",
    "totals of no rows": "select count(*) c, max(s) s, {m} m from t where id < 0",
    "totals of nothing": "select {m} m from t having 1 < {m} + 9",
    "a constant of the totals": "select c, m + 0 m from (select count(*) c, {m} m from t)",
    "totals of totals": "select max(c) c, max(m) m from (select count(*) c, {m} m from t)",
    "groups": "select k, count(*) c, {m} m from t group by k",
    "rollup": "select k, count(*) c, {m} m from t group by rollup (k)",
    "distinct": "select distinct k, {m} m from t",
    "distinct totals": "select count(distinct k) c, count(distinct s) d, {m} m from t",
    "window": "select id, sum(id) over (partition by k) w, {m} m from t",
    "rank": "select id, row_number() over (order by id) r, {m} m from t",
    "limit": "select id, {m} m from t order by id limit 3",
    "union": "select count(*) c, {m} m from t union all select id, {m} from t where id < 2",
    "join": "select a.id, b.c, b.m from t a join (select count(*) c, {m} m from t) b on a.id < b.c",
    "left join": "select a.id, b.c, b.m from t a left join (select count(*) c, {m} m from t) b on a.id < b.m",
    "generate": "select explode(array(c, m)) e, m from (select count(*) c, {m} m from t)",
    "session": "select window.start, count(*) c, {m} m from (select timestamp_seconds(id) ts from t)"
    " group by window(ts, '20 seconds')",
}
_CONDITIONS = (
    "m > 5",
    "m < 5",
    "m is null",
    "m > 5 or m is null",
    "not (m < 5)",
    "m in (1, 2)",
    "m between 3 and 3",
)


@pytest.mark.parametrize("relation", every(3, _RELATIONS, name=str))
@pytest.mark.parametrize("workers", ["1", pytest.param("3", marks=pytest.mark.slow)])
def test_they_remove_all_rows_or_none(spark: SparkSession, relation: str, workers: str) -> None:
    for key, value in ({"spark.volley.local.workers": workers} | DISTRIBUTED_SETTINGS).items():
        spark.conf.set(key, value)
    made = "id, id % 3 k, concat('s', id % 5) s"
    spark.sql(f"select {made} from range(40)").createOrReplaceTempView("t")
    spark.sql("select * from values (3), (1) as v(x)").createOrReplaceTempView("u")
    rows = _RELATIONS[relation].format(m="(select max(x) from u)")
    for condition in _CONDITIONS:
        assert_same_rows(spark, f"select * from ({rows}) where {condition}")
    assert_same_rows(spark, f"select x, (select count(*) from ({rows}) r where r.m > u.x) n from u")
    assert_same_rows(spark, f"select u.x, r.* from u left join ({rows}) r on r.m > 5")
    assert_same_rows(spark, f"select x from u where not exists (select 1 from ({rows}) r where r.m > 5)")
