# SPDX-License-Identifier: Apache-2.0
"""Texts with a collation as columns of native plans, whose equal values may have different bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import volley
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

pytestmark = pytest.mark.since("4.1")

COLLATIONS = ("UTF8_LCASE", "UNICODE_CI_AI", "UTF8_BINARY_RTRIM")
WORDS = "'abc', 'ABC', 'aBc ', 'äbc', 'b', 'B', '', ' ', null"


@pytest.fixture(params=COLLATIONS)
def words(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> SparkSession:
    """The view `w` of a Parquet file, in which `c` has a collation and `s` the same texts without."""
    spark.sql("create or replace temp view plain as select * from range(40)")
    made = f"element_at(array({WORDS}), cast(id % 9 + 1 as int))"
    columns = f"id, {made} s, {made} collate {request.param} c"
    with conf(spark, {"spark.volley.enabled": "false"}):
        spark.sql(f"select {columns} from plain").write.parquet(str(tmp_path / "w"))
    schema = f"id bigint, s string, c string collate {request.param}"
    spark.read.schema(schema).parquet(str(tmp_path / "w")).createOrReplaceTempView("w")
    return spark


NATIVE = (
    "select * from w",
    "select c, upper(c), length(c), c = 'ABC', c in ('abc', 'b'), concat(c, 'x'), collation(c) from w",
    "select id from w where c = 'abc'",
    "select id, c from w where c > 'AB' and id > 3 order by id limit 20",
    "select id from w where contains(c, 'B') or startswith(c, 'Ä')",
    "select a.id, b.id, b.c from w a join w b on a.c = b.c and a.id < b.id",
    "select a.id, b.c from w a left join w b on a.c = b.c and b.id % 2 = 0",
    "select id, coalesce(c, 'x'), if(id > 5, c, null), case when c = 'B' then c end, nullif(c, 'B') from w",
    "select id, array(c, 'b')[0], struct(c, id), map(id, c), explode(array(c, null)) from w",
    "select id, array_contains(array(c), 'ABC'), array_distinct(array(c, 'abc', 'B')), greatest(c, 'abc') from w",
    "select id, array_position(array('b', c), 'B'), array_remove(array(c, 'b'), 'B'), sort_array(array(c, 'b')) from w",
    "select id, instr(c, 'B'), replace(c, 'B', 'x'), find_in_set(c, 'ABC,b'), split_part(c, 'B', 1), trim(c) from w",
    "select id, levenshtein(s, cast(c as string)), hash(c), xxhash64(c), cast(c as string) from w",
    "select count(c), first(c), last(c) from (select * from w order by id)",
    "select id % 3, count(c) from w group by id % 3",
    "select id, lag(c) over (order by id), last(c) over (order by id) from w",
    "select c from w where id < 5 union all select c from w where id > 30",
    "select id, w.c <=> u.c from w cross join (select c from w where id = 1) u",
)


@pytest.mark.parametrize("query", NATIVE)
def test_columns_of_text_with_a_collation(words: SparkSession, query: str) -> None:
    assert_same_rows(words, query)


COMPARED = (
    "select id from w where c in (select c from w where id < 3)",
    "select id from w a where not exists (select 1 from w b where b.c = a.c and b.id > a.id)",
    "select lower(c), count(*) from w group by c",
    "select count(distinct c) from w",
    "select count(*) from (select distinct c from w)",
    "select lower(min(c)), lower(max(c)) from w",
    "select id, c from w order by c, id",
    "select id, c from w order by struct(c, 1), id limit 7",
    "select id, count(*) over (partition by c), rank() over (order by c) from w",
    "select lower(c) from w where id < 5 except select c from w where id > 30",
    "select lower(mode(c)), approx_count_distinct(c), max_by(id, c) is null from w",
    "select id % 2, min(c) = 'x', lower(max(array(c))[0]) from w group by id % 2",
    "select id, (select max(lower(c)) from w b where b.c = w.c) from w",
    "select * from (select c, id from w where id < 18) pivot (sum(id) for c in ('ABC', 'b'))",
)


@pytest.mark.parametrize("query", COMPARED)
def test_operators_that_compare_by_a_collation(words: SparkSession, query: str) -> None:
    """Spark's rows, whoever runs the operator: of equal texts any may stand for the others."""
    # Not as text: without code generation, Spark keeps no copy of the largest text with a collation.
    assert_same_rows(words, words.sql(query), native=False)
    report = volley.last_query(words)
    assert report is not None
    assert not any(reason.reason in ("REPLAYED_ON_SPARK", "NATIVE_RUN_FAILED") for reason in report.reasons)


@pytest.mark.parametrize("workers", ["1", "3"])
def test_rows_that_leave_the_engine(words: SparkSession, tmp_path: Path, workers: str) -> None:
    """As rows of Python, through functions and the cache, into files, and between tasks."""
    for key, value in ({"spark.volley.local.workers": workers} | DISTRIBUTED_SETTINGS).items():
        words.conf.set(key, value)
    query = "select id, c, array(c) a, struct(c) s from w"
    with conf(words, {"spark.volley.enabled": "false"}):
        expected = words.sql(query).orderBy("id").collect()
    assert words.sql(query).orderBy("id").collect() == expected
    assert_same_rows(words, "select id % 3 k, count(c), max(id) from w group by id % 3")
    made = words.createDataFrame([("a", 1), (None, 2), ("A", 3)], "c string collate UTF8_LCASE, n int")
    assert_same_rows(words, made.where("c = 'A'"))
    words.udf.register("shout", lambda text: None if text is None else text.upper() + "!")
    assert_same_rows(words, "select id, shout(c) from w", native=False)
    kept = words.sql(query).cache()
    assert kept.orderBy("id").collect() == expected
    kept.unpersist()
    for kind in ("parquet", "orc", "json"):
        words.sql("select id, c from w").write.format(kind).save(str(tmp_path / kind))
        read = words.read.format(kind).load(str(tmp_path / kind))
        with conf(words, {"spark.volley.enabled": "false"}):
            assert read.schema["c"].dataType == words.table("w").schema["c"].dataType or kind != "parquet"
        assert [row.c for row in read.orderBy("id").collect()] == [row.c for row in expected]
