"""Run by test_spark_cluster.py against a standalone cluster: TPC-H in its executors, and with one of them killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

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


def main(master: str, data: str, *queries: str) -> None:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
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
        .getOrCreate()
    )
    register_tables(spark, Path(data))
    texts = {name: query_text(name) for name in queries if name != "kill"}
    plain = {name: spark.sql(text).toArrow() for name, text in texts.items()}
    expected = spark.sql(SHUFFLED).toArrow()
    volley.enable(spark)
    answers = []
    for name, text in texts.items():
        rows = spark.sql(text).toArrow()
        answers.append(described(spark, name) | {"difference": difference(plain[name], rows, None)})
    if "kill" in queries:
        spark.sql(SHUFFLED).toArrow()
        for delay in (0.1, 0.6):
            killer = threading.Timer(delay, kill_an_executor)
            killer.start()
            rows = spark.sql(SHUFFLED).toArrow()
            killer.join()
            answers.append(described(spark, "kill") | {"difference": difference(expected, rows, None)})
    print(json.dumps(answers))
    spark.stop()


def described(spark: SparkSession, name: str) -> dict[str, object]:
    report = volley.last_query(spark)
    assert report is not None
    return {
        "name": name,
        "engine": report.engine,
        "spark_tasks": report.spark_tasks,
        "native_tasks": sum(stage.attempts for stage in report.stages),
        "stages": len(report.stages),
    }


def kill_an_executor() -> None:
    """The directory of a sidecar is named after the JVM that it belongs to."""
    found = Path(tempfile.gettempdir()).glob(f"volley-executor-{os.getuid()}-*")
    mine = [int(path.name.split("-")[3]) for path in found if (path / "address").exists()]
    os.kill(max(mine), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
