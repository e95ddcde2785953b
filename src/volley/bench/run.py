# SPDX-License-Identifier: Apache-2.0
"""Runs queries on several engines in turn, so that changes in the machine's load affect all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from volley.bench.compare import difference
from volley.bench.engines import Engine, Run
from volley.bench.order import sort_columns
from volley.bench.queries import query_text
from volley.spark_versions.classic import collect_table

Progress = Callable[[str, str, int], None]


@dataclass(frozen=True)
class Result:
    """The best of an engine's runs of one query. `rows_match` is None if the rows were not compared."""

    query: str
    engine: str
    best: Run
    own_seconds: float
    """The best time without Spark's planning. It need not be that of the best run, if planning took longer there."""
    all_seconds: tuple[float, ...]
    rows_match: bool | None = None
    difference: str | None = None

    @property
    def seconds(self) -> float:
        return self.best.seconds

    def to_dict(self) -> dict[str, Any]:
        return {
            "query": self.query,
            "engine": self.engine,
            "seconds": self.seconds,
            "own_seconds": self.own_seconds,
            "native": self.best.native,
            "spark_tasks": self.best.spark_tasks,
            "rows_match": self.rows_match,
            "rows": self.best.table.num_rows,
            "planning_seconds": self.best.planning_seconds,
            "capture_seconds": self.best.capture_seconds,
            "execution_seconds": self.best.execution_seconds,
            "all_seconds": list(self.all_seconds),
            "cost": self.best.cost.to_dict() if self.best.cost else None,
            "operators": [list(operator) for operator in self.best.operators],
            "cpu_seconds": self.best.cpu_seconds,
            "peak_bytes": self.best.peak_bytes,
            "reasons": list(self.best.reasons),
            "difference": self.difference,
        }


@dataclass
class Results:
    """The results of a benchmark, in the order of the queries."""

    scale: float
    environment: dict[str, Any]
    results: list[Result] = field(default_factory=list)
    suite: str = "TPC-H"

    def of(self, query: str, engine: str) -> Result | None:
        return next((r for r in self.results if (r.query, r.engine) == (query, engine)), None)

    @property
    def engines(self) -> list[str]:
        return list(dict.fromkeys(result.engine for result in self.results))

    @property
    def queries(self) -> list[str]:
        return list(dict.fromkeys(result.query for result in self.results))

    @property
    def differing(self) -> list[Result]:
        return [result for result in self.results if result.rows_match is False]

    def ratio_to_spark(self, query: str) -> float | None:
        """Spark's seconds divided by Volley's, both with planning: how many times faster Volley is."""
        ours, theirs = self.of(query, "volley"), self.of(query, "spark")
        return theirs.seconds / ours.seconds if ours and theirs else None

    def ratio_to_datafusion(self, query: str) -> float | None:
        """Volley's seconds without Spark's planning, divided by DataFusion's: 1.0 is the limit."""
        ours, theirs = self.of(query, "volley"), self.of(query, "datafusion")
        return ours.own_seconds / theirs.seconds if ours and theirs else None

    def ratio_to_embedded(self, query: str) -> float | None:
        """Volley's seconds on workers divided by those in one process, both without Spark's planning."""
        ours, theirs = self.of(query, "volley"), self.of(query, "embedded")
        return ours.own_seconds / theirs.own_seconds if ours and theirs else None

    def geometric_mean(self, ratio: Callable[[str], float | None]) -> float | None:
        values = [value for query in self.queries if (value := ratio(query)) is not None]
        return exp(sum(map(log, values)) / len(values)) if values else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "suite": self.suite,
            "scale": self.scale,
            "environment": self.environment,
            "results": [result.to_dict() for result in self.results],
            "summary": {
                "seconds": {
                    engine: sum(r.seconds for r in self.results if r.engine == engine)
                    for engine in self.engines
                },
                "times_faster_than_spark": self.geometric_mean(self.ratio_to_spark),
                "ratio_to_datafusion_without_planning": self.geometric_mean(self.ratio_to_datafusion),
                "ratio_to_embedded_without_planning": self.geometric_mean(self.ratio_to_embedded),
                "native": sum(bool(r.best.native) for r in self.results if r.engine == "volley"),
                "differing": [result.query for result in self.differing],
            },
        }


def run_queries(
    spark: SparkSession,
    engines: Sequence[Engine],
    queries: Sequence[str],
    runs: int,
    check: bool,
    progress: Progress,
    text_of: Callable[[str], str] = query_text,
) -> Iterator[Result]:
    """Run query by query: one warm-up of every engine, then `runs` rounds in which the engines take turns.

    An engine's best round counts. With `check`, Volley's rows of every run, including the warm-up, are compared with
    Spark's. `progress` is called with the query, the engine and the round (0: warm-up) before each run.
    `text_of` gives the SQL of a query.
    """
    for query in queries:
        text = text_of(query)
        expected = Expected.ask(spark, text) if check else None
        yield from _run_query(query, text, engines, runs, expected, progress)


def _run_query(
    query: str,
    text: str,
    engines: Sequence[Engine],
    runs: int,
    expected: Expected | None,
    progress: Progress,
) -> Iterator[Result]:
    timed: dict[str, list[Run]] = {engine.name: [] for engine in engines}
    problem: str | None = None
    for round_number in range(runs + 1):
        for engine in engines:
            progress(query, engine.name, round_number)
            run = engine.run(text)
            if round_number > 0:
                timed[engine.name].append(run)
            if expected and engine.name == "volley":
                problem = problem or expected.problem(run.table)
    for name, of_engine in timed.items():
        compared = expected is not None and name == "volley"
        yield Result(
            query,
            name,
            min(of_engine, key=lambda run: run.seconds),
            min(run.own_seconds for run in of_engine),
            tuple(run.seconds for run in of_engine),
            rows_match=problem is None if compared else None,
            difference=problem if compared else None,
        )


@dataclass(frozen=True)
class Expected:
    """Spark's result of a query, and the columns that it sorts by."""

    table: pa.Table
    order: list[int] | None

    @classmethod
    def ask(cls, spark: SparkSession, sql: str) -> Expected:
        spark.conf.set("spark.volley.enabled", "false")
        frame = spark.sql(sql)
        return cls(collect_table(frame), sort_columns(frame))

    def problem(self, table: pa.Table) -> str | None:
        return difference(self.table, table, self.order)
