# SPDX-License-Identifier: Apache-2.0
"""Data sources and files keep the contracts of split sources and readers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import LongType, StructType

from helpers.tens import Tens
from volley.plan.nodes import FileScan, SourceScan
from volley.splits.datasource import DataSourceRows, DataSourceSplits
from volley.splits.files import FileSource
from volley.splits.planned import PlannedReader
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


def portable(kind: type[DataSource], options: dict[str, str], schema: StructType) -> SourceScan:
    """The source as a class that every process imports."""
    named = {"class": f"{kind.__module__}:{kind.__qualname__}", "options": options, "schema": schema.json()}
    return replace(source_scan(kind(options), schema), reader=json.dumps(named))


SCANS = {
    "a generator": lambda: source_scan(Numbers({"splits": "4"}), NUMBERS),
    "a generator elsewhere": lambda: portable(Numbers, {"splits": "4"}, NUMBERS),
    "a list": lambda: source_scan(Tens({}), TENS),
    "an async generator": lambda: source_scan(Tens({"async": "yes"}), TENS),
    "an async generator elsewhere": lambda: portable(Tens, {"async": "yes"}, TENS),
}


@pytest.fixture(params=SCANS)
def scan(request: pytest.FixtureRequest) -> SourceScan:
    return SCANS[request.param]()


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
