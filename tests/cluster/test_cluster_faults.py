# SPDX-License-Identifier: Apache-2.0
"""kill -9 and SIGSTOP of a worker in the middle of a query: the right answer, natively, and nothing left behind.

The moment of a blow is drawn from the time that a query takes, so these are slow tests; that a lost output is computed
again is tested at fixed points in test_recovery.py.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import volley
from volley.bench.compare import RELATIVE_TOLERANCE, difference
from volley.bench.order import sort_columns
from volley.bench.queries import QUERIES, query_text
from volley.cluster import LocalCluster
from volley.observe.report import QueryReport
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.proxy import LossyProxy
from volley.testing.rows import spark_rows
from volley.testing.session import conf
from volley.transport.flight import close_fleets

SOME = ("q03", "q18")
SHUFFLED = {"spark.sql.autoBroadcastJoinThreshold": "-1", **DISTRIBUTED_SETTINGS}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(3, cores=1, memory="512m", arguments=("--dir", str(tmp_path))) as running:
        yield running
        close_fleets()
    # What a killed worker had on disk is removed by a process that waits for its end, so just after it.
    deadline = time.monotonic() + 30
    while list(tmp_path.iterdir()):
        assert time.monotonic() < deadline, f"a worker left {list(tmp_path.rglob('*'))}"
    assert not list(Path("/dev/shm").glob("volley*")), "a worker left shared memory"
    assert all(not Path(f"/proc/{member.pid}").exists() for member in running.members), "a worker runs on"


def answer(spark: SparkSession, name: str) -> tuple[pa.Table, QueryReport]:
    table = spark.sql(query_text(name)).toArrow()
    report = volley.last_query(spark)
    assert report is not None
    return table, report


def strike_during(
    spark: SparkSession, cluster: LocalCluster, name: str, seed: int, blow: signal.Signals
) -> None:
    """Run a query while a worker, chosen by `seed`, is struck at a moment chosen by `seed`."""
    chance = random.Random(seed)
    expected = spark_rows(spark, query_text(name))
    columns = sort_columns(spark.sql(query_text(name)))
    started = time.monotonic()
    answer(spark, name)
    seconds = time.monotonic() - started
    victim = chance.choice([member for member in cluster.members if member.alive])
    timer = threading.Timer(chance.uniform(0, seconds), os.kill, (victim.pid, blow))
    timer.start()
    try:
        actual, report = answer(spark, name)
    finally:
        timer.join()
    assert difference(expected, actual, columns, RELATIVE_TOLERANCE) is None
    assert report.engine == "native", report


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_a_killed_worker(tpch: SparkSession, cluster: LocalCluster, name: str) -> None:
    with conf(tpch, cluster.settings | SHUFFLED):
        strike_during(tpch, cluster, name, seed=1, blow=signal.SIGKILL)
        strike_during(tpch, cluster, name, seed=2, blow=signal.SIGKILL)
    healthy = [health for health in cluster.health() if health]
    assert len(healthy) == 1
    assert not healthy[0].held_bytes


@pytest.mark.slow
def test_a_worker_that_hangs(tpch: SparkSession, cluster: LocalCluster) -> None:
    deadline = {"spark.volley.worker.timeoutSeconds": "3"}
    with conf(tpch, cluster.settings | SHUFFLED | deadline):
        strike_during(tpch, cluster, "q03", seed=3, blow=signal.SIGSTOP)


@pytest.mark.slow
def test_a_worker_that_comes_back_takes_part_again(tpch: SparkSession, cluster: LocalCluster) -> None:
    victim = cluster.members[0]
    port = int(victim.address.rpartition(":")[2])
    with conf(tpch, cluster.settings | SHUFFLED):
        answer(tpch, "q03")
        os.kill(victim.pid, signal.SIGKILL)
        victim.process.wait()
        answer(tpch, "q03")
        cluster.add(port=port)
        deadline = time.monotonic() + 60
        # Absent workers are asked again every few seconds; until then queries run on the two others.
        while answer(tpch, "q03")[1].stages[0].planned_tasks < 3:
            assert time.monotonic() < deadline, "the new worker was not noticed"


@pytest.fixture
def proxies(cluster: LocalCluster) -> Iterator[list[LossyProxy]]:
    """One between the driver and each worker."""
    made = [LossyProxy(int(address.rpartition(":")[2])) for address in cluster.addresses]
    yield made
    close_fleets()
    for proxy in made:
        proxy.close()


@pytest.mark.slow
def test_all_connections_cut_for_a_moment(
    tpch: SparkSession, cluster: LocalCluster, proxies: list[LossyProxy]
) -> None:
    chance = random.Random(4)
    expected = spark_rows(tpch, query_text("q03"))
    columns = sort_columns(tpch.sql(query_text("q03")))

    def cut() -> None:
        for proxy in proxies:
            proxy.cut()

    def check() -> None:
        actual, report = answer(tpch, "q03")
        assert difference(expected, actual, columns, RELATIVE_TOLERANCE) is None
        assert report.engine == "native", report

    through_proxies = {"spark.volley.workers": ",".join(proxy.address for proxy in proxies)}
    strict = {"spark.volley.fallback": "error"}
    with conf(tpch, cluster.settings | SHUFFLED | through_proxies | strict):
        check()
        started = time.monotonic()
        check()
        seconds = time.monotonic() - started
        for _ in range(10):
            cut()
            check()
        for _ in range(10):
            timer = threading.Timer(chance.uniform(0, seconds), cut)
            timer.start()
            check()
            timer.join()


@pytest.mark.slow
def test_all_workers_killed_and_restarted_before_a_query(tpch: SparkSession, cluster: LocalCluster) -> None:
    expected = spark_rows(tpch, query_text("q03"))
    columns = sort_columns(tpch.sql(query_text("q03")))
    patient = {"spark.volley.worker.timeoutSeconds": "60", "spark.volley.fallback": "error"}
    with conf(tpch, cluster.settings | SHUFFLED | patient):
        answer(tpch, "q03")
        killed = list(cluster.members)
        for member in killed:
            os.kill(member.pid, signal.SIGKILL)
            member.process.wait()
        restart = threading.Thread(
            target=lambda: [cluster.add(port=int(member.address.rpartition(":")[2])) for member in killed]
        )
        restart.start()
        try:
            actual, report = answer(tpch, "q03")
        finally:
            restart.join()
    assert difference(expected, actual, columns, RELATIVE_TOLERANCE) is None
    assert report.engine == "native", report


@pytest.mark.slow
@pytest.mark.parametrize("name", QUERIES)
def test_every_query_survives_a_killed_worker(tpch: SparkSession, cluster: LocalCluster, name: str) -> None:
    with conf(tpch, cluster.settings | SHUFFLED):
        strike_during(tpch, cluster, name, seed=100 + int(name[1:]), blow=signal.SIGKILL)
