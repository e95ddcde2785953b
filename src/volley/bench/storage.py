# SPDX-License-Identifier: Apache-2.0
"""Tables in an object store: other engines that read them, and a table of many small files."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
from datafusion import SessionConfig, SessionContext
from datafusion.object_store import AmazonS3
from pyspark.sql import SparkSession

import volley
from volley.bench.data import TABLES
from volley.bench.duckdb import connect
from volley.bench.engines import Run

_ROWS_PER_FILE = 100
_UPLOADS = 16


@dataclass(frozen=True)
class Store:
    """A bucket on this machine."""

    bucket: str
    endpoint: str
    access_key: str
    secret_key: str


class StoredDataFusion:
    """Plain DataFusion SQL, with its own client of the store."""

    name = "datafusion"

    def __init__(self, store: Store, folder: str, partitions: int, tables: Sequence[str] = TABLES) -> None:
        self._context = SessionContext(SessionConfig().with_target_partitions(partitions))
        client = AmazonS3(
            store.bucket,
            region="us-east-1",
            access_key_id=store.access_key,
            secret_access_key=store.secret_key,
            endpoint=f"http://{store.endpoint}",
            allow_http=True,
        )
        self._context.register_object_store("s3://", client, store.bucket)
        for table in tables:
            self._context.register_parquet(table, f"s3://{store.bucket}/{folder}/{table}/")

    def run(self, sql: str) -> Run:
        started = time.perf_counter()
        table = self._context.sql(sql).to_arrow_table()
        return Run(table, time.perf_counter() - started)


class StoredDuckDB:
    """DuckDB, with its own client of the store."""

    name = "duckdb"

    def __init__(self, store: Store, folder: str, threads: int, tables: Sequence[str] = TABLES) -> None:
        self._connection = connect("httpfs")
        self._connection.execute(f"set threads = {threads}")
        self._connection.execute(
            f"create secret (type s3, provider config, key_id '{store.access_key}', secret '{store.secret_key}', "
            f"endpoint '{store.endpoint}', url_style 'path', use_ssl false, region 'us-east-1')"
        )
        for table in tables:
            files = f"s3://{store.bucket}/{folder}/{table}/*.parquet"
            self._connection.execute(f"create view {table} as select * from read_parquet('{files}')")

    def run(self, sql: str) -> Run:
        started = time.perf_counter()
        table = self._connection.execute(sql).fetch_arrow_table()
        return Run(table, time.perf_counter() - started)


@dataclass(frozen=True)
class ManyFiles:
    """How long `count(*)` over many files takes, and how much the driver's memory grew by it."""

    files: int
    listing_seconds: float
    seconds: float
    native: bool
    rows: int
    grown_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def write_many_files(
    files: fs.FileSystem, folder: str, count: int, advance: Callable[[], None] = lambda: None
) -> None:
    """Put `count` small Parquet files into a folder."""
    rows = pa.table({"n": range(_ROWS_PER_FILE), "text": [f"row {n}" for n in range(_ROWS_PER_FILE)]})
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    data = sink.getvalue()

    def write(number: int) -> None:
        with files.open_output_stream(f"{folder}/{number:07}.parquet") as stream:
            stream.write(data)
        advance()

    with ThreadPoolExecutor(_UPLOADS) as pool:
        for _ in pool.map(write, range(count)):
            pass


def count_many_files(spark: SparkSession, url: str, count: int) -> ManyFiles:
    """Count the rows of all files natively."""
    started = time.perf_counter()
    frame = spark.read.schema("n bigint, text string").parquet(url)
    listed = time.perf_counter()
    before = _peak_bytes()
    rows = frame.count()
    seconds = time.perf_counter() - listed
    report = volley.last_query(spark)
    if rows != count * _ROWS_PER_FILE:
        raise RuntimeError(f"{rows} rows were counted in {count} files")
    return ManyFiles(
        count,
        listed - started,
        seconds,
        report is not None and report.engine == "native",
        rows,
        _peak_bytes() - before,
    )


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
