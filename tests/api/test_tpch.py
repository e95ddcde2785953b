# SPDX-License-Identifier: Apache-2.0
"""The 22 TPC-H queries: natively, without one Spark task, and with Spark's rows, however Spark plans them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from helpers.answers import Answers
from helpers.costs import Costs
from volley.bench.queries import QUERIES, query_text
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.session import conf

WORKERS = "spark.volley.local.workers"
ADAPTIVE = "spark.sql.adaptive.enabled"
BROADCAST = "spark.sql.autoBroadcastJoinThreshold"

# With one worker every exchange fuses away, with three they are real. 256 KB makes the larger joins of these
# tables shuffle joins, -1 all of them. Together the three meet every value of every setting.
SETTINGS = {
    "one worker": {WORKERS: "1"},
    "three workers, some shuffle joins": {WORKERS: "3", BROADCAST: "256KB", **DISTRIBUTED_SETTINGS},
    "three workers, shipped limits": {WORKERS: "3", ADAPTIVE: "false", BROADCAST: "-1"},
}
MATRIX = [
    {WORKERS: workers, ADAPTIVE: adaptive, BROADCAST: broadcast}
    for workers in ("1", "3")
    for adaptive in ("true", "false")
    for broadcast in ("10MB", "256KB", "-1")
]


# Each query meets two of the three; the slow suite has all.
CASES = [
    pytest.param(name, query, marks=pytest.mark.slow if left_out else ())
    for number, query in enumerate(QUERIES)
    for name, left_out in zip(SETTINGS, (False, number % 2 == 0, number % 2 == 1), strict=True)
]


@pytest.mark.parametrize(("settings", "query"), CASES)
def test_rows_are_sparks_at_the_known_cost(
    tpch: SparkSession, answers: Answers, costs: Costs, settings: str, query: str
) -> None:
    with conf(tpch, SETTINGS[settings]):
        cost = answers.check(tpch, query)
        costs.check(settings, query, cost, lambda: answers.check(tpch, query))


@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("settings", MATRIX, ids=lambda settings: "-".join(settings.values()))
def test_every_combination(
    tpch: SparkSession, answers: Answers, settings: dict[str, str], query: str
) -> None:
    with conf(tpch, {**settings, **DISTRIBUTED_SETTINGS}):
        answers.check(tpch, query)


def test_shuffle_joins_are_met(tpch: SparkSession) -> None:
    """The settings do what they are chosen for."""
    with conf(tpch, {BROADCAST: "-1"}):
        plan = str(tpch.sql(query_text("q05"))._jdf.queryExecution().executedPlan().toString())
    assert "SortMergeJoin" in plan
    assert "BroadcastHashJoin" not in plan
