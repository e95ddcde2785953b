# SPDX-License-Identifier: Apache-2.0
"""Arrays and structs as keys of groups, joins, set operations and exchanges, with Spark as the oracle."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
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


def test_unions_of_values_with_and_without_nulls(nested: SparkSession) -> None:
    """Spark's types say whether arrays, maps and structs have NULLs inside."""
    for query in (
        "select array(1, 2) x, struct(1 as x, 'b' as y) z, map('k', id) m from n"
        " union all select a, struct(o.x, o.y), map('q', cast(null as bigint)) from n",
        "select a, null as q from n union select array(k), id from n union all select array(), 1 from n",
        "select count(*), max(size(x)) from (select array(1) x union all select a from n) where x is not null",
    ):
        assert_same_rows(nested, query)


def test_structs_are_ordered_over_several_files(spark: SparkSession, tmp_path: Path) -> None:
    """DataFusion reads the files by a union."""
    kind = pa.struct([("x", pa.int32()), ("y", pa.string())])
    for name, xs in (("a", [1, None, 2]), ("b", [0, 1, None])):
        values = pa.array([None, *({"x": x, "y": name} for x in xs)], kind)
        pq.write_table(pa.table({"o": values, "id": range(4)}), tmp_path / f"{name}.parquet")
    frame = spark.read.parquet(str(tmp_path))
    assert_same_rows(spark, frame.orderBy("o", "id").select("o", "id"), ordered=True)
    assert_same_rows(spark, frame.orderBy(frame.o.desc_nulls_last(), "id").select("o.y"), ordered=True)


@pytest.mark.parametrize(
    "query",
    [
        "select id from n order by array(id / 2)",
        "select rank() over (order by array(struct(id))) from n",
        "select array(f), count(*) from values (1d) v(f) group by 1",
    ],
)
def test_what_spark_runs(nested: SparkSession, query: str) -> None:
    assert Reason.ARGUMENT_TYPES in {r.reason for r in volley.explain(nested.sql(query)).reasons}


@pytest.mark.parametrize("workers", ["1", "3"])
def test_arrays_and_structs_are_ordered(distributed: SparkSession, tmp_path: Path, workers: str) -> None:
    """Shorter arrays, and NULLs inside, come first wherever NULL arrays are."""
    distributed.conf.set("spark.volley.local.workers", workers)
    distributed.sql(
        """select id, if(id % 11 = 0, null, slice(array(id % 2, id % 3, null, id % 5), 1, int(id % 5))) a,
        if(id % 9 = 0, null, named_struct('x', id % 3, 'y', array(string(id % 4), null))) s,
        array(named_struct('p', id % 3, 'q', if(id % 4 = 0, null, id % 2))) n from range(0, 120, 1, 3)"""
    ).write.parquet(str(tmp_path / "t"))
    distributed.read.parquet(str(tmp_path / "t")).createOrReplaceTempView("t")
    for query in (
        "select * from t order by a, id",
        "select * from t order by a desc nulls first, id",
        "select * from t order by s, a nulls last, id desc",
        "select id from t order by n desc, a desc, id limit 20",
        "select id, rank() over (order by a), dense_rank() over (partition by s order by a desc nulls first) from t",
        "select id, row_number() over (partition by a order by id) r, count(*) over (order by s, a) c from t",
        "select id, sum(id) over (partition by a order by s, id rows 3 preceding) x from t",
    ):
        assert_same_rows(distributed, query)
