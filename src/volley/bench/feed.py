# SPDX-License-Identifier: Apache-2.0
"""A source with slow discovery. Volley reads it during discovery, Spark after it.

    first row     from the action to the client's first row
    after split   from the first discovered split to the client's first row
    total         from the action to the client's last row
    at best       the longer of discovery and reading, as if they overlapped perfectly
    in turn       the sum of both, as if nothing overlapped

Discovery and reading sleep instead of computing, so the figures show the order of events, not the speed of a machine.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from rich.table import Table

import volley
from volley.events import FeedStatus


@dataclass(frozen=True)
class Pace:
    """`splits` splits of `rows` rows, discovered evenly over `discovery_seconds`. Reading one takes `read_seconds`."""

    splits: int
    rows: int
    discovery_seconds: float
    read_seconds: float

    def best_seconds(self, readers: int) -> float:
        return max(self.discovery_seconds, self.reading_seconds(readers))

    def reading_seconds(self, readers: int) -> float:
        return self.splits * self.read_seconds / readers


class Paced(DataSource):
    """The source. Its options are the fields of a `Pace`, and `mark`, a file that is created with the first split."""

    @classmethod
    def name(cls) -> str:
        return "volley_paced"

    def schema(self) -> str:
        return "id bigint"

    def reader(self, schema: StructType) -> PacedReader:
        options = self.options
        return PacedReader(
            Pace(
                int(options["splits"]),
                int(options["rows"]),
                float(options["discovery_seconds"]),
                float(options["read_seconds"]),
            ),
            options["mark"],
        )


class PacedReader(DataSourceReader):
    def __init__(self, pace: Pace, mark: str) -> None:
        self._pace = pace
        self._mark = mark

    def discover(self) -> Iterator[InputPartition]:
        started = time.monotonic()
        for split in range(self._pace.splits):
            if split == 0 and not Path(self._mark).exists():
                # A file, because Spark runs discovery in another process.
                Path(self._mark).touch()
            yield InputPartition(split)
            due = started + self._pace.discovery_seconds * (split + 1) / self._pace.splits
            time.sleep(max(0.0, due - time.monotonic()))

    def partitions(self) -> list[InputPartition]:
        return list(self.discover())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        time.sleep(self._pace.read_seconds)
        start = partition.value * self._pace.rows
        ids = pa.array(range(start, start + self._pace.rows), pa.int64())
        yield pa.RecordBatch.from_arrays([ids], ["id"])


@dataclass(frozen=True)
class FeedRun:
    """One run. `first_split_seconds` is from the first split to the first row. `by_task` counts the splits
    of each task, if the engine reports them."""

    engine: str
    rows: int
    first_row_seconds: float
    first_split_seconds: float
    total_seconds: float
    by_task: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    spark: SparkSession, pace: Pace, engines: Sequence[str], told: Callable[[str], None]
) -> list[FeedRun]:
    """Measure one engine after the other, each after a small warm-up run on the same source."""
    spark.dataSource.register(Paced)
    runs = []
    for engine in engines:
        spark.conf.set("spark.volley.enabled", str(engine == "volley").lower())
        told(f"{engine}: warm-up")
        _frame(spark, Pace(2, 1, 0.0, 0.0)).collect()
        told(f"{engine}: first row")
        first, after_split = _first_row(spark, pace)
        told(f"{engine}: all rows")
        started = time.perf_counter()
        rows = len(_frame(spark, pace).collect())
        total = time.perf_counter() - started
        if rows != pace.splits * pace.rows:
            raise AssertionError(f"{engine} returned {rows} of {pace.splits * pace.rows} rows")
        runs.append(
            FeedRun(engine, rows, first, after_split, total, _by_task(spark) if engine == "volley" else ())
        )
    return runs


def feed_table(pace: Pace, readers: int, runs: Sequence[FeedRun]) -> Table:
    in_turn = pace.discovery_seconds + pace.reading_seconds(readers)
    reading = pace.reading_seconds(readers)
    table = Table(
        title=f"{pace.splits:,} splits: discovery {pace.discovery_seconds:g} s, reading {reading:.1f} s",
        caption=f"{pace.best_seconds(readers):.1f} s with perfect overlap, {in_turn:.1f} s without overlap.",
        caption_justify="left",
    )
    table.add_column("engine")
    for name in ("first row (s)", "after split (s)", "total (s)", "to best", "splits by task"):
        table.add_column(name, justify="right")
    for run in runs:
        table.add_row(
            run.engine,
            f"{run.first_row_seconds:.2f}",
            f"{run.first_split_seconds:.2f}",
            f"{run.total_seconds:.2f}",
            f"{run.total_seconds / pace.best_seconds(readers):.2f}",
            " ".join(map(str, run.by_task)),
        )
    return table


def _frame(spark: SparkSession, pace: Pace, mark: Path | None = None) -> DataFrame:
    reader = spark.read.format(Paced.name()).option("mark", str(mark or "/dev/null"))
    for name, value in asdict(pace).items():
        reader = reader.option(name, str(value))
    return reader.load()


def _first_row(spark: SparkSession, pace: Pace) -> tuple[float, float]:
    """Seconds to the first row, from the action and from the first split."""
    with tempfile.TemporaryDirectory() as directory:
        mark = Path(directory) / "first"
        frame = _frame(spark, pace, mark)
        started = time.time()
        rows = frame.toLocalIterator()
        next(rows)
        ended = time.time()
        found = mark.stat().st_mtime
        # Spark's own iterator has no close; it ends when it is dropped.
        if hasattr(rows, "close"):
            cast(Any, rows).close()
        return ended - started, ended - found


def _by_task(spark: SparkSession) -> tuple[int, ...]:
    report = volley.last_query(spark)
    if report is None or not report.native:
        raise AssertionError(f"Volley did not run it: {report}")
    feeds: list[FeedStatus] = [feed for stage in report.stages for feed in stage.feeds]
    return feeds[0].by_task
