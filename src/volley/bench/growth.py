# SPDX-License-Identifier: Apache-2.0
"""How time and memory grow with the data, the files, the columns and the queries at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.table import Table

import volley
from volley.bench.data import TABLES, tpch_data
from volley.bench.peers.engine_process import EngineProcess, EngineSetup
from volley.bench.queries import query_text
from volley.bench.storage import write_many_files
from volley.spark_versions.classic import collect_table

Kind = Literal["scale", "files", "columns", "concurrent"]
Tell = Callable[[str], None]

_CELLS = 4_000_000
_QUERIES_PER_THREAD = 4
# Short queries of different kinds: a scan, a join, a subquery.
_MIXTURE = ("q06", "q12", "q22")


@dataclass(frozen=True)
class Point:
    """One measurement. `seconds` are those of the best run or, of concurrent queries, until all of them are done.

    `query` is empty for all together. `p95_seconds` is the time within which 95 of 100 concurrent queries were done.
    """

    kind: Kind
    size: float
    engine: str
    seconds: float
    query: str = ""
    peak_bytes: int | None = None
    p95_seconds: float | None = None
    queries: int = 1
    native: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def grow_scale(
    scales: Sequence[float],
    engines: Sequence[str],
    queries: Sequence[str],
    cores: int,
    runs: int,
    directory: Path | None,
    tell: Tell,
) -> Iterator[Point]:
    """TPC-H at several scales, each in a fresh process: memory that was kept would hide what is used."""
    for scale in scales:
        data = tpch_data(scale, directory)
        for engine in engines:
            tell(f"scale {scale:g}, {engine}")
            with EngineProcess(engine, EngineSetup(data, TABLES, cores, {})) as process:
                points = [_best(process, scale, query, runs) for query in queries]
            yield from points
            yield Point(
                "scale",
                scale,
                engine,
                sum(point.seconds for point in points),
                peak_bytes=max(point.peak_bytes or 0 for point in points),
                queries=len(points),
                native=all(point.native for point in points) if engine == "volley" else None,
            )


def _best(process: EngineProcess, scale: float, query: str, runs: int) -> Point:
    text = query_text(query)
    peak = process.run(text).peak_bytes or 0
    timed = [process.run(text) for _ in range(runs)]
    best = min(timed, key=lambda run: run.seconds)
    peak = max(peak, *(run.peak_bytes or 0 for run in timed))
    return Point("scale", scale, process.name, best.seconds, query, peak, native=best.native)


def grow_files(
    spark: SparkSession, counts: Sequence[int], engines: Sequence[str], runs: int, directory: Path, tell: Tell
) -> Iterator[Point]:
    """A sum over many small files, the time to list them included."""
    for count in counts:
        folder = directory / f"files-{count}"
        folder.mkdir()
        tell(f"writing {count:,} files")
        write_many_files(fs.LocalFileSystem(), str(folder), count)
        sql = f"select count(*) as rows, sum(n) as total from parquet.`{folder}`"
        for engine in engines:
            tell(f"{count:,} files, {engine}")
            yield _measure(spark, "files", count, engine, sql, runs)


def grow_columns(
    spark: SparkSession, counts: Sequence[int], engines: Sequence[str], runs: int, directory: Path, tell: Tell
) -> Iterator[Point]:
    """Sums of all columns of ever wider tables with the same number of values: plans grow, data does not."""
    for count in counts:
        file = directory / f"columns-{count}.parquet"
        values = np.random.default_rng(count).integers(0, 1000, max(1, _CELLS // count))
        pq.write_table(pa.table({f"c{number:04}": values for number in range(count)}), file)
        sums = ", ".join(f"sum(c{number:04}) as s{number:04}" for number in range(count))
        for engine in engines:
            tell(f"{count:,} columns, {engine}")
            yield _measure(spark, "columns", count, engine, f"select {sums} from parquet.`{file}`", runs)


def grow_concurrency(
    spark: SparkSession, counts: Sequence[int], engines: Sequence[str], tell: Tell
) -> Iterator[Point]:
    """Short TPC-H queries from many threads at a time. The tables are views of the session."""
    for count in counts:
        for engine in engines:
            tell(f"{count} queries at a time, {engine}")
            _choose(spark, engine)
            for query in _MIXTURE:  # plans and classes are warm
                collect_table(spark.sql(query_text(query)))
            yield _run_threads(spark, count, engine)


def _run_threads(spark: SparkSession, count: int, engine: str) -> Point:
    together = threading.Barrier(count)

    def work(thread: int) -> tuple[list[float], bool]:
        together.wait()
        took, native = [], True
        for turn in range(_QUERIES_PER_THREAD):
            started = time.perf_counter()
            collect_table(spark.sql(query_text(_MIXTURE[(thread + turn) % len(_MIXTURE)])))
            took.append(time.perf_counter() - started)
            report = volley.last_query(spark)
            native = native and report is not None and report.native
        return took, native

    started = time.perf_counter()
    with ThreadPoolExecutor(count) as pool:
        done = list(pool.map(work, range(count)))
    seconds = time.perf_counter() - started
    latencies = [seconds for of_thread, _ in done for seconds in of_thread]
    return Point(
        "concurrent",
        count,
        engine,
        seconds,
        p95_seconds=quantiles(latencies, n=20, method="inclusive")[-1],
        queries=len(latencies),
        native=all(native for _, native in done) if engine == "volley" else None,
    )


def _measure(spark: SparkSession, kind: Kind, size: int, engine: str, sql: str, runs: int) -> Point:
    _choose(spark, engine)
    took = []
    for _ in range(runs + 1):
        started = time.perf_counter()
        collect_table(spark.sql(sql))
        took.append(time.perf_counter() - started)
    report = volley.last_query(spark) if engine == "volley" else None
    # The first one warmed up.
    return Point(kind, size, engine, min(took[1:]), native=report.native if report else None)


def _choose(spark: SparkSession, engine: str) -> None:
    spark.conf.set("spark.volley.enabled", str(engine == "volley").lower())


def growth_table(points: Sequence[Point]) -> Table:
    """The totals, with the growth of each engine's time from one size to the next."""
    table = Table(
        caption="growth: how many times longer than the size before; in brackets, how many times larger it is. "
        "Of concurrent queries: queries per second instead.",
        caption_justify="left",
    )
    for name in ("of", "size", "engine", "seconds", "growth", "p95 s", "peak MiB", "native"):
        table.add_column(name, justify="left" if name in ("of", "engine", "native") else "right")
    totals = [point for point in points if not point.query]
    before: dict[tuple[str, str], Point] = {}
    for point in sorted(totals, key=lambda point: (point.kind, point.engine, point.size)):
        key = (point.kind, point.engine)
        table.add_row(
            point.kind,
            f"{point.size:,g}",
            point.engine,
            f"{point.seconds:.3f}",
            _growth(before.get(key), point),
            f"{point.p95_seconds:.3f}" if point.p95_seconds is not None else "",
            f"{point.peak_bytes / 2**20:,.0f}" if point.peak_bytes is not None else "",
            "" if point.native is None else ("yes" if point.native else "[red]no[/]"),
        )
        before[key] = point
    return table


def _growth(before: Point | None, point: Point) -> str:
    if point.kind == "concurrent":
        return f"{point.queries / point.seconds:.1f}/s"
    if before is None:
        return ""
    return f"{point.seconds / before.seconds:.2f} ({point.size / before.size:g})"
