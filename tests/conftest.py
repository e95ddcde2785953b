# SPDX-License-Identifier: Apache-2.0
"""One Spark session for all tests of a process: starting Java costs seconds, and most tests need only fresh settings.

`pytest --transport flight --store service tests/...` runs what takes `spark` on another transport and shuffle store.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import volley
from helpers.answers import Answers
from helpers.costs import Costs
from helpers.leaves import leaf_frames
from helpers.opened_stores import close_stores, lease_threads
from helpers.releases import is_before
from helpers.tables import frames
from helpers.waiting import eventually
from volley.bench.data import tpch_data
from volley.bench.engines import register_tables
from volley.cluster import LocalCluster
from volley.spark_versions.classic import collect_table
from volley.spark_versions.registry import VERSIONS, current
from volley.testing.deployments import STORES, TRANSPORTS, Deployment, deploy
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.session import restore_conf
from volley.transport.flight import close_fleets

# The same cases every time: a build must not fail because of what chance drew, nor because the machine was busy.
# HYPOTHESIS_PROFILE=random looks further.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# Queries of tests do not belong into the history of whoever runs them. Child processes inherit this, too.
if "VOLLEY_TEST_STATE" not in os.environ:
    os.environ["VOLLEY_TEST_STATE"] = os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="volley-state-")
    atexit.register(shutil.rmtree, os.environ["VOLLEY_TEST_STATE"], ignore_errors=True)

# Java's better compiler and its collector for large heaps are slow to start. Child processes inherit this.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
)

if not current().has_to_arrow:
    # Tests compare rows as Arrow tables.
    DataFrame.toArrow = collect_table  # type: ignore[method-assign, assignment]
if not hasattr(PySparkException, "getCondition"):
    PySparkException.getCondition = PySparkException.getErrorClass  # type: ignore[method-assign]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("volley")
    group.addoption("--transport", choices=TRANSPORTS, default="local", help="how tasks reach workers")
    group.addoption("--store", choices=STORES, default="memory", help="where exchanged data is kept")
    group.addoption("--sample", type=int, default=1, metavar="N", help="one in N tests, always the same")
    group.addoption(
        "--own-defaults", action="store_true", help="an older Spark with its own default settings"
    )
    group.addoption("--record-costs", action="store_true", help="write tests/helpers/tpch_costs.csv anew")


SLOW_TIMEOUT_SECONDS = 1500


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests that need Java are marked, so that `-m "not spark"` selects the others. Slow ones may take longer."""
    if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
        item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_SECONDS))
    if isinstance(item, pytest.Function) and "spark_session" in item.fixturenames:
        item.add_marker("spark")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of the embedded mode itself are left out when another deployment was asked for.

    Files that need Java come first. They take longest, and a long file at the end would leave the other processes idle.
    """
    _leave_out(config, items, _is_too_new)
    one_in: int = config.getoption("--sample")
    _leave_out(config, items, lambda item: crc32(item.nodeid.encode()) % one_in != 0)
    long = {item.path for item in items if item.get_closest_marker("spark")}
    items.sort(key=lambda item: item.path not in long)
    if (config.getoption("--transport"), config.getoption("--store")) == (TRANSPORTS[0], STORES[0]):
        return
    _leave_out(config, items, lambda item: item.get_closest_marker("embedded") is not None)


def _is_too_new(item: pytest.Item) -> bool:
    """Whether the test is about something that this release of Spark does not have."""
    # A parameter may be newer than its test.
    return any(is_before(since.args[0]) for since in item.iter_markers("since"))


def _leave_out(
    config: pytest.Config, items: list[pytest.Item], condition: Callable[[pytest.Item], bool]
) -> None:
    config.hook.pytest_deselected(items=[item for item in items if condition(item)])
    items[:] = [item for item in items if not condition(item)]


@pytest.fixture(autouse=True)
def no_open_stores() -> Iterator[None]:
    """Object stores that a test leaves open renew leases, and log, in the tests after it."""
    before = lease_threads()
    yield
    close_stores()
    assert lease_threads() <= before


@pytest.fixture(scope="session")
def spark_session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """The session itself. Tests take `spark`, which gives it back as it was."""
    # Otherwise Spark's Python workers are whatever python3 is on PATH, without our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    warehouse = tmp_path_factory.mktemp("warehouse")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("volley tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        # Thousands of tiny queries: compiling each of them to Java costs far more than running it.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.warehouse.dir", str(warehouse))
        .config(map={} if request.config.getoption("--own-defaults") else dict(current().later_defaults))
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def deployment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """The workers and the shuffle store of `--transport` and `--store`."""
    transport, store = request.config.getoption("--transport"), request.config.getoption("--store")
    with deploy(transport, store, tmp_path_factory.mktemp("deployment")) as found:
        yield found
        eventually(found.is_empty)


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Three worker daemons for all tests of a process. A test that stops or kills some starts its own."""
    with LocalCluster(3, cores=1, memory="512m") as running:
        yield running
        close_fleets()


