# SPDX-License-Identifier: Apache-2.0
"""Run by test_spark_feed_faults.py against a standalone cluster: executors are killed while splits flow to them."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

import volley
from helpers.standalone_program import session
from volley.testing.sources import Numbers

SPLITS, ROWS, HELD_FROM = 120, 20, 30
EXCHANGED = "select /*+ repartition(4, id) */ id from numbers"


def main(master: str, scratch: str, *seeds: str) -> None:
    spark = session(master, {})
    spark.dataSource.register(Numbers)
    volley.enable(spark)
    directory = Path(scratch)
    answers = [limited(spark, directory / "limit"), held(spark, directory / "held")]
    answers += [at_any_moment(spark, directory / seed, random.Random(int(seed))) for seed in seeds]
    print(json.dumps(answers))
    spark.stop()


def limited(spark: SparkSession, calls: Path) -> dict[str, object]:
    """An endless source under a limit."""
    calls.mkdir()
    load(spark, splits="endless", calls=calls)
    rows = spark.sql("select id from numbers").take(50)
    return {
        "name": "limit",
        "engine": engine(spark),
        "right": len({row.id for row in rows}) == 50 and (calls / "closed").exists(),
    }


def held(spark: SparkSession, calls: Path) -> dict[str, object]:
    """The victim has begun with splits that nobody can read to their end before it is dead."""
    calls.mkdir()
    gate = calls / "gate"
    load(spark, splits=SPLITS, rows=ROWS, wait_for=gate, wait_from=HELD_FROM, calls=calls)

    def strike() -> None:
        reading: set[int] = set()

        def both_read() -> bool:
            reading.update(readers(calls))
            return len(reading) == 2

        # Both executors hold splits: one of them loses some, the other does not.
        wait_for(both_read)
        kill_the_executor_of(min(reading))
        gate.touch()

    striker = threading.Thread(target=strike)
    striker.start()
    rows = spark.sql(EXCHANGED).collect()
    striker.join()
    found = described(spark, "held", [row.id for row in rows], SPLITS)
    begun = [path.name.split("-")[1:] for path in calls.glob("reading-*")]
    again = {split for split, _ in begun if sum(split == other for other, _ in begun) > 1}
    return found | {"read again": len(again)}


def at_any_moment(spark: SparkSession, calls: Path, chance: random.Random) -> dict[str, object]:
    calls.mkdir()
    load(spark, splits=SPLITS, rows=ROWS, pause=0.01, row_pause=0.02, calls=calls)
    moment = chance.randrange(SPLITS)

    def strike() -> None:
        wait_for(lambda: len(list(calls.glob("reading-*"))) > moment)
        kill_the_executor_of(chance.choice(sorted(readers(calls))))

    striker = threading.Thread(target=strike)
    striker.start()
    # A result that is not exchanged has no map output to lose, but rows of its attempts must not come twice either.
    text = EXCHANGED if chance.random() < 0.5 else "select id from numbers"
    rows = spark.sql(text).collect()
    striker.join()
    return described(spark, f"killed after {moment} splits", [row.id for row in rows], SPLITS)


def load(spark: SparkSession, **options: object) -> None:
    reader = spark.read.format("numbers")
    for key, value in options.items():
        reader = reader.option(key, str(value))
    reader.load().createOrReplaceTempView("numbers")


def readers(calls: Path) -> set[int]:
    """The sidecars that have begun to read a split and live."""
    pids = {int(path.name.rpartition("-")[2]) for path in calls.glob("reading-*")}
    return {pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists()}


def kill_the_executor_of(sidecar: int) -> None:
    """A sidecar was told on its standard input whose it is, and left that with its address in a directory."""
    for directory in Path(os.environ.get("TMPDIR", "/tmp")).glob(f"volley-executor-{os.getuid()}-*"):
        address = directory / "address"
        if address.exists() and json.loads(address.read_text())["pid"] == sidecar:
            os.kill(int(directory.name.split("-")[3]), signal.SIGKILL)
            return


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)


def engine(spark: SparkSession) -> str:
    report = volley.last_query(spark)
    assert report is not None
    return report.engine


def described(spark: SparkSession, name: str, ids: list[int], splits: int) -> dict[str, object]:
    report = volley.last_query(spark)
    assert report is not None
    feeds = [feed for stage in report.stages for feed in stage.feeds]
    return {
        "name": name,
        "engine": report.engine,
        "right": sorted(ids) == list(range(splits * ROWS)),
        "splits": [(feed.found, feed.done) for feed in feeds],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
