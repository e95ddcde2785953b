# SPDX-License-Identifier: Apache-2.0
"""TPC-H over daemons: natively, without one Spark task, and with Spark's rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import volley
from helpers.answers import Answers
from helpers.costs import Costs
from volley.bench.queries import QUERIES, query_text
from volley.cluster import LocalCluster
from volley.errors import ConfigError, NoWorkers
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf
from volley.transport.flight import close_fleets

# A scan with an aggregate, joins across exchanges, a subquery, a semi-join, a limit over a sort.
SOME = ("q01", "q03", "q05", "q11", "q18")
SHUFFLED = {"spark.sql.autoBroadcastJoinThreshold": "-1", **DISTRIBUTED_SETTINGS}


@pytest.mark.parametrize("query", SOME)
def test_rows_are_sparks_at_the_known_cost(
    tpch: SparkSession, answers: Answers, costs: Costs, cluster: LocalCluster, query: str
) -> None:
    with conf(tpch, cluster.settings | SHUFFLED):
        cost = answers.check(tpch, query)
        costs.check("three daemons", query, cost, lambda: answers.check(tpch, query))
    assert all(health and not health.held_bytes for health in cluster.health()), "a query left data behind"


@pytest.mark.slow
@pytest.mark.parametrize("query", [query for query in QUERIES if query not in SOME])
@pytest.mark.parametrize(
    "settings", [SHUFFLED, DISTRIBUTED_SETTINGS], ids=["shuffle joins", "broadcast joins"]
)
def test_every_query(
    tpch: SparkSession, answers: Answers, cluster: LocalCluster, settings: dict[str, str], query: str
) -> None:
    with conf(tpch, cluster.settings | settings):
        answers.check(tpch, query)


@pytest.fixture(scope="module", params=["none", "lz4", "zstd"])
def spilling(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Everything that is exchanged goes to disk."""
    settings = {
        "spark.volley.shuffle.spillThreshold": "0",
        "spark.volley.shuffle.compression": request.param,
    }
    with LocalCluster(3, cores=1, memory="512m", settings=settings) as running:
        yield running
        close_fleets()


@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES)
def test_every_query_when_every_exchange_is_on_disk(
    tpch: SparkSession, answers: Answers, spilling: LocalCluster, query: str
) -> None:
    with conf(tpch, spilling.settings | SHUFFLED):
        answers.check(tpch, query)


def test_without_a_worker_spark_runs_the_query_and_says_why(tpch: SparkSession) -> None:
    nobody = {"spark.volley.transport": "flight", "spark.volley.workers": "127.0.0.1:1"}
    with conf(tpch, nobody), pytest.warns(UserWarning, match=r"NO_WORKERS.*127\.0\.0\.1:1"):
        assert tpch.sql("select 1 as one").collect()[0].one == 1
    report = volley.last_query(tpch)
    assert report is not None
    assert report.engine == "spark"
    with conf(tpch, nobody | {"spark.volley.fallback": "error"}), pytest.raises(NoWorkers):
        tpch.sql("select 1 as one").collect()


def test_flight_without_addresses_is_an_error(tpch: SparkSession) -> None:
    with (
        conf(tpch, {"spark.volley.transport": "flight"}),
        pytest.raises(ConfigError, match=r"volley\.workers"),
    ):
        tpch.sql("select 1 as one").collect()


def test_tasks_are_spread_over_the_workers(tpch: SparkSession, cluster: LocalCluster) -> None:
    with conf(tpch, cluster.settings | DISTRIBUTED_SETTINGS):
        tpch.sql(query_text("q03")).collect()
    report = volley.last_query(tpch)
    assert report is not None
    assert report.engine == "native"
    assert max(stage.tasks for stage in report.stages) == 3


@pytest.mark.slow
def test_data_of_several_times_the_budget_is_spilled_and_reported(spark: SparkSession) -> None:
    """36 MB of rows come from one task, on workers that have 10 MB for exchanged data and 11 MB for operators."""
    rows = "select id, id * 7 % 1000003 as k, id % 1000 as g from range(1500000)"
    ranked = f"select g, k, row_number() over (partition by g order by k, id) as n from ({rows})"
    query = f"select count(*), sum(n * k % 1009), sum(g * n) from ({ranked})"
    with LocalCluster(2, cores=1, memory="32m") as small, conf(spark, small.settings | DISTRIBUTED_SETTINGS):
        # A frame, so that Spark generates code for it, which is worth while for so many rows.
        assert_same_rows(spark, spark.sql(query))
        close_fleets()
    report = volley.last_query(spark)
    assert report is not None
    assert report.stages[0].shuffle_spilled_bytes > 0
    assert report.stages[1].operator_spilled_bytes > 10_000_000
    stages = report.to_dict()["stages"]
    spilled = sum(stage["operator_spilled_bytes"] + stage["shuffle_spilled_bytes"] for stage in stages)
    assert report.to_dict()["spilled_bytes"] == report.spilled_bytes == spilled
    assert f"{report.spilled_bytes:,} bytes spilled" in str(report)