@pytest.fixture
def spark(spark_session: SparkSession, deployment: Deployment) -> Iterator[SparkSession]:
    """The session with Volley enabled; settings that a test leaves behind, and its views, are gone after it."""
    before = _views(spark_session)
    with restore_conf(spark_session):
        volley.enable(spark_session)
        # One task would read the small tables of tests, and nothing would cross the transport or reach the store.
        chosen = deployment.settings | DISTRIBUTED_SETTINGS if deployment.settings else {}
        for key, value in chosen.items():
            spark_session.conf.set(key, value)
        yield spark_session
    for view in _views(spark_session) - before:
        spark_session.catalog.dropTempView(view)


@pytest.fixture
def distributed(spark: SparkSession) -> SparkSession:
    """`spark`, told to distribute even the small tables of tests: by default one task would read them."""
    for key, value in DISTRIBUTED_SETTINGS.items():
        spark.conf.set(key, value)
    return spark


@pytest.fixture
def functions_on_spark(spark: SparkSession) -> SparkSession:
    """`spark`, told to leave Python functions to Spark: for queries that no engine runs alone."""
    spark.conf.set("spark.volley.pythonFunctions", "false")
    return spark


@pytest.fixture
def shared_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """For programs that start a session and stop it: they are given the one of the tests, which stays."""
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)
    return spark


def _views(spark: SparkSession) -> set[str]:
    """The session's temporary views, without the Spark query that listing tables would be."""
    found = spark._jsparkSession.sessionState().catalog().listLocalTempViews("*").mkString(",")
    return {name.strip("`") for name in found.split(",") if name}


@pytest.fixture(scope="session")
def tpch_directory() -> Path:
    """TPC-H at scale 0.01, kept in the user's cache from one run to the next."""
    return tpch_data(0.01)


@pytest.fixture(scope="session")
def tpch_views(spark_session: SparkSession, tpch_directory: Path) -> None:
    """Registered once: each reading of a schema is a Spark job."""
    register_tables(spark_session, tpch_directory)


@pytest.fixture
def tpch(spark: SparkSession, tpch_views: None) -> SparkSession:
    """`spark` with a view for each TPC-H table."""
    return spark


@pytest.fixture(scope="session")
def answers() -> Answers:
    return Answers()


@pytest.fixture(scope="session")
def costs(request: pytest.FixtureRequest) -> Iterator[Costs]:
    """What TPC-H queries cost by default, with the newest release of Spark."""
    option = request.config.getoption
    default = (option("--transport"), option("--store")) == (TRANSPORTS[0], STORES[0])
    newest = current().release == VERSIONS[-1].release
    known = Costs(record=option("--record-costs"), applies=default and newest)
    yield known
    known.save()


@pytest.fixture(scope="session")
def table_frames(
    spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, DataFrame]:
    """Made once: finding the files of a table takes Spark longer than reading them."""
    return frames(spark_session, tmp_path_factory.mktemp("tables"))


@pytest.fixture
def tables(spark: SparkSession, table_frames: dict[str, DataFrame]) -> SparkSession:
    """`spark` with the views of `tables.py`."""
    for name, frame in table_frames.items():
        frame.createOrReplaceTempView(name)
    return spark


@pytest.fixture(scope="session")
def leaf_views(
    spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, DataFrame]]:
    with leaf_frames(spark_session, tmp_path_factory.mktemp("leaves")) as frames:
        yield frames


@pytest.fixture
def leaves(distributed: SparkSession, leaf_views: dict[str, DataFrame]) -> SparkSession:
    """The session with the views of `helpers/leaves.py`, whose few rows are exchanged nevertheless."""
    # One of the views is there to be read by Spark.
    distributed.conf.set("spark.volley.pythonFunctions", "false")
    # Spark forgets what it cached when the view of it is dropped, as it is after each test.
    leaf_views["cached"].cache()
    for name, frame in leaf_views.items():
        frame.createOrReplaceTempView(name)
    return distributed
