# SPDX-License-Identifier: Apache-2.0
"""Native rows that Spark reads, as Arrow, from whoever holds them; and queries with rows in both directions."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from helpers.crossings import ROWS, below, crossed, explain_modes, grouped, held_bytes, report_of
from helpers.waiting import eventually
from volley.bridge import spark_task_reader
from volley.bridge.arrow_source import divide_blocks
from volley.bridge.block_server import DriverBlockServer
from volley.bridge.boundary import EngineBoundary, Rows
from volley.bridge.spark_task_reader import Access
from volley.cluster import LocalCluster, health_of
from volley.config import Config
from volley.coordinator.materialized_result import MaterializedResult
from volley.deployment.factory import choose_deployment
from volley.errors import CrossingError, QueryCancelled
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.plan.nodes import Node
from volley.query import session_state
from volley.rpc.control import Health
from volley.security import Credentials, Security
from volley.session_settings import read_settings
from volley.shuffle.base import Block
from volley.shuffle.factory import ShuffleConfig, serving_store
from volley.shuffle.location import Location
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf
from volley.transport.flight import close_fleets
from volley.transport.spark import shared_application

SCHEMA = pa.schema([("c0", pa.string()), ("c1", pa.int64())])

# Its tables are small, and rows are to cross between several tasks.
pytestmark = pytest.mark.usefixtures("distributed", "functions_on_spark")


# ------------------------------------------------------------------------------------------------ in this process


@pytest.fixture
def served() -> Iterator[DriverBlockServer]:
    """The driver's own store, with the rows of one attempt."""
    security = Security("secret")
    made = DriverBlockServer(
        "127.0.0.1", "127.0.0.1", security, False, partial(serving_store, Config.read({}))
    )
    yield made
    made.close()


def kept_blocks(served: DriverBlockServer, partitions: int = 3) -> tuple[Block, ...]:
    sink = served.store.sink(AttemptId(TaskId(StageId(QueryId("q"), 0), 0), 0), partitions)
    for number in range(partitions):
        sink.write(number, ROWS)
    return sink.commit()


