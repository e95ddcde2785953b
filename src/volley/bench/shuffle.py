# SPDX-License-Identifier: Apache-2.0
"""Measures a hash exchange: rows are partitioned, written to a store and read back.

    in-process    references within this process
    same host     memory or disk of another process, mapped or read
    TCP           memory of another process, over Flight on loopback (no network latency)
    service       shuffle servers: pushed, on disk at commit, then read over Flight
    folder        local files in the layout of an object store, or an object store
    spark         Spark's shuffle of the same rows

Writing includes reading the input, hashing and partitioning it. Reading includes verifying every checksum. Reading
starts after writing, as in the stages of a query, and the rates are for both together.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.table import Table

from volley.bench.exchange_writers import HERE, writers
from volley.bench.writers import COLUMNS, ExchangeCase, Writer, make_rows
from volley.shuffle.base import Block, ShuffleStore


def folder_cases(uri: str) -> tuple[ExchangeCase, ...]:
    return tuple(ExchangeCase("folder", uri, compression) for compression in ("none", "lz4"))


WAYS = (
    ExchangeCase("in-process", "memory", "none"),
    ExchangeCase("same host", "memory", "none"),
    *(ExchangeCase("same host", "disk", compression) for compression in ("none", "lz4", "zstd")),
    *(ExchangeCase("TCP", "memory", compression) for compression in ("none", "lz4", "zstd")),
    *(
        ExchangeCase("service", replicas, compression)
        for replicas in ("1 replica", "2 replicas")
        for compression in ("none", "lz4")
    ),
    *folder_cases(HERE),
)
SPARK = ExchangeCase("spark", "disk", "lz4")

Progress = Callable[[ExchangeCase, int], None]
"""Called before each run, with its number; 0 is the warm-up."""


@dataclass(frozen=True)
class Exchange:
    """The best exchange of one way. For Spark, writing and reading are not known separately."""

    way: ExchangeCase
    rows: int
    size_bytes: int
    seconds: float
    write_seconds: float | None = None
    read_seconds: float | None = None

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds

    @property
    def gigabytes_per_second(self) -> float:
        return self.size_bytes / self.seconds / 1e9

    def to_dict(self) -> dict[str, Any]:
        rates = {"rows_per_second": self.rows_per_second, "gigabytes_per_second": self.gigabytes_per_second}
        return asdict(self) | rates


def measure(
    rows: int, partitions: int, cores: int, runs: int, ways: Sequence[ExchangeCase], progress: Progress
) -> Iterator[Exchange]:
    """Measure one way after the other: `runs` exchanges each, after a warm-up."""
    with writers(rows, partitions, cores) as writer_of, tempfile.TemporaryDirectory() as directory:
        for way in ways:
            writer = writer_of(way)
            done = []
            for run in range(runs + 1):
                progress(way, run)
                done.append(_exchange(way, writer, Path(directory), cores))
            yield min(done[1:], key=lambda exchange: exchange.seconds)


def measure_spark(spark: SparkSession, rows: int, partitions: int, runs: int, progress: Progress) -> Exchange:
    """Shuffle the same rows in Spark, from its cache to a sink that discards them."""
    table = make_rows(rows)
    with tempfile.TemporaryDirectory() as directory:
        pq.write_table(table.rename_columns([column.name for column in COLUMNS]), f"{directory}/rows.parquet")
        frame = spark.read.parquet(directory).cache()
        if frame.count() != rows:
            raise AssertionError("Spark has different rows")
        done = []
        for run in range(runs + 1):
            progress(SPARK, run)
            started = time.perf_counter()
            frame.repartition(partitions, COLUMNS[0].name).write.format("noop").mode("overwrite").save()
            done.append(time.perf_counter() - started)
        frame.unpersist(blocking=True)
    return Exchange(SPARK, rows, table.nbytes, min(done[1:]))


def shuffle_table(exchanges: Sequence[Exchange]) -> Table:
    table = Table(
        title=f"A hash exchange of {exchanges[0].rows:,} rows, {exchanges[0].size_bytes / 1e6:,.0f} MB",
        caption="Rates are for writing and then reading.",
        caption_justify="left",
    )
    for name in ("way", "medium", "compression"):
        table.add_column(name)
    for name in ("write (s)", "read (s)", "total (s)", "million rows/s", "GB/s"):
        table.add_column(name, justify="right")
    for exchange in exchanges:
        way = exchange.way
        seconds = (exchange.write_seconds, exchange.read_seconds, exchange.seconds)
        table.add_row(
            # What follows says how it is reached.
            *(way.distance, way.medium.partition("?")[0], way.compression),
            *("" if value is None else f"{value:.3f}" for value in seconds),
            f"{exchange.rows_per_second / 1e6:.2f}",
            f"{exchange.gigabytes_per_second:.2f}",
        )
    return table


def _exchange(way: ExchangeCase, writer: Writer, directory: Path, cores: int) -> Exchange:
    written = writer.write(way, directory)
    store = writer.reader(way, directory)
    started = time.perf_counter()
    with ThreadPoolExecutor(cores) as readers:
        rows = sum(readers.map(lambda i: _read(store, written.blocks[i::cores]), range(cores)))
    read_seconds = time.perf_counter() - started
    writer.free()
    if rows != written.rows:
        raise AssertionError(f"{written.rows} rows were written and {rows} read")
    size_bytes = sum(block.size_bytes for block in written.blocks)
    return Exchange(way, rows, size_bytes, written.seconds + read_seconds, written.seconds, read_seconds)


def _read(store: ShuffleStore, blocks: Sequence[Block]) -> int:
    return sum(batch.num_rows for batch in store.read_many(blocks))
