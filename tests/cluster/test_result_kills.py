# SPDX-License-Identifier: Apache-2.0
"""kill -9 of workers at random moments: with shuffle servers, no stage that was complete is computed again."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import volley
from volley.bench.queries import query_text
from volley.cluster import LocalCluster
from volley.observe.report import QueryReport
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.session import conf
from volley.transport.flight import close_fleets

KILLS = int(os.environ.get("VOLLEY_KILLS", "4"))
SETTINGS = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.volley.fallback": "error",
    **DISTRIBUTED_SETTINGS,
}
LARGE = "select l_orderkey, l_comment, o_comment, l_extendedprice from lineitem join orders on l_orderkey = o_orderkey"


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, cores=1, memory="512m", services=3) as running:
        yield running
        close_fleets()


def run(spark: SparkSession, action: Callable[[], Any]) -> tuple[Any, QueryReport]:
    answer = action()
    report = volley.last_query(spark)
    assert report is not None
    return answer, report


def kill_during(
    spark: SparkSession, cluster: LocalCluster, action: Callable[[], Any], seed: int
) -> QueryReport:
    """Run an action twice, the second time while a worker is killed. Start another one in its place."""
    chance = random.Random(seed)
    started = time.monotonic()
    expected, _ = run(spark, action)
    seconds = time.monotonic() - started
    victim = chance.choice(cluster.members)
    blow = threading.Timer(chance.uniform(0, seconds), os.kill, (victim.pid, signal.SIGKILL))
    blow.start()
    try:
        actual, report = run(spark, action)
    finally:
        blow.join()
    victim.process.wait()
    cluster.members.remove(victim)
    cluster.add(port=int(victim.address.rpartition(":")[2]))
    assert actual == expected
    return report


def actions(spark: SparkSession, frame: DataFrame, folder: Path) -> dict[str, Callable[[], Any]]:
    def write() -> Any:
        frame.write.mode("overwrite").parquet(str(folder))
        with conf(spark, {"spark.volley.enabled": "false"}):
            return spark.read.parquet(str(folder)).selectExpr("count(*)", "sum(hash(*))").collect()

    def to_pandas() -> Any:
        pandas: Any = frame.toPandas()
        return sorted(pandas.itertuples(index=False, name=None))

    return {
        "collect": lambda: sorted(map(tuple, frame.collect())),
        "toArrow": lambda: sorted(map(str, frame.toArrow().to_pylist())),
        "toPandas": to_pandas,
        "count": frame.distinct().count,
        "write": write,
    }


@pytest.mark.slow
@pytest.mark.parametrize("action", ["collect", "toArrow", "toPandas", "count", "write"])
def test_a_killed_worker_costs_tasks_and_no_stage(
    tpch: SparkSession, cluster: LocalCluster, tmp_path: Path, action: str
) -> None:
    with conf(tpch, cluster.settings | SETTINGS):
        chosen = actions(tpch, tpch.sql(LARGE), tmp_path / "written")[action]
        for seed in range(KILLS):
            report = kill_during(tpch, cluster, chosen, seed)
            assert (report.recomputed_tasks, report.restarts) == (0, 0), report


@pytest.mark.slow
@pytest.mark.parametrize("name", ["q09", "q18", "q21"])
def test_killed_workers_during_queries(tpch: SparkSession, cluster: LocalCluster, name: str) -> None:
    with conf(tpch, cluster.settings | SETTINGS):
        frame = tpch.sql(query_text(name))
        for seed in range(KILLS):
            report = kill_during(tpch, cluster, lambda: [tuple(row) for row in frame.collect()], seed)
            assert (report.recomputed_tasks, report.restarts) == (0, 0), report
