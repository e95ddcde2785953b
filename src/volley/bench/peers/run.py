# SPDX-License-Identifier: Apache-2.0
"""Runs queries on engines in processes of their own, which take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from volley.bench.compare import difference
from volley.bench.engines import Run
from volley.bench.peers.approximate_rows import approximate_difference
from volley.bench.peers.engine_process import EngineProcess, EngineSetup, QueryNotRun
from volley.bench.peers.environments import EngineUnavailable
from volley.bench.run import Progress, Result, Results


@dataclass(frozen=True)
class Task:
    """What an engine is asked: SQL text, or a PySpark program."""

    query: str
    sql: str = ""
    program: Path | None = None

    def run(self, engine: EngineProcess, target: Path) -> Run:
        return engine.run_program(self.program, target) if self.program else engine.run(self.sql)


@dataclass(frozen=True)
class Failure:
    """An engine that is not there (`query` is empty), or a query that it cannot run."""

    engine: str
    query: str
    message: str


@dataclass
class PeerResults(Results):
    """Results of engines that may each lack some queries. `versions` are those of the packages of each engine."""

    failures: list[Failure] = field(default_factory=list)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def common_queries(self) -> list[str]:
        """The queries that every engine ran: only their totals can be compared."""
        return [query for query in self.queries if all(self.of(query, engine) for engine in self.engines)]

    def total_seconds(self, engine: str) -> float:
        return sum(self._of_common(engine, lambda result: result.seconds))

    def cpu_seconds(self, engine: str) -> float:
        return sum(self._of_common(engine, lambda result: result.best.cpu_seconds or 0.0))

    def peak_bytes(self, engine: str) -> int:
        """The largest memory of any of its queries, also of those that others could not run."""
        return max(
            (result.best.peak_bytes or 0 for result in self.results if result.engine == engine), default=0
        )

    def ratio_to_volley(self, engine: str) -> float | None:
        """The geometric mean, over the queries that both ran, of its seconds divided by Volley's, planning included."""

        def ratio(query: str) -> float | None:
            ours, theirs = self.of(query, "volley"), self.of(query, engine)
            return theirs.seconds / ours.seconds if ours and theirs else None

        return self.geometric_mean(ratio)

    def answered(self, engine: str) -> int:
        return sum(result.engine == engine for result in self.results)

    def to_dict(self) -> dict[str, Any]:
        engines = {
            engine: {
                "versions": self.versions.get(engine, {}),
                "answered": self.answered(engine),
                "seconds": self.total_seconds(engine),
                "cpu_seconds": self.cpu_seconds(engine),
                "peak_bytes": self.peak_bytes(engine),
                "ratio_to_volley": self.ratio_to_volley(engine),
            }
            for engine in self.engines
        }
        return super().to_dict() | {
            "common_queries": self.common_queries,
            "engines": engines,
            "failures": [vars(failure) for failure in self.failures],
        }

    def _of_common(self, engine: str, figure: Callable[[Result], float]) -> list[float]:
        found = [self.of(query, engine) for query in self.common_queries]
        return [figure(result) for result in found if result]


def run_peers(
    results: PeerResults,
    names: Sequence[str],
    setup: EngineSetup,
    tasks: Sequence[Task],
    runs: int,
    target: Path,
    progress: Progress,
    starting: Callable[[str], None] = lambda engine: None,
) -> None:
    """Start the engines, then run query by query: one warm-up of each, and `runs` rounds in which they take turns.

    Rows of the warm-up are compared: Volley's with Spark's exactly, those of others as far as their types allow. What
    cannot be installed, started or run is recorded as a failure, and the others go on.
    """
    with ExitStack() as processes:
        engines = []
        for name in names:
            starting(name)
            try:
                engine = processes.enter_context(EngineProcess(name, setup))
            except EngineUnavailable as error:
                results.failures.append(Failure(name, "", str(error)))
                continue
            engines.append(engine)
            results.versions[name] = engine.versions
        for task in tasks:
            _run_task(results, engines, task, runs, target, progress)


def _run_task(
    results: PeerResults,
    engines: list[EngineProcess],
    task: Task,
    runs: int,
    target: Path,
    progress: Progress,
) -> None:
    rows: dict[str, pa.Table] = {}
    timed: dict[str, list[Run]] = {}
    failed: set[str] = set()
    for round_number in range(runs + 1):
        for engine in list(engines):
            progress(task.query, engine.name, round_number)
            if engine.name in failed:
                continue
            try:
                run = task.run(engine, target / engine.name)
            except (QueryNotRun, EngineUnavailable) as error:
                failed.add(engine.name)
                results.failures.append(Failure(engine.name, task.query, str(error)))
                if isinstance(error, EngineUnavailable):
                    engines.remove(engine)
                continue
            if round_number:
                timed.setdefault(engine.name, []).append(run)
            else:
                rows[engine.name] = run.table
    try:
        compared = _compare(rows, engines, task)
    except (QueryNotRun, EngineUnavailable) as error:
        results.failures.append(Failure("spark", task.query, str(error)))
        return
    for name, of_engine in timed.items():
        if name in failed:
            continue
        is_compared = name in compared
        results.results.append(
            Result(
                task.query,
                name,
                min(of_engine, key=lambda run: run.seconds),
                min(run.own_seconds for run in of_engine),
                tuple(run.seconds for run in of_engine),
                rows_match=compared[name] is None if is_compared else None,
                difference=compared.get(name),
            )
        )


def _compare(rows: dict[str, pa.Table], engines: list[EngineProcess], task: Task) -> dict[str, str | None]:
    """How the rows of each engine differ from Spark's or, without it, from Volley's or the first engine's.

    Raises QueryNotRun if Spark cannot say how the query sorts, and EngineUnavailable if it has ended.
    """
    oracle = next((name for name in ("spark", "volley", *rows) if name in rows), None)
    if oracle is None:
        return {}
    found = {
        name: approximate_difference(rows[oracle], table)
        for name, table in rows.items()
        if name not in (oracle, "volley")
    }
    if oracle == "spark" and "volley" in rows:
        spark = next((engine for engine in engines if engine.name == "spark"), None)
        # A program writes its rows in no order.
        order = spark.sort_columns(task.sql) if spark is not None and task.sql else None
        found["volley"] = difference(rows["spark"], rows["volley"], order)
    return found
