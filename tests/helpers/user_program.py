# SPDX-License-Identifier: Apache-2.0
"""A program as a user writes it, run in a process of its own by `test_programs.py`, which says what each step is for.

Starting Java takes longer than all steps together, so they share one program. The lines that it prints begin with the
name of their step.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from pathlib import Path

# A stub of the test: PySpark imports it wherever it is installed.
import IPython  # noqa: F401
from pyspark.sql import DataFrame, SparkSession

import volley
from volley.query import session_state

ENDLESS = "select count(*) from range(1000000000000) where (id * 3) % 7 = 3"


def say(step: str, *words: object) -> None:
    print(step, *words, flush=True)


def start(**settings: str) -> SparkSession:
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.config("spark.log.level", "ERROR").getOrCreate()


def enable_in_vain(spark: SparkSession) -> None:
    volley.explain(spark.range(3))
    volley.enable(spark)
    spark.range(3).count()
    say("submit", spark.conf.get("spark.volley.enabled"), engine(spark))


def engine(spark: SparkSession) -> str:
    report = volley.last_query(spark)
    return report.engine if report else "none"


def start_enabled() -> SparkSession:
    return volley.enable(start(**{"spark.volley.enabled": "true"}))


def collect(frame: DataFrame) -> None:
    say("rdd", [tuple(row) for row in frame.collect()], engine(frame.sparkSession))


def exit_of_a_child() -> str:
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    watched = os.pidfd_open(pid)
    if not select.select([watched], [], [], 60)[0]:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return "hangs"
    return f"exit {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}"


def fork_after_a_query(spark: SparkSession, directory: Path) -> None:
    spark.range(100).write.parquet(str(directory / "t"))
    rows = spark.read.parquet(str(directory / "t")).where("id > 10")
    say("fork", len(rows.collect()), engine(spark))
    say("fork", exit_of_a_child())
    say("fork", len(rows.collect()), engine(spark))


def run_until_interrupted(spark: SparkSession) -> None:
    def tell() -> None:
        while not session_state.running(spark):
            time.sleep(0.01)
        say("interrupt", "started")

    try:
        threading.Thread(target=tell).start()
        spark.sql(ENDLESS).collect()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        report = volley.last_query(spark)
        assert report is not None
        assert report.error is not None
        say("interrupt", report.outcome, report.error.code)
        say("interrupt", volley.cancel(spark), spark.range(5).count())


def main(directory: Path) -> None:
    spark = start()
    enable_in_vain(spark)
    spark.stop()
    spark = start_enabled()
    collect(spark.createDataFrame([(1,)], "a int"))
    spark.stop()
    spark = start_enabled()
    for value in range(2, 8):
        collect(spark.sparkContext.parallelize([(value,)]).toDF("a int"))
    collect(spark.createDataFrame([(9,)], "a int"))
    fork_after_a_query(spark, directory)
    run_until_interrupted(spark)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
