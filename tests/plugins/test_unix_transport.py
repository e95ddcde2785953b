# SPDX-License-Identifier: Apache-2.0
"""The example transport over Unix sockets keeps the contract, and answers TPC-H, without Flight."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from helpers.answers import Answers
from volley.bench.queries import QUERIES
from volley.config import Config
from volley.plan.nodes import Partitioning
from volley.plugins import TRANSPORTS, load
from volley.security import Security
from volley.shuffle import ShuffleConfig, ShuffleStore
from volley.shuffle.factory import close_stores, driver_store
from volley.shuffle.session_options import options_to_send
from volley.stages.graph import Output
from volley.testing.contracts import (
    ShuffleStoreContract,
    TransportContract,
    attempt_id,
    batch_of,
    commit_task,
    in_a_query,
    numbers,
    query_id,
    stage_task,
)
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


@pytest.mark.slow
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


def test_a_session_brings_its_store(workers: Workers, tmp_path: Path) -> None:
    """The workers were started without one."""
    config = Config.read({"spark.volley.shuffle.store": tmp_path.as_uri()})
    settings = options_to_send(config)
    shared = driver_store(ShuffleConfig.of(config), Security())
    sockets = {"unix.sockets": ",".join(workers.processes)}
    transport = load(TRANSPORTS, "unix")(TransportContext(sockets, (), 10.0, Security(), shared, settings))

    async def story() -> None:
        task = stage_task(numbers(10), Output(Partitioning.SINGLE), 0)
        done = await commit_task(transport, replace(task, settings=settings))
        endpoint = await transport.open_ingest(query_id())
        rows = batch_of(1, 2)
        pushed = await asyncio.to_thread(endpoint.push, attempt_id(7), 1, rows.schema, [rows])
        for block in (*done.blocks, *pushed.blocks):
            assert (block.outlives_worker, block.location) == (True, tmp_path.as_uri())
            assert sum(batch.num_rows for batch in transport.fetch(block)) == block.rows
        await transport.release(query_id())

    with in_a_query():
        asyncio.run(story())
    close_stores()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_spark_reads_native_rows_from_a_shared_store(on_sockets: SparkSession, tmp_path: Path) -> None:
    def on_top(spark: SparkSession) -> DataFrame:
        same = F.udf(lambda number: number, "long")
        days = (
            spark.table("orders").groupBy("o_custkey", "o_orderstatus").agg(F.max("o_orderdate").alias("day"))
        )
        return days.withColumn("same", same("o_custkey"))

    with conf(on_sockets, {"spark.volley.shuffle.store": tmp_path.as_uri()}):
        assert_same_rows(on_sockets, on_top, native=False)
        report = volley.last_query(on_sockets)
        assert report is not None
        assert report.engine == "mixed"
    close_stores()
    # Without one they cannot reach it, so Spark runs everything.
    assert_same_rows(on_sockets, on_top, native=False)
    report = volley.last_query(on_sockets)
    assert report is not None
    assert report.engine == "spark"


@pytest.mark.slow
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
