# SPDX-License-Identifier: Apache-2.0
"""Daemons are replaced one after the other while queries run, as in an upgrade: none of them fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

import volley
from volley.bench.compare import RELATIVE_TOLERANCE, difference
from volley.bench.order import sort_columns
from volley.bench.queries import query_text
from volley.cluster import LocalCluster, Member
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import spark_rows
from volley.testing.session import conf
from volley.transport.flight import close_fleets

QUERIES = ("q03", "q05", "q18")
SETTINGS = {"spark.sql.autoBroadcastJoinThreshold": "-1", **DISTRIBUTED_SETTINGS}
# As docs/upgrading.md says.
DRAIN_SECONDS = 60


class Load:
    """Queries, one after the other, until `stop`; what went wrong with them is in `problems`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._expected = {name: spark_rows(spark, query_text(name)) for name in QUERIES}
        self._columns = {name: sort_columns(spark.sql(query_text(name))) for name in QUERIES}
        self._stopped = threading.Event()
        self._answered = threading.Condition()
        self.answers = 0
        self.problems: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait_for(self, answers: int) -> None:
        """Wait until so many more queries are over."""
        with self._answered:
            target = self.answers + answers
            assert self._answered.wait_for(lambda: self.answers >= target or self.problems, 120)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for name in QUERIES:
                problem = self._ask(name)
                with self._answered:
                    self.answers += 1
                    if problem:
                        self.problems.append(f"{name}: {problem}")
                    self._answered.notify_all()

    def _ask(self, name: str) -> str | None:
        try:
            found = self._spark.sql(query_text(name)).toArrow()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        report = volley.last_query(self._spark)
        if report is None or report.engine != "native":
            return f"it was not native: {report}"
        return difference(self._expected[name], found, self._columns[name], RELATIVE_TOLERANCE)


@contextmanager
def load(spark: SparkSession) -> Iterator[Load]:
    running = Load(spark)
    try:
        yield running
    finally:
        running.stop()


def replace_worker(cluster: LocalCluster, member: Member) -> None:
    cluster.release(member)
    assert member.process.wait(DRAIN_SECONDS) == 0
    cluster.add(port=int(member.address.rpartition(":")[2]))


def replace_server(cluster: LocalCluster, number: int) -> None:
    server = cluster.servers[number]
    server.process.terminate()
    assert server.process.wait(DRAIN_SECONDS) == 0
    cluster.restart_servers(number)


@pytest.mark.slow
@pytest.mark.parametrize("services", [0, 3], ids=["memory", "service"])
def test_no_query_fails(tpch: SparkSession, services: int) -> None:
    with LocalCluster(3, cores=1, memory="512m", services=services) as cluster:
        steps: list[Callable[[], None]] = [
            *(lambda member=member: replace_worker(cluster, member) for member in list(cluster.members)),
            *(lambda number=number: replace_server(cluster, number) for number in range(services)),
        ]
        with conf(tpch, cluster.settings | SETTINGS), load(tpch) as queries:
            queries.wait_for(1)
            for step in steps:
                step()
                # So that the new one is known before the next one goes.
                queries.wait_for(2)
            queries.wait_for(1)
        close_fleets()
        assert queries.problems == []
        assert queries.answers > 2 * len(steps)
        assert all(health and not health.held_bytes for health in cluster.health())
