# SPDX-License-Identifier: Apache-2.0
"""Recursive queries: the driver runs their steps natively, one after the other."""

from __future__ import annotations

import re

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import volley
from volley.support.reasons import Reason
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

pytestmark = pytest.mark.since("4.1")

_COUNT = "with recursive r(n) as (select 1 union all select n + 1 from r where n < {})"
_QUERIES = (
    f"{_COUNT.format(40)} select * from r",
    f"{_COUNT.format(40)} select n % 7 k, count(*), sum(n) from r group by 1 order by 1",
    f"{_COUNT.format(9)} select a.n, b.n from r a left join r b on a.n = b.n * 2",
    f"{_COUNT.format(9)} select id, (select max(n) from r) from t where id in (select n from r)",
    # From the top of a tree down, with text, decimals, NULLs and no rows at all.
    "with recursive r as (select id, cast(name as string) path, 0 depth from t where parent is null union all"
    " select t.id, r.path || '/' || t.name, r.depth + 1 from t join r on t.parent = r.id) select * from r",
    "with recursive r(a, b, c, x) as (select 0L, 1L, cast(null as decimal(10, 2)), double('NaN') union all"
    " select b, a + b, cast(coalesce(c, 0) + 1.5 as decimal(10, 2)), -x from r where b < 1000) select * from r",
    "with recursive r(n) as (select id from t where id < 0 union all select n + 1 from r) select count(*) from r",
    # It would never end but for the limit.
    "with recursive r(n) as (select 1 union all select n + 1 from r) select n from r limit 20",
    "with recursive r(n, s) as (select 1, '' union all select n + 1, repeat('x', n) from r where n < 8),"
    " q(m) as (select max(n) from r union all select m - 1 from q where m > 3) select r.n, s, m from r join q on n = m",
    # A step over another recursive query.
    "with recursive r(a, b) as (select 1, 1 union all select a + b, a from r where a < 20),"
    " q(n) as (select 1 union all select n + 1 from q, r where n + 1 = a) select * from q",
    "with recursive r(n) as (select 1 union all select n + 1 from r), q(m) as (select (select sum(n) from"
    " (select n from r limit 10)) union all select m + (select sum(n) from (select n from r limit 3)) from q)"
    " select * from q limit 4",
    "with recursive q(m) as (select 1 union all (with recursive r(n) as (select 2 union all select n * 2 from r where"
    " n < 30) select m + n from q, r where m < 40 and n > 8)) select * from q",
)


@pytest.fixture
def tables(distributed: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    path = str(tmp_path_factory.mktemp("tree") / "t")
    rows = "select id, if(id % 19 = 0, null, id div 3) parent, concat('n', id) name from range(1, 60)"
    distributed.sql(rows).repartition(3).write.parquet(path)
    distributed.read.parquet(path).createOrReplaceTempView("t")
    return distributed


def test_queries(tables: SparkSession) -> None:
    for query in _QUERIES:
        assert_same_rows(tables, query)
    with conf(tables, {"spark.volley.local.workers": "3", "spark.sql.ansi.enabled": "false"}):
        for query in (_QUERIES[1], _QUERIES[4]):
            assert_same_rows(tables, query)


def test_two_queries_with_plans_of_one_text(spark: SparkSession) -> None:
    """The text of Spark's plan does not have what is recursive."""
    for last in (5, 6):
        rows = spark.sql(f"{_COUNT.format(last)} select * from r").collect()
        assert [row.n for row in rows] == list(range(1, last + 1))


@pytest.mark.embedded
def test_expressions_of_the_jvm_in_a_step(spark: SparkSession) -> None:
    assert_same_rows(
        spark,
        "with recursive r(n, s) as (select 1, format_string('%d', 1) union all"
        " select n + 1, format_string('%s-%d', s, n) from r where n < 6) select n, soundex(s), s from r",
    )


def test_a_query_without_end_raises_the_error_of_spark(spark: SparkSession) -> None:
    for enabled in ("true", "false"):
        with (
            conf(spark, {"spark.volley.enabled": enabled}),
            pytest.raises((PySparkException, Py4JJavaError), match="RECURSION_LEVEL_LIMIT_EXCEEDED"),
        ):
            spark.sql(
                "with recursive r(n) as (select 1 union all select n + 1 from r) select * from r"
            ).collect()


_LIMITED = "with recursive r(n) {levels} as (select 1 union all select n + 1 from r where n < {last}) select n from r"


def _outcome(spark: SparkSession, query: str) -> list[int] | str:
    try:
        return sorted(row.n for row in spark.sql(query).collect())
    except (PySparkException, Py4JJavaError) as error:
        return str(re.findall("RECURSION_[A-Z]+_LIMIT_EXCEEDED", str(error))[0])


@pytest.mark.parametrize("rows", ["8", "-1"])
@pytest.mark.parametrize("last", [3, 4, 5, 7, 8, 9])
def test_queries_that_just_reach_a_limit(spark: SparkSession, last: int, rows: str) -> None:
    """What stays within the limits of Spark is native, also with LIMIT; beyond them the error is Spark's."""
    settings = {"spark.sql.cteRecursionRowLimit": rows, "spark.sql.cteRecursionLevelLimit": "8"}
    with conf(spark, settings):
        for levels in ("", "max recursion level 4"):
            for limit in ("", " limit 3", " limit 4", " limit 5", " limit 9", " limit all"):
                query = _LIMITED.format(levels=levels, last=last) + limit
                with conf(spark, {"spark.volley.enabled": "false"}):
                    expected = _outcome(spark, query)
                assert _outcome(spark, query) == expected, query
                report = volley.last_query(spark)
                assert report is not None
                assert (report.engine == "native") == isinstance(expected, list), query


def test_a_random_step_is_left_to_spark(spark: SparkSession) -> None:
    explained = volley.explain(
        spark.sql(
            "with recursive r(n) as (select 0D union all select n + rand() from r where n < 2) select * from r"
        )
    )
    assert Reason.OPERATOR in {reason.reason for reason in explained.reasons}
