# SPDX-License-Identifier: Apache-2.0
"""Spark's own expressions on worker daemons: a JVM beside each of them evaluates what the driver sends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import volley
from helpers.sampling import every
from helpers.waiting import eventually
from volley.cluster import LocalCluster
from volley.errors import DeadlineExceeded, QueryCancelled
from volley.observe.report import QueryReport
from volley.support.reasons import Reason
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf
from volley.transport.flight import close_fleets

_ROWS = 400
# The first hours are around a change of the clock in New York.
_TABLE = """
select id, cast(id % 7 as int) k, if(id % 6 = 0, null, concat('wör', id % 37, ',x', id % 5)) s,
  timestamp_seconds(if(id < 50, 1710050000 + id * 600, id * 26350000 - 2000000000)) t,
  if(id % 9 = 0, '{"a": "no', concat('{"a": ', id, ', "b": ["x", null]}')) j,
  array(cast(id as int), null, -3) a, struct(id u, date_add(date'1890-01-01', cast(id as int) * 99) v) p
from range(0, 400, 1, 2)
"""


@pytest.fixture(scope="module")
def parquet(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("worker-jvm") / "t")
    with conf(spark_session, {"spark.volley.enabled": "false"}):
        spark_session.sql(_TABLE).write.parquet(path)
    return path


@pytest.fixture
def table(spark: SparkSession, parquet: str) -> SparkSession:
    """The view `t` over two files."""
    spark.read.parquet(parquet).createOrReplaceTempView("t")
    return spark


@pytest.fixture
def on_worker(table: SparkSession, cluster: LocalCluster) -> Iterator[SparkSession]:
    """The view `t`, for tasks on one daemon: a JVM takes seconds to start, and each daemon has its own."""
    with conf(table, cluster.settings | {"spark.volley.workers": cluster.addresses[0]}):
        yield table


@pytest.fixture
def on_workers(table: SparkSession, cluster: LocalCluster) -> Iterator[SparkSession]:
    """The view `t`, for tasks on all daemons."""
    with conf(table, cluster.settings | DISTRIBUTED_SETTINGS):
        yield table


def report_of(spark: SparkSession) -> QueryReport:
    report = volley.last_query(spark)
    assert report is not None
    return report


def _jvms(cluster: LocalCluster) -> list[int]:
    """The processes of Java below the workers."""
    pids = [child for member in cluster.members for child in _children(member.pid)]
    return [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == "java"]


def _children(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task")
    return [int(child) for task in threads.iterdir() for child in (task / "children").read_text().split()]


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


# -------------------------------------------------------------------------------------------------------- rows

_QUERIES = [
    # Zones, JSON, a pattern of Java, lambdas, collations and casts of nested values, all in one crossing.
    """select id, date_format(t, 'EEE yyyy-MM-dd HH:mm z'), from_json(j, 'a int, b array<string>'),
      regexp_extract(s, '(?<=wör)(\\\\d+)', 1), transform(a, e -> date_format(timestamp_seconds(e), 'E')),
      s collate unicode_ci = 'WÖR1,X1', cast(p as string), make_interval(0, k)::string from t""",
    # A filter, a condition of a join that also has keys, and one of them.
    """select a.id, b.id from t a join t b on date_format(a.t, 'yyyyMM') = date_format(b.t, 'yyyyMM') and
      a.k = b.k and levenshtein(a.s, b.s) < 3 where date_format(a.t, 'E') in ('Mon', 'Tue', 'Sun')""",
    # A key and aggregates, one of them of gathered rows; text without a plain form.
    """select date_format(t, 'E') day, count(*), max(regexp_count(s, 'x(?=1)')), count_min_sketch(id, 0.5d, 0.5d, 1),
      sum(try_cast(concat(' +', k, ' ') as int)) from t group by 1""",
]


def test_states_of_spark_s_partitions(on_worker: SparkSession) -> None:
    calls = "histogram_numeric(id, 4), approx_percentile(id, 0.4, 9) filter (where id > 700)"
    assert_same_rows(on_worker, f"select {calls}, mode(id % 300) from range(0, 900, 1, 5)")
    # One state, which is not sent.
    assert_same_rows(on_worker, f"select {calls} from range(0, 900, 1, 1)")


@pytest.mark.parametrize("query", every(3, _QUERIES))
def test_rows_are_those_of_spark(on_worker: SparkSession, query: str) -> None:
    with conf(on_worker, {"spark.sql.session.timeZone": "America/New_York"}):
        assert_same_rows(on_worker, query)
        report = report_of(on_worker)
    assert report.jvm_rows >= _ROWS
    assert report.jvm_seconds > 0
    assert "rows in the JVM" in str(report)


def test_errors_are_those_of_spark(on_worker: SparkSession) -> None:
    frame = on_worker.sql("select date_format(t, 'D E'), cast(s as int) from t")
    explained = volley.explain(frame)
    assert explained.native
    assert "by Spark's own code in the JVM: date_format (DateFormatClass)" in str(explained)
    with conf(on_worker, {"spark.sql.ansi.enabled": "true"}), pytest.raises(PySparkException) as raised:
        on_worker.sql("select to_number(s, '999') from t").collect()
    assert raised.value.getCondition() == "INVALID_FORMAT.MISMATCH_INPUT"
    # Where a branch guards it, nothing is raised.
    assert_same_rows(
        on_worker,
        "select if(s like '%wör1,%', length(date_format(t, 'E')), to_number(s, '999')) from t where k > 90",
    )


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
@pytest.mark.parametrize("query", _QUERIES)
def test_tasks_of_all_workers_have_jvms(on_workers: SparkSession, query: str, zone: str) -> None:
    with conf(on_workers, {"spark.sql.session.timeZone": zone}):
        assert_same_rows(on_workers, query)


# ------------------------------------------------------------------------------------------------------ the JVM


@pytest.mark.slow
def test_a_jvm_that_was_killed_is_started_again(on_workers: SparkSession, cluster: LocalCluster) -> None:
    query = "select id, date_format(t, 'D E') from t"
    assert_same_rows(on_workers, query)
    killed = _jvms(cluster)
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    for pid in killed:
        eventually(lambda pid=pid: _is_gone(pid))  # type: ignore[misc]
    assert_same_rows(on_workers, query)


@pytest.mark.slow
def test_a_query_survives_a_jvm_that_is_killed_in_the_middle(table: SparkSession) -> None:
    """It is stopped before the query begins, so that it cannot have answered when it is killed."""
    with LocalCluster(1, cores=1, memory="512m") as own, conf(table, own.settings):
        frame = table.sql("select id, date_format(t, 'D E') from t")
        expected = frame.collect()
        (jvm,) = _jvms(own)
        os.kill(jvm, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(frame.collect)
            eventually(lambda: any(health and health.running for health in own.health()))
            for _ in range(50):
                assert not running.done()
                own.health()
            os.kill(jvm, signal.SIGKILL)
            assert running.result() == expected
        report = report_of(table)
        assert report.engine == "native"
        assert _jvms(own) not in ([], [jvm])
        close_fleets()


@pytest.mark.slow
def test_it_ends_with_its_worker(table: SparkSession) -> None:
    with LocalCluster(2, cores=1, memory="512m") as own, conf(table, own.settings | DISTRIBUTED_SETTINGS):
        frame = table.sql("select id, date_format(t, 'D E') from t")
        frame.collect()
        jvms = _jvms(own)
        assert len(jvms) == 2
        own.members[0].process.kill()
        eventually(lambda: sum(map(_is_gone, jvms)) == 1)
        # Rows that it had are computed again.
        assert len(frame.collect()) == _ROWS
        assert report_of(table).engine == "native"
        close_fleets()
    eventually(lambda: all(map(_is_gone, jvms)))


@pytest.mark.slow
def test_queries_of_several_threads_share_a_jvm(on_workers: SparkSession) -> None:
    expected = sorted(map(str, on_workers.sql(_QUERIES[2]).collect()))
    barrier = threading.Barrier(4)

    def run(_: int) -> list[str]:
        barrier.wait()
        return sorted(map(str, on_workers.sql(_QUERIES[2]).collect()))

    with ThreadPoolExecutor(4) as pool:
        assert all(found == expected for found in pool.map(run, range(4)))


# Each row takes some 10^8 steps, so that no batch ends within the time of a test.
_LONG = """
select aggregate(sequence(0, 10000), id, (a, x) ->
  aggregate(sequence(0, 10000), a, (b, y) -> (b * 31 + y) % (x + 7))) from t
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_a_query_does_not_wait_for_code_that_runs_for_long(table: SparkSession, how: str) -> None:
    seconds = {"spark.volley.timeoutSeconds": "5"} if how == "timeout" else {}
    with LocalCluster(1, cores=1, memory="512m") as own, conf(table, own.settings | seconds):
        table.sql("select date_format(t, 'D E') from t").collect()
        (jvm,) = _jvms(own)
        before = _processor_ticks(jvm)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(table.sql(_LONG).collect)
            if how == "cancel":
                # Far more than it needs to load the program: it evaluates.
                eventually(lambda: _processor_ticks(jvm) - before > 3 * os.sysconf("SC_CLK_TCK"))
                assert volley.cancel(table) == 1
            with pytest.raises(QueryCancelled if how == "cancel" else DeadlineExceeded):
                running.result(60)
        # The only slot is free before the JVM has ended, which still runs the code.
        eventually(lambda: all(health and not health.running for health in own.health()))
        assert_same_rows(table, "select k, count(*) from t group by k")
        assert not _is_gone(jvm)
        eventually(lambda: _is_gone(jvm))
        # The next one has a new JVM.
        assert_same_rows(table, "select date_format(t, 'D E') from t")
        assert len([pid for pid in _jvms(own) if not _is_gone(pid)]) == 1
        close_fleets()


def _processor_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


# ---------------------------------------------------------------------------------------------- workers without one


def test_workers_without_java_leave_it_to_spark(table: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with LocalCluster(1, cores=1, memory="512m") as without, conf(table, without.settings):
        reasons = volley.explain(table.sql("select date_format(t, 'y') from t")).reasons
        assert [reason.reason for reason in reasons][:2] == [Reason.ARGUMENT_VALUE, Reason.NO_JVM]
        assert f"worker {without.addresses[0]}: Java is not installed there" in str(reasons[1])
        # What is native stays so, also a cast whose other texts the JVM would have cast.
        assert_same_rows(table, "select cast(substring(s, 4, 1) as int) + k from t where s is not null")
        close_fleets()