def access(token: str = "secret") -> Access:
    store = ShuffleConfig.of(Config.read({"spark.volley.shuffle.retryAttempts": "0"}))
    return Access(Credentials(token), store)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if readers were on another machine than holders."""
    monkeypatch.setattr(Location, "on_this_host", False)


def read_by_place(served: DriverBlockServer) -> None:
    read = spark_task_reader.reader(access(), [[block] for block in kept_blocks(served)], [1, 0], SCHEMA)
    batches = list(read(iter([pa.record_batch({"id": [0, 2]})])))
    assert pa.Table.from_batches(batches) == pa.Table.from_arrays(
        [pa.chunked_array([ROWS.column(place)] * 2) for place in (1, 0)], schema=SCHEMA
    )


def test_rows_are_read_by_place(served: DriverBlockServer) -> None:
    read_by_place(served)


def test_rows_are_read_over_flight(served: DriverBlockServer, elsewhere: None) -> None:
    read_by_place(served)


def test_a_wrong_token_reads_nothing(served: DriverBlockServer, elsewhere: None) -> None:
    (block, *_) = kept_blocks(served)
    with pytest.raises(CrossingError, match="native rows cannot be read"):
        list(spark_task_reader.rows(access("other"), [block], [1, 0], SCHEMA))


def test_what_was_freed_is_an_error_and_not_empty(
    served: DriverBlockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block, *_) = kept_blocks(served)
    served.store.release(QueryId("q"))
    for near in (True, False):
        monkeypatch.setattr(Location, "on_this_host", near)
        with pytest.raises(CrossingError, match="SHUFFLE_BLOCK_MISSING"):
            list(spark_task_reader.rows(access(), [block], [1, 0], SCHEMA))


@pytest.mark.parametrize(
    ("host", "options", "can"),
    [
        ("127.0.0.1", {}, True),
        ("192.0.2.7", {}, False),
        ("192.0.2.7", {"executor.insecure": "true"}, True),
        ("192.0.2.7", {"tls.certificateFile": "cert.pem"}, True),
        ("192.0.2.7", {"transport": "flight"}, True),
        ("192.0.2.7", {"shuffle.store": "file:///shared"}, True),
    ],
)
def test_a_driver_listens_beyond_loopback_only_where_it_may(
    host: str, options: dict[str, str], can: bool
) -> None:
    class Context:
        """Of a cluster."""

        master = "spark://master:7077"

        def getConf(self) -> dict[str, str]:
            return {"spark.driver.host": host}

    class Session:
        sparkContext = Context()

    config = Config.read({f"spark.volley.{key}": value for key, value in options.items()})
    assert choose_deployment(Session(), config).serves_spark is can  # type: ignore[arg-type]


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(access())


def test_everybody_reads_about_as_much() -> None:
    attempt = AttemptId(TaskId(StageId(QueryId("q"), 0), 0), 0)
    blocks = [Block(attempt, number, "here", 1, size) for number, size in enumerate([90, 10, 50, 40, 10, 0])]
    shares = divide_blocks(blocks, 2)
    assert sorted(sum(block.size_bytes for block in share) for share in shares) == [100, 100]
    assert sorted(block for share in shares for block in share) == blocks
    assert len(divide_blocks(blocks, 100)) == 6
    assert divide_blocks([], 7) == [[]]


# ------------------------------------------------------------------------------------------------------- with Spark


def test_nested_types_cross(spark: SparkSession, tmp_path: Path) -> None:
    text = """
        select id % 50 as k, if(id % 7 = 0, null, struct(id as number, concat('n', id) as name)) as pair,
               if(id % 5 = 0, null, array(id, if(id % 3 = 0, null, id + 1))) as numbers,
               struct(array(cast(id as decimal(12, 2))) as inner) as deep
        from range(500)
    """
    with conf(spark, {"spark.volley.enabled": "false"}):
        spark.sql(text).write.parquet(str(tmp_path / "nested"))
    same = F.udf(lambda number: number, "long")

    def query(spark: SparkSession) -> DataFrame:
        rows = spark.read.parquet(str(tmp_path / "nested"))
        most = rows.groupBy("k").agg(F.count("*").alias("n")).withColumnRenamed("k", "most")
        return rows.join(most, F.col("k") == F.col("most")).withColumn("same", same("n"))

    assert_same_rows(spark, query, native=False)
    assert report_of(spark).engine == "mixed", report_of(spark).reasons
    with conf(spark, {"spark.volley.enabled": "false"}):
        plain = query(spark)
    running, part = crossed(spark, query(spark))
    with closing(running):
        crossed_types = [field.dataType for field in part.frame(running.boundary).schema]
    assert crossed_types == [field.dataType for field in plain.schema]


def test_no_rows_at_all(tpch: SparkSession) -> None:
    assert_same_rows(tpch, lambda spark: grouped(spark).where("o_orderstatus = 'nothing'"), native=False)
    assert report_of(tpch).engine == "mixed"
    assert report_of(tpch).rows == 0


def test_a_column_that_is_asked_for_twice(tpch: SparkSession) -> None:
    def query(spark: SparkSession) -> DataFrame:
        rows = grouped(spark)
        return rows.select("o_custkey", F.col("o_custkey").alias("again"), "d", "same", "o_custkey")

    assert_same_rows(tpch, query, native=False)
    assert report_of(tpch).engine == "mixed"


def test_rows_that_do_not_fit_into_memory(tpch: SparkSession) -> None:
    with conf(tpch, {"spark.volley.shuffle.memoryFraction": "1e-9", "spark.volley.local.workers": "2"}):
        assert_same_rows(tpch, grouped, native=False)
    assert report_of(tpch).engine == "mixed"
    assert sum(stage.shuffle_spilled_bytes for stage in report_of(tpch).stages) > 0


def test_many_tasks_read_what_is_kept(tpch: SparkSession) -> None:
    grouped(tpch).collect()
    # One for the rows of each of two shares; nothing else of this query is Spark's.
    assert report_of(tpch).spark_tasks == tpch.sparkContext.defaultParallelism


def test_spark_knows_how_much_it_reads(tpch: SparkSession) -> None:
    """A relation that it takes for small would be sent whole to every task of a join."""
    query, part = crossed(tpch, grouped(tpch))
    with closing(query):
        size_bytes = int(part.logical(query.boundary).stats().sizeInBytes())
    with conf(tpch, {"spark.volley.enabled": "false"}):
        rows = grouped(tpch).drop("same").toArrow()
    assert rows.nbytes / 2 < size_bytes < rows.nbytes * 4


def test_no_plan_shows_the_token(tpch: SparkSession) -> None:
    query, part = crossed(tpch, grouped(tpch))
    tokens = []

    def noted(subplan: Node, resources: ExitStack) -> tuple[MaterializedResult, Access]:
        kept, access = query.materialize(subplan, resources)
        tokens.append(access.credentials.token)
        return kept, access

    with closing(query), closing(EngineBoundary(noted)) as boundary:
        frame = part.frame(boundary)
        execution = frame._jdf.queryExecution()
        (token,) = tokens
        assert token is not None
        assert len(token) == 64
        texts = [execution.toString(), execution.logical().toJSON(), execution.executedPlan().toJSON()]
        texts += [execution.explainString(mode) for mode in explain_modes(tpch)]
        assert all(texts)
        assert not any(token in text for text in texts)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_is_left_behind(tpch: SparkSession) -> None:
    grouped(tpch).collect()  # what stays for all queries is made by the first
    threads, files = set(threading.enumerate()), open_files()
    for test in (lambda number: True, lambda number: 1 // 0):
        with suppress(Exception):
            grouped(tpch).where(F.udf(test, "boolean")("same")).collect()
        assert not session_state.running(tpch)
    assert set(threading.enumerate()) <= threads
    # The connections to Spark of threads that have ended are closed a little later.
    eventually(lambda: open_files() <= files)


def test_it_can_be_cancelled_while_spark_reads(tpch: SparkSession, tmp_path: Path) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go on"

    def wait(number: int) -> int:
        begun.touch()
        deadline = time.monotonic() + 60
        while not go_on.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return number

    # Far more rows than Spark has read when the first of them waits.
    rows = tpch.table("lineitem").groupBy("l_orderkey", "l_linenumber").agg(F.max("l_comment").alias("c"))
    frame = rows.withColumn("same", F.udf(wait, "long")("l_orderkey"))
    raised: list[BaseException] = []

    def collect() -> None:
        try:
            frame.collect()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=collect)
    thread.start()
    deadline = time.monotonic() + 60
    while not begun.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    deadline = time.monotonic() + 30
    assert volley.cancel(tpch) == 1
    # Its job is stopped: nobody waits for what the tasks wait for.
    thread.join(120)
    go_on.touch()
    thread.join(60)
    assert isinstance(raised[0], QueryCancelled), raised
    assert time.monotonic() < deadline


# ---------------------------------------------------------------------------------------------------- with workers


def test_workers_keep_the_rows_until_spark_has_read_them(tpch: SparkSession, cluster: LocalCluster) -> None:
    with conf(tpch, cluster.settings):
        query, part = crossed(tpch, grouped(tpch))
        with closing(query):
            part.logical(query.boundary)
            assert held_bytes(cluster) > 0
        assert held_bytes(cluster) == 0
        assert_same_rows(tpch, grouped, native=False)
        assert report_of(tpch).engine == "mixed"
        assert held_bytes(cluster) == 0


@pytest.mark.parametrize("replayed", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_holder_that_dies_before_spark_has_read(
    tpch: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replayed: bool
) -> None:
    """Spark runs the query after all; a write, which Spark's writer has begun, says what happened instead."""
    computed = EngineBoundary.rows

    with LocalCluster(2) as doomed:

        def kill_a_holder(boundary: EngineBoundary, plan: Node) -> Rows:
            rows = computed(boundary, plan)
            holder = next(block.location.partition("#")[0] for block in rows.blocks)
            for member in doomed.members:
                if member.address == holder:
                    os.kill(member.pid, signal.SIGKILL)
                    member.process.wait()
            return rows

        monkeypatch.setattr(EngineBoundary, "rows", kill_a_holder)
        with conf(tpch, {**doomed.settings, "spark.volley.shuffle.retryAttempts": "0"}):
            if replayed:
                with pytest.warns(UserWarning, match="Volley failed and Spark runs the query"):
                    assert_same_rows(tpch, grouped, native=False)
                assert report_of(tpch).engine == "spark"
                assert "native rows cannot be read" in str(report_of(tpch).reasons[0])
            else:
                with pytest.raises(CrossingError, match="native rows cannot be read"):
                    grouped(tpch).write.format("json").save(str(tmp_path / "rows"))
        close_fleets()


# --------------------------------------------------------------------------------------------- in both directions


@pytest.mark.slow
@pytest.mark.parametrize("store", ["file", "service"])
def test_rows_cross_through_a_shared_store(tpch: SparkSession, tmp_path: Path, store: str) -> None:
    chosen = {"spark.volley.shuffle.store": tmp_path.as_uri()} if store == "file" else {}
    services = 2 if store == "service" else 0
    with (
        LocalCluster(2, settings=chosen, services=services) as cluster,
        conf(tpch, {**cluster.settings, **chosen}),
    ):
        for query in (grouped, below):
            assert_same_rows(tpch, query, native=False)
            assert report_of(tpch).engine == "mixed"
        close_fleets()
    if store == "file":
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_sidecars_let_go_of_what_crossed(tpch: SparkSession) -> None:
    with conf(tpch, {"spark.volley.transport": "spark"}):
        for query in (grouped, below):
            assert_same_rows(tpch, query, native=False)
            assert report_of(tpch).engine == "mixed"
        shared = shared_application(tpch.sparkContext, Config.read(read_settings(tpch)))
        assert shared.holders
        for holder in shared.holders:
            health = health_of(holder, shared.security)
            assert isinstance(health, Health)
            assert health.held_bytes == 0
