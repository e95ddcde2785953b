# SPDX-License-Identifier: Apache-2.0
"""The engines that a benchmark compares. Each runs the same SQL on the same files and returns an Arrow table."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from datafusion import SessionConfig, SessionContext
from pyspark.sql import SparkSession

import volley
from volley.bench.cost import Cost, CostMeter
from volley.bench.data import TABLES
from volley.bench.spark import start_spark
from volley.errors import ConfigError
from volley.observe.report import QueryReport
from volley.observe.spark_tasks import spark_tasks
from volley.process.machine import available_cores
from volley.spark_versions.classic import collect_table

_BUSIEST = 5


@dataclass(frozen=True)
class Run:
    """The result of one run and its cost. `planning_seconds` is Spark's share: parsing, analysis and planning.

    Fields that do not apply to an engine are None.
    """

    table: pa.Table
    seconds: float
    native: bool | None = None
    reasons: tuple[str, ...] = ()
    spark_tasks: int | None = None
    planning_seconds: float | None = None
    capture_seconds: float | None = None
    execution_seconds: float | None = None
    cost: Cost | None = None
    operators: tuple[tuple[str, float], ...] = ()
    """The native operators that computed longest, with the seconds of all their threads together."""
    cpu_seconds: float | None = None
    peak_bytes: int | None = None
    """Processor time of the run and the largest memory in it, for engines in processes of their own."""

    @property
    def own_seconds(self) -> float:
        """Seconds without Spark's planning."""
        return self.seconds - (self.planning_seconds or 0.0)


class Engine(Protocol):
    """Runs queries on registered tables. Results are not cached."""

    name: str

    def run(self, sql: str) -> Run: ...


class Spark:
    """Spark, on the same session as the Volley engine, with Volley disabled."""

    name = "spark"

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, sql: str) -> Run:
        self._spark.conf.set("spark.volley.enabled", "false")
        before = spark_tasks(self._spark)
        started = time.perf_counter()
        # All engines return Arrow, so that none pays for a conversion that another avoids.
        table = collect_table(self._spark.sql(sql))
        seconds = time.perf_counter() - started
        return Run(table, seconds, native=False, spark_tasks=spark_tasks(self._spark) - before)


class Volley:
    name = "volley"

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        volley.enable(spark)

    def run(self, sql: str) -> Run:
        self._spark.conf.set("spark.volley.enabled", "true")
        before = spark_tasks(self._spark)
        with CostMeter(self._spark) as meter:
            started = time.perf_counter()
            frame = self._spark.sql(sql)
            analyzed = time.perf_counter()
            table = collect_table(frame)
            ended = time.perf_counter()
        report = volley.last_query(self._spark)
        if report is None:
            raise RuntimeError("Volley is enabled but saw no query")
        return Run(
            table,
            seconds=ended - started,
            native=report.engine == "native",
            reasons=tuple(str(reason) for reason in report.reasons),
            spark_tasks=spark_tasks(self._spark) - before,
            planning_seconds=analyzed - started + report.planning_seconds,
            capture_seconds=report.capture_seconds,
            execution_seconds=report.execution_seconds,
            cost=meter.cost(report),
            operators=busiest_operators(report),
        )


def busiest_operators(report: QueryReport) -> tuple[tuple[str, float], ...]:
    """The operators of a query by the time that they computed, longest first, as DataFusion measures it."""
    seconds: dict[str, float] = {}
    for operator in (operator for stage in report.stages for operator in stage.operators):
        took = dict(operator.metrics).get("elapsed_compute", 0) / 1e9
        seconds[operator.name] = seconds.get(operator.name, 0.0) + took
    return tuple(sorted(seconds.items(), key=lambda item: -item[1])[:_BUSIEST])


class Embedded(Volley):
    """Volley in this process, on a session that uses workers. Shows the cost of the cluster."""

    name = "embedded"

    def run(self, sql: str) -> Run:
        settings = {"spark.volley.transport": "local", "spark.volley.shuffle.store": "memory"}
        before = {key: self._spark.conf.get(key, None) for key in settings}
        for key, value in settings.items():
            self._spark.conf.set(key, value)
        try:
            return super().run(sql)
        finally:
            for key, text in before.items():
                self._spark.conf.unset(key) if text is None else self._spark.conf.set(key, text)


class DataFusion:
    """Plain DataFusion SQL: the limit for the native side, without Spark's planning and semantics."""

    name = "datafusion"

    def __init__(self, data: Path, partitions: int, tables: Sequence[str] = TABLES) -> None:
        self._context = SessionContext(SessionConfig().with_target_partitions(partitions))
        for table in tables:
            self._context.register_parquet(table, str(data / table))

    def run(self, sql: str) -> Run:
        started = time.perf_counter()
        table = self._context.sql(sql).to_arrow_table()
        return Run(table, time.perf_counter() - started)


def session(
    master: str, settings: Mapping[str, str], data: Path, tables: Sequence[str] = TABLES
) -> SparkSession:
    """A Spark session on `master` with a view per table. `settings` override our defaults."""
    cores = cores_of(master)
    chosen = {
        # Spark's default of 200 tasks per shuffle would make it unnecessarily slow on a few cores.
        "spark.sql.shuffle.partitions": str(2 * cores),
        "spark.volley.local.cores": str(cores),
        **settings,
    }
    spark = start_spark("volley bench", master, chosen)
    register_tables(spark, data, tables)
    return spark


def register_tables(spark: SparkSession, data: Path, tables: Sequence[str] = TABLES) -> None:
    for table in tables:
        spark.read.parquet(str(data / table)).createOrReplaceTempView(table)


def cores_of(master: str) -> int:
    """The cores of `local`, `local[n]` or `local[*]`. The benchmark compares engines on one machine."""
    match = re.fullmatch(r"local(?:\[(\d+|\*)(?:\s*,\s*\d+)?\])?", master)
    if match is None:
        raise ConfigError(
            f"the benchmark runs on this machine, not on {master!r}.", hint="Use --master local[n]."
        )
    if match[1] == "*":
        return available_cores()
    return int(match[1] or 1)
