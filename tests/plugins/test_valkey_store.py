# SPDX-License-Identifier: Apache-2.0
"""The example store on a real Valkey or Redis server keeps both contracts, and answers TPC-H."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from helpers.answers import Answers
from helpers.waiting import eventually
from volley.bench.queries import QUERIES
from volley.cluster import LocalCluster
from volley.config import Config
from volley.errors import BlockMissing, ConfigError
from volley.ids import QueryId
from volley.plugins import STORES, load
from volley.security import Security
from volley.shuffle import SharedStore, ShuffleConfig, ShuffleStore
from volley.shuffle.factory import close_stores, new_store
from volley.testing.contracts import (
    SharedStoreContract,
    ShuffleStoreContract,
    attempt_id,
    read_values,
    write_block,
)
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.session import conf
from volley.testing.shuffle_configs import shuffle_config
from volley.transport.flight import close_fleets

redis = pytest.importorskip("redis", reason="needs the package redis, a client of Valkey and Redis servers")
pytestmark = pytest.mark.usefixtures("example_plugins")

SOME = ("q11", "q18")


@pytest.fixture(scope="module")
def port() -> int:
    """One that was free a moment ago: the server cannot say which it chose."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[str]:
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None:
        pytest.skip("needs valkey-server or redis-server, of the Debian package of the same name")
    path = tmp_path_factory.mktemp("valkey") / "server.sock"
    options = {"--unixsocket": str(path), "--port": str(port), "--bind": "127.0.0.1", "--save": ""}
    command = [program, *(word for option in options.items() for word in option)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=path.parent)
    try:
        eventually(path.exists)
        yield f"unix://{path}"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def server(url: str) -> Iterator[Any]:
    """A client of the server, which is empty before the test, and after it."""
    client = redis.Redis.from_url(url)
    client.flushall()
    yield client
    assert client.keys() == []
    client.close()


@pytest.fixture
def make_store(url: str, server: Any) -> Iterator[Callable[..., SharedStore]]:
    opened: list[SharedStore] = []

    def make(**options: Any) -> SharedStore:
        config = shuffle_config(store="valkey", plugin=(("valkey.url", url),))
        store: SharedStore = load(STORES, "valkey")(
            config, security=Security(), memory_limit_bytes=2**26, **options
        )
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


class TestValkeyStore(ShuffleStoreContract):
    @pytest.fixture
    def store(self, make_store: Callable[[], SharedStore]) -> ShuffleStore:
        store = make_store()
        for query in ("q", "a", "b"):
            store.begin(QueryId(query))
        return store


class TestSharedValkeyStore(SharedStoreContract):
    pass


def test_a_query_whose_driver_is_gone_expires(server: Any, make_store: Callable[..., SharedStore]) -> None:
    driver, worker = make_store(lease_seconds=3.0), make_store()
    driver.begin(QueryId("q"))
    (block,) = write_block(worker, attempt_id(), 1, 2)
    # Only its driver makes the time to live longer again.
    server.pexpire("volley:q", 2500)
    eventually(lambda: server.pttl("volley:q") > 2500)
    assert read_values(worker, block) == [1, 2]
    server.pexpire("volley:q", 1)
    eventually(lambda: not server.exists("volley:q"))
    with pytest.raises(BlockMissing):
        read_values(worker, block)
    with pytest.raises(BlockMissing):
        write_block(worker, attempt_id(1), 1)


def test_bytes_that_have_changed_are_not_read(server: Any, make_store: Callable[..., SharedStore]) -> None:
    store = make_store()
    store.begin(QueryId("q"))
    (block,) = write_block(store, attempt_id(), 1, 2)
    (chunk,) = [name for name in server.hkeys("volley:q") if name.endswith(b"/0/0")]
    value = server.hget("volley:q", chunk)
    server.hset("volley:q", chunk, value[:-9] + bytes([value[-9] ^ 1]) + value[-8:])
    with pytest.raises(BlockMissing, match="not what was written"):
        read_values(store, block)


def test_its_address_may_be_the_uri_of_the_store(server: Any, port: int) -> None:
    config = Config.read({"spark.volley.shuffle.store": f"valkey://127.0.0.1:{port}/0"})
    store = new_store(ShuffleConfig.of(config), Security(), 2**20)
    assert store is not None
    store.begin(QueryId("q"))
    (block,) = write_block(store, attempt_id(), 1, 2)
    assert server.exists("volley:q")
    assert read_values(store, block) == [1, 2]
    store.close()


def test_it_needs_a_url() -> None:
    with pytest.raises(ConfigError, match="needs the URL of its server"):
        load(STORES, "valkey")(shuffle_config(store="valkey"), security=Security(), memory_limit_bytes=0)
    config = shuffle_config(store="valkey://user:secret@localhost:1/0")
    with pytest.raises(ConfigError, match="has a password"):
        load(STORES, "valkey")(config, security=Security(), memory_limit_bytes=0)


@pytest.fixture
def settings(url: str, server: Any) -> Iterator[dict[str, str]]:
    yield {
        "spark.volley.shuffle.store": "valkey",
        "spark.volley.plugin.valkey.url": url,
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        **DISTRIBUTED_SETTINGS,
    }
    close_stores()


LOCAL = {"spark.volley.local.workers": "3"}


def test_some_queries_of_tpch(tpch: SparkSession, answers: Answers, settings: dict[str, str]) -> None:
    with conf(tpch, settings | LOCAL):
        for query in SOME:
            answers.check(tpch, query)


@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES)
def test_tpch(tpch: SparkSession, answers: Answers, settings: dict[str, str], query: str) -> None:
    with conf(tpch, settings | LOCAL):
        answers.check(tpch, query)


_ON_EXECUTORS = """
import json, sys
from volley.bench.compare import difference
from volley.bench.data import tpch_data
from volley.bench.engines import register_tables
from volley.bench.queries import query_text
from volley.bench.spark import start_spark
import volley

settings, queries = json.loads(sys.argv[1])
spark = start_spark("valkey", "local[2]", {"spark.driver.memory": "1g"} | settings)
register_tables(spark, tpch_data(0.01))
volley.disable(spark)
expected = {query: spark.sql(query_text(query)).toArrow() for query in queries}
volley.enable(spark)
for query in queries:
    problem = difference(expected[query], spark.sql(query_text(query)).toArrow())
    report = volley.last_query(spark)
    assert (report.engine, problem) == ("native", None), (query, report, problem)
"""


@pytest.mark.slow
def test_tpch_on_executors(settings: dict[str, str]) -> None:
    """In a session of its own: the Python of Spark's tasks has the path that the session was started with."""
    chosen = settings | {"spark.volley.transport": "spark"}
    command = [sys.executable, "-c", _ON_EXECUTORS, json.dumps([chosen, SOME])]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_tpch_on_worker_daemons(tpch: SparkSession, answers: Answers, settings: dict[str, str]) -> None:
    """They are started without options: the session brings its store."""
    with LocalCluster(2, cores=1) as cluster, conf(tpch, cluster.settings | settings):
        for query in QUERIES:
            answers.check(tpch, query)
        close_fleets()
