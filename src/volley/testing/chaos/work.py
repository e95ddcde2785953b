# SPDX-License-Identifier: Apache-2.0
"""The queries and writes that run under faults, and what Spark says about them."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from volley.bench.compare import RELATIVE_TOLERANCE, difference
from volley.bench.data import tpch_data
from volley.bench.engines import register_tables
from volley.bench.order import sort_columns
from volley.bench.queries import query_text
from volley.spark_versions.classic import collect_table
from volley.testing.chaos.jobs import Job
from volley.testing.chaos.programs import PROGRAMS, cached_rows, new_number
from volley.testing.fuzz.choices import Choices
from volley.testing.fuzz.programs import draw_program
from volley.testing.fuzz.tables import draw_tables, register
from volley.testing.session import conf

WRITES = ("append", "overwrite", "dynamic", "table")
SPARK_ONLY = {"spark.volley.enabled": "false"}
_SCALE = 0.01
_ROWS = 20_000
_RARE_PERCENT = 0


class Work:
    """Makes jobs by name. Spark's answers are computed once, before anything is struck, and kept in files, in a folder
    `answers` that may be that of other drivers and runs, too."""

    def __init__(self, spark: SparkSession, directory: Path, seed: int, answers: Path | None = None) -> None:
        self._spark = spark
        self._directory = directory
        self._seed = seed
        self._answers = answers or directory / "answers"
        self._answers.mkdir(parents=True, exist_ok=True)
        self._numbers = count()
        self._jobs: dict[str, Job | None] = {}
        self._lock = threading.Lock()
        register_tables(spark, tpch_data(_SCALE))
        self._tables = draw_tables(Choices(f"chaos {seed}"), ("parquet",))
        with conf(spark, SPARK_ONLY):
            for table in self._tables:
                register(spark, table, directory)

    def job(self, name: str) -> Job | None:
        """The job; None for a random query that Spark itself refuses."""
        with self._lock:
            if name.startswith("write-"):
                return self._write(name.removeprefix("write-"))
            if name not in self._jobs:
                self._jobs[name] = self._query(name)
            return self._jobs[name]

    def answer(self, names: Sequence[str]) -> None:
        """Let Spark answer these queries now, for another driver that has the same `answers`."""
        for name in names:
            if not name.startswith("write-"):
                self.job(name)

    def _query(self, name: str) -> Job | None:
        make: Callable[[SparkSession], DataFrame]
        if name.startswith("random-"):
            program = draw_program(Choices(name), self._tables, _RARE_PERCENT)
            make, ordered = program.frame, program.ordered
        elif name in PROGRAMS:
            make, ordered = PROGRAMS[name], False
        else:
            text = query_text(name)
            make, ordered = (lambda spark: spark.sql(text)), True
        try:
            frame = make(self._spark)
        except PySparkException:
            return None
        columns = sort_columns(frame) if ordered else None
        expected = self._answer(name, make, columns)
        if expected is None:
            return None

        def check(actual: pa.Table | None, failed: bool) -> str | None:
            return None if failed else difference(expected, actual, columns, RELATIVE_TOLERANCE)

        return Job(self._read_cached if name == "cached" else frame.toArrow, check)

    def _answer(
        self, name: str, make: Callable[[SparkSession], DataFrame], columns: Sequence[int] | None
    ) -> pa.Table | None:
        """Spark's rows; None if it refuses the query, or has several answers."""
        is_random = name.startswith("random-")
        path = self._answers / (f"{self._seed}-{name}" if is_random else name)
        if path.exists():
            return pa.ipc.open_file(path).read_all() if path.stat().st_size else None
        with conf(self._spark, SPARK_ONLY):
            try:
                expected = collect_table(make(self._spark))
                again = collect_table(make(self._spark)) if is_random else expected
            except PySparkException:
                expected, again = None, None
        if expected is None or difference(expected, again, columns, RELATIVE_TOLERANCE):
            path.touch()
            return None
        unfinished = path.with_name(f"{path.name}.{os.getpid()}")
        with pa.ipc.new_file(unfinished, expected.schema) as writer:
            writer.write_table(expected)
        unfinished.rename(path)
        return expected

    def _read_cached(self) -> pa.Table:
        """The rows that a second query finds in the cache, which the first one filled."""
        frame = cached_rows(self._spark, new_number()).cache()
        try:
            frame.count()
            return collect_table(frame)
        finally:
            frame.unpersist()

    def _write(self, mode: str) -> Job:
        """A table of two partitions, to which rows of the second one and of a third are written."""
        path = self._directory / f"table-{next(self._numbers)}"
        before = {} if mode == "table" else {0: 1, 1: 1}
        if before:
            with conf(self._spark, SPARK_ONLY):
                self._rows(0, 2).write.partitionBy("p").parquet(str(path))
        after = {
            "append": {0: 1, 1: 2, 2: 1},
            "overwrite": {1: 1, 2: 1},
            "dynamic": {0: 1, 1: 1, 2: 1},
            "table": {1: 1, 2: 1},
        }[mode]
        name = path.name.replace("-", "_")

        def act() -> None:
            writer = self._rows(1, 3).write.partitionBy("p")
            if mode == "table":
                writer.saveAsTable(name, path=str(path))
                return
            writer = writer.mode("append" if mode == "append" else "overwrite")
            if mode == "dynamic":
                writer = writer.option("partitionOverwriteMode", "dynamic")
            writer.parquet(str(path))

        def check(_: pa.Table | None, failed: bool) -> str | None:
            with conf(self._spark, SPARK_ONLY):
                found = self._parts(path)
                if mode == "table":
                    self._spark.sql(f"drop table if exists {name}")
            allowed = [before, after] if failed else [after]
            hidden = [entry.name for entry in self._directory.glob(f".volley-{path.name}*")]
            hidden += [entry.name for entry in path.glob(".volley*")]
            shutil.rmtree(path, ignore_errors=True)
            if found not in allowed:
                return f"{mode} left {found} parts instead of {after}"
            return f"{mode} left {hidden}" if hidden else None

        return Job(act, check)

    def _parts(self, path: Path) -> dict[int, float]:
        """How many times the rows of each partition are there."""
        if not any(path.rglob("*.parquet")):
            return {}
        rows = self._spark.read.parquet(str(path)).groupBy("p").count().collect()
        return {row["p"]: row["count"] / _ROWS for row in rows}

    def _rows(self, start: int, end: int) -> DataFrame:
        return self._spark.range(start * _ROWS, end * _ROWS).selectExpr(
            "id", f"cast(id div {_ROWS} as int) p"
        )
