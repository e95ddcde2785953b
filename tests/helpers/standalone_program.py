# SPDX-License-Identifier: Apache-2.0
"""Run by test_spark_cluster.py against a standalone cluster: TPC-H in its executors, and what goes wrong with them.

    standalone_program.py MASTER DATA SETTINGS tpch q01 q02 ...     each query natively, compared with Spark
    standalone_program.py MASTER DATA SETTINGS kill MOMENT ...      an executor is killed: `running` or `over`
    standalone_program.py MASTER DATA SETTINGS mixed                queries with a UDF, of which copies are started
    standalone_program.py MASTER DATA SETTINGS release              an executor is released in the middle of a query
    standalone_program.py MASTER DATA SETTINGS stop                 a sidecar is stopped, so that Spark speculates

SETTINGS is JSON. The last line of the output is JSON too, an object for each query.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkJobInfo, TaskContext
from pyspark.sql import SparkSession

import volley
from volley.bench.compare import difference
from volley.bench.engines import register_tables
from volley.bench.queries import query_text

SHUFFLED = """
    select o_orderpriority, count(*) as n, sum(l_extendedprice * l_discount) as revenue, max(c_name) as name
    from lineitem join orders on l_orderkey = o_orderkey join customer on o_custkey = c_custkey
    group by o_orderpriority
"""
MIXED = {
    "above": """
        select lagging(k) as k, n, day from (
            select o_custkey as k, count(*) as n, max(o_orderdate) as day
            from lineitem join orders on l_orderkey = o_orderkey group by o_custkey)
    """,
    "below": """
        select c_mktsegment, count(*) as n, sum(o_totalprice) as total
        from (select lagging(o_custkey) as k, o_totalprice from orders) join customer on k = c_custkey
        group by c_mktsegment
    """,
}
WAIT_SECONDS = 120.0

Ack = dict[str, Any]


def main(master: str, data: str, settings: str, what: str, *arguments: str) -> None:
    spark = session(master, json.loads(settings))
    register_tables(spark, Path(data))
    ways = {"tpch": tpch, "kill": kill, "stop": stop, "mixed": mixed, "release": release}
    print(json.dumps(ways[what](spark, *arguments)))
    spark.stop()


def session(master: str, settings: dict[str, str]) -> SparkSession:
    builder = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        # Otherwise the tracker may show a running task no sooner than the next heartbeat.
        .config("spark.ui.liveUpdate.period", "0")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.memoryOverhead", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.autoBroadcastJoinThreshold", "-1")
        .config("spark.volley.transport", "spark")
        .config("spark.volley.fallback", "error")
        .config("spark.volley.singleTaskSize", "0")
    )
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def tpch(spark: SparkSession, *queries: str) -> list[Ack]:
    texts = {name: query_text(name) for name in queries}
    plain = {name: spark.sql(text).toArrow() for name, text in texts.items()}
    volley.enable(spark)
    return [answered(spark, name, text, plain[name]) for name, text in texts.items()]


def kill(spark: SparkSession, *moments: str) -> list[Ack]:
    """The first job is `running`, or it is `over` and what it made is still to be read."""
    expected = spark.sql(SHUFFLED).toArrow()
    volley.enable(spark)
    answers = []
    for moment in moments:
        both_run(spark)
        with during(spark, running if moment == "running" else over, lambda: kill_an_executor(spark)):
            answers.append(answered(spark, moment, SHUFFLED, expected))
    return answers


def stop(spark: SparkSession) -> list[Ack]:
    """A sidecar does nothing until other attempts have taken the place of its own, and then goes on."""
    expected = spark.sql(SHUFFLED).toArrow()
    volley.enable(spark)
    both_run(spark)
    (*_, victim) = sidecars(spark).values()
    os.kill(victim, signal.SIGSTOP)
    try:
        with during(spark, over, lambda: os.kill(victim, signal.SIGCONT)) as group:
            answer = answered(spark, "stopped", SHUFFLED, expected)
    finally:
        os.kill(victim, signal.SIGCONT)
    answer["speculative_tasks"] = speculative_tasks(spark, group)
    return [answer, answered(spark, "afterwards", SHUFFLED, expected)]


def release(spark: SparkSession) -> list[Ack]:
    """A sidecar stops after the first stage, until Spark has released the other executor, which has nothing to do."""
    expected = spark.sql(SHUFFLED).toArrow()
    volley.enable(spark)
    both_run(spark)
    before = len(sidecars(spark))

    def stop_until_alone() -> None:
        (*_, victim) = sidecars(spark).values()
        os.kill(victim, signal.SIGSTOP)
        try:
            wait_until(lambda: len(sidecars(spark)) < before, "an executor is released")
        finally:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGCONT)

    with during(spark, over, stop_until_alone):
        return [answered(spark, "released", SHUFFLED, expected)]


def mixed(spark: SparkSession) -> list[Ack]:
    """Some tasks of Spark's take so long that others do their work as well: each row counts once."""
    waited: list[bool] = []

    def lagging(number: int) -> int:
        context = TaskContext.get()
        assert context is not None
        if not waited and context.partitionId() == 0 and context.attemptNumber() == 0:
            waited.append(True)
            time.sleep(2)
        return number

    spark.udf.register("lagging", lagging, "long")
    plain = {name: spark.sql(text).toArrow() for name, text in MIXED.items()}
    volley.enable(spark)
    answers = []
    for name, text in MIXED.items():
        with during(spark, running, lambda: None) as group:
            answers.append(answered(spark, name, text, plain[name]))
        answers[-1]["speculative_tasks"] = speculative_tasks(spark, group)
    return answers


