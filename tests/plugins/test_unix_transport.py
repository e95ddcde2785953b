# SPDX-License-Identifier: Apache-2.0
"""The example transport over Unix sockets keeps the contract, and answers TPC-H, without Flight."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from helpers.answers import Answers
from volley.bench.queries import QUERIES
from volley.plugins import TRANSPORTS, load
from volley.security import Security
from volley.shuffle import ShuffleStore
from volley.testing.contracts import ShuffleStoreContract, TransportContract
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf
from volley.transport import Transport, TransportContext, TransportFactory

pytestmark = pytest.mark.usefixtures("example_plugins")

# One with shuffle joins and a subquery, one with a left join and aggregates of aggregates.
SOME = ("q11", "q13")


@dataclass(frozen=True)
class Workers:
    processes: dict[str, subprocess.Popen[str]]

    @property
    def settings(self) -> dict[str, str]:
        return {
            "spark.volley.transport": "unix",
            "spark.volley.plugin.unix.sockets": ",".join(self.processes),
            **DISTRIBUTED_SETTINGS,
        }


@contextmanager
def start_workers(directory: Path, count: int, *arguments: str) -> Iterator[Workers]:
    paths = [str(directory / f"{number}.sock") for number in range(count)]
    command = [sys.executable, "-m", "volley_unix.worker", "--parent", str(os.getpid()), "--tasks", "2"]
    processes = {
        path: subprocess.Popen([*command, *arguments, path], stdout=subprocess.PIPE, text=True)
        for path in paths
    }
    try:
        for path, process in processes.items():
            assert process.stdout is not None
            # It prints its path when it listens.
            assert process.stdout.readline().strip() == path
        yield Workers(processes)
    finally:
        for process in processes.values():
            process.terminate()
            process.communicate()


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory, example_plugins: None) -> Iterator[Workers]:
    with start_workers(tmp_path_factory.mktemp("sockets"), 2) as running:
        yield running


@pytest.fixture
def on_sockets(tpch: SparkSession, workers: Workers) -> Iterator[SparkSession]:
    with conf(tpch, workers.settings):
        yield tpch


class TestUnixTransport(TransportContract):
    @pytest.fixture
    def make_transport(self, workers: Workers) -> Callable[[int], Transport]:
        open_transport: TransportFactory = load(TRANSPORTS, "unix")
        settings = {"unix.sockets": ",".join(workers.processes)}

        def make(count: int) -> Transport:
            assert count == len(workers.processes)
            return open_transport(TransportContext(settings, (), 10.0, Security(), None))

        return make


class TestSocketStore(ShuffleStoreContract):
    """The store of its workers; those of other processes are read in the suite of the transport."""

    @pytest.fixture
    def store(self) -> ShuffleStore:
        store: ShuffleStore = import_module("volley_unix.store").SocketStore("here")
        return store


def test_some_queries_of_tpch(on_sockets: SparkSession, answers: Answers) -> None:
    for query in SOME:
        answers.check(on_sockets, query)


@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES)
def test_tpch(on_sockets: SparkSession, answers: Answers, query: str) -> None:
    answers.check(on_sockets, query)


def test_rows_of_spark_reach_the_workers(on_sockets: SparkSession) -> None:
    """A Python function, which these workers do not run, below what they do run."""

    def joined(spark: SparkSession) -> DataFrame:
        same = F.udf(lambda number: number, "long")
        orders = spark.table("orders").select(same("o_custkey").alias("c_custkey"))
        return orders.join(spark.table("customer"), "c_custkey").groupBy("c_mktsegment").count()

    assert_same_rows(on_sockets, joined, native=False)
    report = volley.last_query(on_sockets)
    assert report is not None
    assert report.engine == "mixed"


def test_a_worker_that_dies_costs_its_tasks_alone(
    tpch: SparkSession, answers: Answers, tmp_path: Path
) -> None:
    with start_workers(tmp_path, 3) as workers, conf(tpch, workers.settings):
        answers.check(tpch, SOME[0])
        victim = next(iter(workers.processes.values()))
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        answers.check(tpch, SOME[0])


def test_neither_the_transport_nor_its_workers_use_flight(workers: Workers) -> None:
    code = "import sys, volley_unix.worker, volley_unix.transport; print('pyarrow.flight' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
