# SPDX-License-Identifier: Apache-2.0
"""Sessions of Spark Connect whose server is in this process run natively, with the rows and types of the server."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from pyspark.errors import AnalysisException, ArithmeticException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

import volley
from helpers.running_queries import assert_quiet
from helpers.waiting import PATIENCE_SECONDS, eventually
from volley.connect.relations import is_only_planned
from volley.errors import ConnectServerElsewhere, QueryCancelled
from volley.plan.jvm import singleton
from volley.query import session_state

pytest.importorskip("grpc")


@pytest.fixture(scope="module")
def server(spark_session: SparkSession) -> Iterator[str]:
    """A Connect server in the JVM of the tests, as `.remote("local[*]")` starts one in a fresh process."""
    jvm: Any = spark_session._jvm
    context = spark_session.sparkContext._jsc.sc()
    context.conf().set("spark.connect.grpc.binding.port", "0")
    gateway = spark_session.sparkContext._gateway
    service = singleton(gateway, "org.apache.spark.sql.connect.service.SparkConnectService")
    service.start(context)
    yield f"sc://localhost:{service.localPort()}"
    service.stop(jvm.scala.Option.empty(), jvm.scala.Option.empty())


@pytest.fixture
def connected(server: str) -> Iterator[Any]:
    """A fresh Connect session, with Volley enabled."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    session: Any = ConnectSession.builder.remote(server).create()
    yield volley.enable(session)
    session.stop()