def both_run(spark: SparkSession) -> None:
    """Queries, until both executors have a sidecar: it is started by the first task."""
    deadline = time.monotonic() + WAIT_SECONDS
    while len(sidecars(spark)) < 2:
        assert time.monotonic() < deadline, "there are no two executors"
        spark.sql(SHUFFLED).toArrow()


def answered(spark: SparkSession, name: str, text: str, expected: pa.Table) -> Ack:
    found = difference(expected, spark.sql(text).toArrow(), None)
    report = volley.last_query(spark)
    assert report is not None
    return {
        "name": name,
        "difference": found,
        "engine": report.engine,
        "spark_tasks": report.spark_tasks,
        "native_tasks": report.native_tasks,
        "stages": [(stage.tasks, stage.attempts) for stage in report.stages],
    }


# ------------------------------------------------------------------------------------------ at a moment of a query


@contextmanager
def during(
    spark: SparkSession, moment: Callable[[SparkSession, str], bool], act: Callable[[], None]
) -> Iterator[str]:
    """Act once when the moment of the query in the block has come, which it must. Gives its job group."""
    group = f"watched {next(_numbers)}"
    problems: list[BaseException] = []

    def watch() -> None:
        try:
            wait_until(lambda: moment(spark, group), moment.__name__)
            act()
        except BaseException as error:
            problems.append(error)

    spark.sparkContext.setJobGroup(group, "a query that is watched")
    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield group
    finally:
        watching.join()
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None unsets it
    if problems:
        raise problems[0]


_numbers = itertools.count()


def running(spark: SparkSession, group: str) -> bool:
    tracker = spark.sparkContext.statusTracker()
    stages = (tracker.getStageInfo(stage) for job in jobs_of(spark, group) for stage in job.stageIds)
    return any(stage and stage.numActiveTasks for stage in stages)


def over(spark: SparkSession, group: str) -> bool:
    return any(job.status == "SUCCEEDED" for job in jobs_of(spark, group))


def jobs_of(spark: SparkSession, group: str) -> list[SparkJobInfo]:
    tracker = spark.sparkContext.statusTracker()
    found = (tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(group))
    return [job for job in found if job]


def speculative_tasks(spark: SparkSession, group: str) -> int:
    store = spark.sparkContext._jsc.sc().statusStore()
    stages = (stage for job in jobs_of(spark, group) for stage in job.stageIds)
    found = [store.speculationSummary(stage, 0) for stage in stages]
    return sum(summary.get().numTasks() for summary in found if summary.isDefined())


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"it never came true that {what}"
        time.sleep(0.002)


def sidecars(spark: SparkSession) -> dict[int, int]:
    """The pid of each executor of this application, and that of its sidecar."""
    found = {}
    for path in Path(tempfile.gettempdir()).glob(f"volley-executor-{os.getuid()}-*/address"):
        # The directory of a sidecar is named after the JVM that it belongs to.
        executor = int(path.parent.name.split("-")[3])
        with suppress(FileNotFoundError):
            if spark.sparkContext.applicationId.encode() in Path(f"/proc/{executor}/cmdline").read_bytes():
                found[executor] = int(json.loads(path.read_text())["pid"])
    return found


def kill_an_executor(spark: SparkSession) -> None:
    """One that holds exchanged data in its memory, if any does: a small stage may have run in the other alone."""
    found = sidecars(spark)
    os.kill(max(found, key=lambda executor: (segments(found[executor]), executor)), signal.SIGKILL)


def segments(pid: int) -> int:
    """How many pieces of shuffle memory a process has."""
    count = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            count += "volley-shuffle" in str(path.readlink())
    return count


if __name__ == "__main__":
    main(*sys.argv[1:])
