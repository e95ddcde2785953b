# SPDX-License-Identifier: Apache-2.0
"""Rows of which nobody reads a column are still counted, joined, united, exchanged, handed over and returned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from volley.cluster import LocalCluster
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf
from volley.testing.sources import Numbers
from volley.transport.flight import close_fleets

# Leaves of every kind: local rows, a range, one row, files, folders of files, a Python data source, nothing at all.
LEAVES = ["v", "range(10)", "(select 1)", "t", "p", "n", "e", "(select * from v where k > 9)"]

PLANS = [
    "select count(*) from {}",
    "select 7 from {}",
    "select 7 from {} cross join range(3)",
    "select (select count(*) from {})",
    "select count(*) from {} group by grouping sets (())",
    "select 1 from {} group by grouping sets (()) having count(*) > 1",
    "select count(*) over () from {}",
    "select count(*) from (select 1 from {} union all select 2 from v)",
    "select count(*) from (select * from {} limit 2)",
    "select 7 from v where exists (select 1 from {})",
    "select 7 from v where not exists (select 1 from {})",
    "select 7 from {} full join v on true",
    "select count(*) from (select /*+ repartition(3) */ * from {})",
]


@pytest.fixture
def leaves(tables: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    tables.sql("select * from values (1, 'a'), (2, 'b'), (3, null) v(k, s)").createOrReplaceTempView("v")
    folder = str(tmp_path_factory.mktemp("partitioned"))
    with conf(tables, {"spark.volley.enabled": "false"}):
        tables.sql("select id, id % 3 k from range(20)").write.partitionBy("k").parquet(f"{folder}/p")
    tables.read.schema("id bigint, k bigint").parquet(f"{folder}/p").createOrReplaceTempView("p")
    tables.dataSource.register(Numbers)
    tables.read.format("numbers").options(splits="3", rows="4").load().createOrReplaceTempView("n")
    return tables


@pytest.mark.parametrize("workers", ["1", "3"])
@pytest.mark.parametrize("leaf", LEAVES)
def test_every_leaf(leaves: SparkSession, leaf: str, workers: str) -> None:
    leaves.conf.set("spark.volley.local.workers", workers)
    # One query of all of them: planning costs Spark more than their few rows.
    parts = [f"select {number} n, * from ({plan})" for number, plan in enumerate(PLANS)]
    assert_same_rows(leaves, " union all ".join(parts).format(*[leaf] * len(PLANS)))


@pytest.mark.parametrize("workers", ["1", "3"])
@pytest.mark.parametrize(
    "query",
    [
        "select count(null) over () from values 1, 2, 3",
        "select count(null) over (partition by k) from t",
        "select count(null) over (partition by k), sum(l) over (partition by k) from t",
        "select sum(l) over (partition by k), count(null) over (partition by k) from t",
        "select count(*), count(null), sum(1) from v",
        "select count(*) filter (where true) from v",
        "select count(*) from v intersect select 3",
        "select k, k, 1, 1 from v",
        "select null, count(*) from v group by 1",
        "select count(*) from v a, v b, v c where a.k = b.k",
        "select count(*) from v left anti join e on true",
        "select 7 from t left join v on false",
        "select row_number() over (order by 1) from v",
    ],
)
def test_plans_that_keep_no_column(leaves: SparkSession, query: str, workers: str) -> None:
    leaves.conf.set("spark.volley.local.workers", workers)
    assert_same_rows(leaves, query)


def _untyped(frame: DataFrame) -> Any:
    """PySpark's annotations know neither pandas' attributes nor what `show` prints."""
    return frame


ACTIONS: dict[str, Callable[[DataFrame], Any]] = {
    "collect": lambda frame: frame.collect(),
    "toPandas": lambda frame: _untyped(frame).toPandas().shape,
    "toArrow": lambda frame: frame.toArrow().shape,
    "count": lambda frame: frame.count(),
    "take": lambda frame: frame.take(2),
    "first": lambda frame: frame.first(),
    "tail": lambda frame: frame.tail(2),
    "toLocalIterator": lambda frame: list(frame.toLocalIterator()),
    "isEmpty": lambda frame: frame.isEmpty(),
    "show": lambda frame: _untyped(frame)._show_string(2),
    "limit": lambda frame: frame.limit(2).collect(),
}


@pytest.mark.parametrize("workers", ["1", "3"])
@pytest.mark.parametrize("action", ACTIONS)
def test_results_without_columns(leaves: SparkSession, action: str, workers: str) -> None:
    leaves.conf.set("spark.volley.local.workers", workers)
    for name in ("v", "t", "e"):
        frame = leaves.table(name).select()
        with conf(leaves, {"spark.volley.enabled": "false"}):
            expected = ACTIONS[action](frame)
        assert ACTIONS[action](frame) == expected, name
        report: Any = volley.last_query(leaves)
        assert report.engine == "native"


@pytest.fixture(params=["local", "3 workers", "daemons"])
def engines(leaves: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """With tables that only Spark can read and functions that only Spark can call."""
    leaves.udf.register("py", lambda number: number, "int")
    with conf(leaves, {"spark.volley.enabled": "false"}):
        kept = leaves.sql("select id, k from t where id > 3").cache()
        kept.createOrReplaceTempView("c")
        kept.count()
    try:
        if request.param == "daemons":
            with LocalCluster(2, cores=1) as cluster, conf(leaves, cluster.settings):
                yield leaves
                close_fleets()
        else:
            workers = "1" if request.param == "local" else "3"
            leaves.conf.set("spark.volley.local.workers", workers)
            yield leaves
    finally:
        kept.unpersist()


def test_between_the_engines(engines: SparkSession) -> None:
    for query in (
        # Spark's rows below native operators.
        "select 7 from c cross join u",
        "select count(*) from c cross join u",
        "select u.k, count(*) from c cross join u group by u.k",
        "select 7 from c full join u on true",
        "select 7 from c union all select 8 from u cross join v",
        "select count(*) from u, (select 1 from c limit 5)",
        # Native rows below Spark's operators.
        "select py(7) from t cross join u",
        "select py(1) from (select 1 from t cross join u union all select 2 from t group by k)",
        # Both.
        "select count(*) from (select py(7) from t cross join u) cross join u",
    ):
        assert_same_rows(engines, query, native=False)
        report: Any = volley.last_query(engines)
        assert report.engine == "mixed", (query, [str(reason) for reason in report.reasons])
    # The same as a result, whose columns Spark drops at its top.
    frame = engines.sql("select py(7) from t cross join u").select()
    assert len(frame.collect()) == frame.count() == 60 * 25


def test_spark_refuses_to_write_them(leaves: SparkSession, tmp_path: Path) -> None:
    frame = leaves.table("v").select()
    with pytest.raises(AnalysisException):
        frame.write.parquet(str(tmp_path / "t"))
    with pytest.raises(AnalysisException):
        leaves.table("v").select(F.col("k")).write.partitionBy("k").parquet(str(tmp_path / "t"))
