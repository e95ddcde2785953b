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
from helpers.leaves import NATIVE
from helpers.releases import is_before
from helpers.sampling import every
from volley.cluster import LocalCluster
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf
from volley.transport.flight import close_fleets

PLANS = [
    "select count(*) from {}",
    "select 7 from {}",
    "select 7 from {} cross join range(3)",
    "select count(*) from {} group by grouping sets (())",
    "select 1 from {} group by grouping sets (()) having count(*) > 3",
    "select count(*) over () from {}",
    "select count(*) from (select 1 from {} union all select 2 from local)",
    "select count(*) from (select * from {} limit 2)",
    "select 7 from {} full join local on true",
    "select count(*) from (select /*+ repartition(3) */ * from {})",
    "select (select count(*) from {})",
    "select 7 from local where exists (select 1 from {})",
    "select 7 from local where not exists (select 1 from {})",
]


@pytest.mark.parametrize("leaf", every(3, NATIVE))
def test_every_leaf(leaves: SparkSession, leaf: str) -> None:
    """Below a third of the plans, another third for each leaf."""
    leaves.conf.set("spark.volley.local.workers", "3")
    for plan in PLANS[list(NATIVE).index(leaf) % 3 :: 3]:
        assert_same_rows(leaves, plan.format(leaf))


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "3"])
@pytest.mark.parametrize("leaf", NATIVE)
def test_every_plan_of_every_leaf(leaves: SparkSession, leaf: str, workers: str) -> None:
    leaves.conf.set("spark.volley.local.workers", workers)
    for plan in PLANS:
        assert_same_rows(leaves, plan.format(leaf))


@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.slow), "3"])
@pytest.mark.parametrize(
    "query",
    [
        "select count(null) over () from values 1, 2, 3",
        "select count(null) over (partition by k) from t",
        "select count(null) over (partition by k), sum(l) over (partition by k) from t",
        "select sum(l) over (partition by k), count(null) over (partition by k) from t",
        "select count(*), count(null), sum(1) from local",
        "select count(*) filter (where true) from local",
        "select count(*) from local intersect select 11",
        "select k, k, 1, 1 from local",
        "select null, count(*) from local group by 1",
        "select count(*) from local a, local b, local c where a.k = b.k",
        "select count(*) from local left anti join e on true",
        "select 7 from t left join local on false",
        "select row_number() over (order by 1) from local",
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


@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.slow), "3"])
@pytest.mark.parametrize("leaf", ["local", "t", "e"])
def test_results_without_columns(leaves: SparkSession, leaf: str, workers: str) -> None:
    leaves.conf.set("spark.volley.local.workers", workers)
    frame = leaves.table(leaf).select()
    for name, act in ACTIONS.items():
        with conf(leaves, {"spark.volley.enabled": "false"}):
            expected = act(frame)
        assert act(frame) == expected, name
        report: Any = volley.last_query(leaves)
        # Before Spark 4.2 rows without columns cannot be given to Spark for it to format them.
        is_shown_natively = not is_before("4.2")
        assert report.engine == ("native" if name != "show" or is_shown_natively else "spark"), name


@pytest.fixture(
    params=["local", *(pytest.param(name, marks=pytest.mark.slow) for name in ("3 workers", "daemons"))]
)
def engines(leaves: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    if request.param == "daemons":
        with LocalCluster(2, cores=1) as cluster, conf(leaves, cluster.settings):
            yield leaves
            close_fleets()
    else:
        leaves.conf.set("spark.volley.local.workers", "1" if request.param == "local" else "3")
        yield leaves


def test_between_the_engines(engines: SparkSession) -> None:
    # So that Spark reads it, of which no column is needed.
    engines.conf.set("spark.volley.cache.memory", "0")
    for query in (
        # Spark's rows below native operators.
        "select 7 from cached cross join u",
        "select count(*) from cached cross join u",
        "select u.k, count(*) from cached cross join u group by u.k",
        "select 7 from cached full join u on true",
        "select 7 from cached union all select 8 from u cross join local",
        "select count(*) from u, (select 1 from cached limit 5)",
        # Native rows below Spark's operators.
        "select same_int(7) from t cross join (select 1 from u where k > 1)",
        "select same_int(1) from (select 1 from t cross join u union all select 2 from t group by k)",
        # Both.
        "select count(*) from (select 1 from t cross join u where same_int(7) = 7) cross join u",
    ):
        assert_same_rows(engines, query, native=False)
        report: Any = volley.last_query(engines)
        assert report.engine == "mixed", (query, [str(reason) for reason in report.reasons])
    # The same as a result, whose columns Spark drops at its top.
    frame = engines.sql("select same_int(7) from t cross join u").select()
    assert len(frame.collect()) == frame.count() == 60 * 25


def test_spark_refuses_to_write_them(leaves: SparkSession, tmp_path: Path) -> None:
    frame = leaves.table("local").select()
    with pytest.raises(AnalysisException):
        frame.write.parquet(str(tmp_path / "t"))
    with pytest.raises(AnalysisException):
        leaves.table("local").select(F.col("k")).write.partitionBy("k").parquet(str(tmp_path / "t"))