QUERIES = {
    "aggregate": "select id % 3 as k, count(*) as n, sum(id) as s, avg(id) as a from range(100) group by 1",
    "join": "select a.id, b.id as other from range(20) a left join range(5, 30) b on a.id = b.id",
    "types": """
        select cast(id as tinyint) as b, cast(id as decimal(12, 3)) as d, cast(id as string) as s, id / 7 as f,
               date_add(date'2020-02-28', cast(id as int)) as day, timestamp_seconds(id * 86399) as t,
               cast(timestamp'2021-01-01 00:00:00' as timestamp_ntz) as ntz, encode(cast(id as string), 'utf-8') as raw,
               array(id, null) as list, named_struct('x', id, 'y', cast(id as string)) as pair, null as nothing
        from range(5)
    """,
    "no rows": "select id, cast(id as string) as s from range(10) where id > 50",
    "repeated names": "select id, id + 1 as id from range(3)",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
def test_rows_and_types_are_those_of_the_server(connected: Any, query: str) -> None:
    native, report = answers(connected, query), volley.last_query(connected)
    assert report is not None
    assert (report.engine, report.spark_tasks) == ("native", 0)
    volley.disable(connected)
    assert native == answers(connected, query)


def answers(connected: Any, query: str) -> tuple[Any, ...]:
    frame = connected.sql(query)
    rows = sorted(frame.collect(), key=str)
    return rows, [type(value) for row in rows[:1] for value in row], frame.toArrow().schema, frame.schema


def test_fields_that_share_a_name_have_their_values(connected: Any) -> None:
    def answers() -> tuple[str, str]:
        frame = connected.sql("select named_struct('a', id, 'a', string(id)) s from range(3) order by id")
        return repr(frame.collect()), repr(frame.toPandas().values.tolist())

    connected.conf.set("spark.sql.execution.pandas.structHandlingMode", "dict")
    native, report = answers(), volley.last_query(connected)
    assert report is not None
    assert report.engine == "native"
    volley.disable(connected)
    assert native == answers()


def test_every_action_is_native(connected: Any) -> None:
    frame = connected.range(50).selectExpr("id", "id % 4 as k")
    engines = []

    def note() -> None:
        report = volley.last_query(connected)
        assert report is not None
        engines.append((report.engine, report.spark_tasks))

    assert frame.count() == 50
    note()
    assert len(frame.toPandas()) == 50
    note()
    assert len(list(frame.toLocalIterator())) == 50
    note()
    assert frame.orderBy("id").head(2)[1].id == 1
    note()
    assert not frame.isEmpty()
    note()
    assert [row.id for row in frame.orderBy("id").tail(2)] == [48, 49]
    note()
    assert engines == [("native", 0)] * 6


def test_show_is_native(connected: Any, capsys: pytest.CaptureFixture[str]) -> None:
    frame = connected.range(3).selectExpr(
        "id", "concat('a long text that is cut ', id) as text", "null as nothing"
    )
    frame.show(2)
    native, report = capsys.readouterr().out, volley.last_query(connected)
    assert report is not None
    assert report.engine == "native"
    volley.disable(connected)
    frame.show(2)
    assert capsys.readouterr().out == native
    assert "only showing top 2 rows" in native


def test_what_is_not_native_is_answered_by_the_server(connected: Any) -> None:
    frame = connected.range(4).selectExpr("input_file_block_start() as m", "id")
    assert len(frame.collect()) == 4
    report = volley.last_query(connected)
    assert report is not None
    assert report.engine != "native"
    assert report.reasons


def test_errors_are_those_of_the_server(connected: Any) -> None:
    with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"):
        connected.sql("select id / (id - id) as x from range(3)").collect()
    with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
        connected.range(3).select("nothing_there").collect()


@pytest.mark.since("4.0")
def test_metrics_come_with_the_rows(connected: Any) -> None:
    frame = connected.sql("select id % 2 k, count(*) n from range(9) group by 1")
    assert len(frame.collect()) == 2
    assert "Volley native" in frame.executionInfo.metrics.toText().splitlines()[0]
    assert {metric.name for metric in frame.toPandas().attrs["metrics"]} >= {"Volley native"}


FAILING: dict[str, Callable[[Any], object]] = {
    "analysis": lambda session: session.range(3).select("nothing_there").collect(),
    "planning": lambda session: session.sql("select id k from range(3)").dropDuplicatesWithinWatermark().collect(),
    "optimization": lambda session: session.sql(
        "select from_json('{\"d\": \"02-29\"}', 'd date', map('mode', 'FAILFAST', 'dateFormat', 'yyyy')) x"
    ).collect(),
    "execution": lambda session: session.sql("select id / (id - id) as x from range(3)").collect(),
    "show": lambda session: session.sql("select id / (id - id) as x from range(3)").show(),
    "tail": lambda session: session.sql("select id / (id - id) as x from range(3)").tail(1),
    "pandas": lambda session: session.sql("select raise_error(string(id)) from range(1)").toPandas(),
    "a stopped session": lambda session: ((frame := session.range(3)), session.stop(), frame.collect()),
}  # fmt: skip


@pytest.mark.parametrize("when", FAILING)
def test_errors_have_the_types_and_texts_of_the_server(server: str, connected: Any, when: str) -> None:
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    plain: Any = ConnectSession.builder.remote(server).create()
    expected, actual = (find_error(partial(FAILING[when], session)) for session in (plain, connected))
    plain.stop()
    assert type(actual) is type(expected)
    assert str(actual).splitlines()[0] == str(expected).splitlines()[0]


def find_error(action: Callable[[], object]) -> Exception:
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError("it does not fail")


def test_views_settings_and_local_data_are_those_of_the_session(connected: Any) -> None:
    connected.createDataFrame([(1, "a"), (2, None)], "n int, s string").createOrReplaceTempView("mine")
    connected.conf.set("spark.sql.ansi.enabled", "false")
    (row,) = connected.sql("select sum(n) as n, max(s) as s, 1 / 0 as nothing from mine").collect()
    assert tuple(row) == (3, "a", None)
    report = volley.last_query(connected)
    assert report is not None
    assert report.engine == "native"


ENDLESS = "select count(*) from range(1000000000000000) where id % 7 = 8"


@pytest.mark.parametrize("how", ["all", "tag"])
def test_a_running_query_is_interrupted(connected: Any, how: str) -> None:
    def run() -> None:
        connected.addTag("mine")
        connected.sql(ENDLESS).collect()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        eventually(session_state.all_running)
        assert connected.interruptTag("other") == []
        assert connected.interruptOperation("00000000-0000-0000-0000-000000000000") == []
        (stopped,) = connected.interruptAll() if how == "all" else connected.interruptTag("mine")
        assert uuid.UUID(stopped)
        with pytest.raises(QueryCancelled):
            running.result(60)
    eventually(lambda: not session_state.all_running())
    assert_quiet()


def test_explain_takes_a_connect_frame(connected: Any) -> None:
    assert volley.explain(connected.range(5).where("id > 2")).native


def test_relations_that_are_executed_while_they_are_planned_are_left_to_the_server(connected: Any) -> None:
    connected.sql("select 1 as n").createOrReplaceTempView("once")
    assert connected.catalog.dropTempView("once")
    assert not connected.catalog.tableExists("once")
    frame = connected.range(10).selectExpr("id", "id * 2 as twice")
    assert frame.stat.cov("id", "twice") > 0
    plan = frame._plan.to_proto(connected.client)
    assert is_only_planned(plan.root)


def test_a_session_of_another_server_is_refused(connected: Any) -> None:
    class Client:
        host = "example.org:15002"
        _user_id = "somebody"
        _session_id = "00000000-0000-0000-0000-000000000000"

    class Elsewhere:
        __module__ = "pyspark.sql.connect.session"
        client = Client()
        version = "4.0.0"

    with pytest.raises(ConnectServerElsewhere, match=r"another process \(example\.org:15002\).*local\[\*\]"):
        volley.enable(Elsewhere())  # type: ignore[arg-type]


_PROGRAM = """
import sys
from pyspark.sql import SparkSession, functions as F
import volley
builder = SparkSession.builder.config("spark.ui.enabled", "false")
spark = {start}
volley.enable(spark)
frame = spark.range(100).groupBy((F.col("id") % 7).alias("k")).agg(F.sum("id").alias("s"))
rows, report = frame.collect(), volley.last_query(spark)
print(type(spark).__module__, len(rows), report.engine, report.spark_tasks)
spark.stop()
try:
    frame.collect()
except Exception as error:
    print(getattr(error, "getCondition", error.__str__)())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "start",
    [
        'builder.remote("local[1]").getOrCreate()',
        'builder.config("spark.api.mode", "connect").master("local[1]").getOrCreate()',
    ],
    ids=["remote", "api mode"],
)
def test_a_local_connect_session_of_a_fresh_process(start: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(start=start)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    expected = ["pyspark.sql.connect.session", "7", "native", "0", "NO_ACTIVE_SESSION"]
    assert run.stdout.split() == expected, run.stderr


def test_a_streaming_listener_hears_of_a_query(connected: Any) -> None:
    """Its events are the responses to one request, which ends when the listener is removed."""
    heard: list[str] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            heard.append("started")

        def onQueryProgress(self, event: Any) -> None:
            heard.append("progress")

        def onQueryIdle(self, event: Any) -> None:
            heard.append("idle")

        def onQueryTerminated(self, event: Any) -> None:
            heard.append("terminated")

    listener = Listener()
    added = threading.Thread(target=connected.streams.addListener, args=(listener,), daemon=True)
    added.start()
    added.join(PATIENCE_SECONDS)
    assert not added.is_alive()
    try:
        stream = connected.readStream.format("rate").load().writeStream.format("noop").start()
        eventually(lambda: "progress" in heard)
        stream.stop()
        eventually(lambda: "terminated" in heard)
    finally:
        connected.streams.removeListener(listener)
