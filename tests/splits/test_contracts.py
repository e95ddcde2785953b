# SPDX-License-Identifier: Apache-2.0
"""Data sources and files keep the contracts of split sources and readers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import LongType, StructType

from helpers.tens import Tens
from volley.plan.nodes import FileScan, SourceScan
from volley.sources.files import Files
from volley.splits.datasource import DataSourceRows, DataSourceSplits
from volley.splits.files import FileSource
from volley.splits.planned_reader import PlannedReader
from volley.splits.source import SplitReader, SplitSource
from volley.testing.contracts import (
    SplitReaderContract,
    SplitSourceContract,
    number_files,
    source_scan,
    splits_of,
)
from volley.testing.limits import DISTRIBUTED
from volley.testing.sources import Numbers

NUMBERS = StructType().add("id", LongType()).add("split", LongType()).add("pid", LongType())
TENS = StructType().add("n", LongType())
TABLE = pa.table({"id": pa.array(range(100), pa.int64()), "name": [f"n{number}" for number in range(100)]})


def portable(kind: type[DataSource], options: dict[str, str], schema: StructType) -> SourceScan:
    """The source as a class that every process imports."""
    named = {"class": f"{kind.__module__}:{kind.__qualname__}", "options": options, "schema": schema.json()}
    return replace(source_scan(kind(options), schema), reader=json.dumps(named))


def files(directory: Path) -> SourceScan:
    """A file that is cut into several splits, and one that is not."""
    large = pa.table({"id": pa.array(range(20_000), pa.int64())})
    pq.write_table(large, directory / "a.parquet", row_group_size=1000)
    pq.write_table(large.slice(0, 5), directory / "b.parquet")
    options = {"path": str(directory), "splitBytes": str((directory / "a.parquet").stat().st_size // 3)}
    return portable(Files, options, Files(options).schema())


def iceberg(directory: Path) -> SourceScan:
    """A table of two files, one of which has deleted rows."""
    catalog = pytest.importorskip("pyiceberg.catalog", reason="needs pyiceberg, of the extra iceberg")
    from volley.sources.iceberg import Iceberg

    properties = {"uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}"}
    made = catalog.load_catalog("volley", **properties)
    made.create_namespace("sales")
    table = made.create_table("sales.orders", schema=TABLE.schema)
    table.append(TABLE.slice(0, 50))
    table.append(TABLE.slice(50))
    table.delete("id < 10")
    options = {"path": "sales.orders"} | {f"catalog.{key}": value for key, value in properties.items()}
    return portable(Iceberg, options, Iceberg(options).schema())


def delta(directory: Path) -> SourceScan:
    """A table of two files, in two partitions."""
    deltalake = pytest.importorskip("deltalake", reason="needs deltalake, of the extra delta")
    from volley.sources.delta import Delta

    deltalake.write_deltalake(directory, TABLE.slice(0, 50))
    deltalake.write_deltalake(directory, TABLE.slice(50), mode="append")
    options = {"path": str(directory)}
    return portable(Delta, options, Delta(options).schema())


SCANS: dict[str, Callable[[Path], SourceScan]] = {
    "a generator": lambda _: source_scan(Numbers({"splits": "4"}), NUMBERS),
    "a generator elsewhere": lambda _: portable(Numbers, {"splits": "4"}, NUMBERS),
    "a list": lambda _: source_scan(Tens({}), TENS),
    "an async generator": lambda _: source_scan(Tens({"async": "yes"}), TENS),
    "an async generator elsewhere": lambda _: portable(Tens, {"async": "yes"}, TENS),
    "files": files,
    "iceberg": iceberg,
    "delta": delta,
}


@pytest.fixture(params=SCANS)
def scan(request: pytest.FixtureRequest, tmp_path: Path) -> SourceScan:
    return SCANS[request.param](tmp_path)


class TestDataSourceSplits(SplitSourceContract):
    @pytest.fixture
    def make_source(self, scan: SourceScan) -> Callable[[], SplitSource]:
        return lambda: DataSourceSplits(scan)


class TestDataSourceRows(SplitReaderContract):
    @pytest.fixture
    def reader(self, scan: SourceScan) -> SplitReader:
        return DataSourceRows(scan)

    @pytest.fixture
    def payloads(self, scan: SourceScan) -> Sequence[bytes]:
        return [split.payload for split in splits_of(DataSourceSplits(scan))]

    @pytest.fixture
    def columns(self, scan: SourceScan) -> Sequence[str]:
        return scan.columns[:1]


class TestPlannedReader(SplitReaderContract):
    @pytest.fixture
    def file_scan(self) -> Iterator[FileScan]:
        with number_files(3, 10) as scan:
            yield scan

    @pytest.fixture
    def reader(self, file_scan: FileScan) -> SplitReader:
        return PlannedReader(replace(file_scan, files=()))

    @pytest.fixture
    def payloads(self, file_scan: FileScan) -> Sequence[bytes]:
        return [split.payload for split in splits_of(FileSource(file_scan, 3, DISTRIBUTED))]

    @pytest.fixture
    def columns(self) -> Sequence[str]:
        return ["n"]
