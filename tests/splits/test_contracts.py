# SPDX-License-Identifier: Apache-2.0
"""Data sources and files keep the contracts of split sources and readers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import LongType, StructType

from helpers.tens import Tens
from volley.plan.expressions import Attribute
from volley.plan.local_registry import register
from volley.plan.nodes import HERE, FileScan, SourceScan
from volley.plan.types import LONG
from volley.splits.datasource import DataSourceRows, DataSourceSplits
from volley.splits.files import FileSource
from volley.splits.planned import PlannedReader
from volley.splits.source import SplitReader, SplitSource
from volley.testing.contracts import (
    SplitReaderContract,
    SplitSourceContract,
    number_files,
    splits_of,
)
from volley.testing.limits import DISTRIBUTED
from volley.testing.sources import Numbers

NUMBERS = StructType().add("id", LongType()).add("split", LongType()).add("pid", LongType())
TENS = StructType().add("n", LongType())


def scan_of(reference: str, schema: StructType) -> SourceScan:
    names = tuple(schema.fieldNames())
    output = tuple(Attribute(number, name, LONG) for number, name in enumerate(names))
    return SourceScan("source", reference, names, output)


def here(source: DataSource, schema: StructType) -> SourceScan:
    """The source as an object of this process."""
    digest = register(cloudpickle.dumps(source))  # type: ignore[no-untyped-call]  # it has no types
    return scan_of(f"{HERE}{digest}:{schema.json()}", schema)


def portable(kind: type[DataSource], options: dict[str, str], schema: StructType) -> SourceScan:
    """The source as a class that every process imports."""
    named = {"class": f"{kind.__module__}:{kind.__qualname__}", "options": options, "schema": schema.json()}
    return scan_of(json.dumps(named), schema)


SCANS = {
    "a generator": lambda: here(Numbers({"splits": "4"}), NUMBERS),
    "a generator elsewhere": lambda: portable(Numbers, {"splits": "4"}, NUMBERS),
    "a list": lambda: here(Tens({}), TENS),
    "an async generator": lambda: here(Tens({"async": "yes"}), TENS),
    "an async generator elsewhere": lambda: portable(Tens, {"async": "yes"}, TENS),
}


@pytest.fixture(params=SCANS)
def source_scan(request: pytest.FixtureRequest) -> SourceScan:
    return SCANS[request.param]()


class TestDataSourceSplits(SplitSourceContract):
    @pytest.fixture
    def make_source(self, source_scan: SourceScan) -> Callable[[], SplitSource]:
        return lambda: DataSourceSplits(source_scan)


class TestDataSourceRows(SplitReaderContract):
    @pytest.fixture
    def reader(self, source_scan: SourceScan) -> SplitReader:
        return DataSourceRows(source_scan)

    @pytest.fixture
    def payloads(self, source_scan: SourceScan) -> Sequence[bytes]:
        return [split.payload for split in splits_of(DataSourceSplits(source_scan))]

    @pytest.fixture
    def columns(self, source_scan: SourceScan) -> Sequence[str]:
        return source_scan.columns[:1]


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
