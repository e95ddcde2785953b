# SPDX-License-Identifier: Apache-2.0
"""The contracts of `SplitSource` and `SplitReader`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from volley.plan.expressions import Attribute
from volley.plan.local_registry import register
from volley.plan.nodes import HERE, SourceScan
from volley.plan.types import parse_type
from volley.splits.source import Split, SplitReader, SplitSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType


class SplitSourceContract:
    """The contract of `SplitSource`. Subclasses provide `make_source`, which creates the same source each time."""

    def test_splits_are_the_same_every_time(self, make_source: Callable[[], SplitSource]) -> None:
        first, second = ({split.payload for split in splits_of(make_source())} for _ in range(2))
        assert first == second

    def test_the_schema_is_known_before_discovery(self, make_source: Callable[[], SplitSource]) -> None:
        assert isinstance(make_source().schema, pa.Schema)

    def test_each_split_comes_once(self, make_source: Callable[[], SplitSource]) -> None:
        payloads = [split.payload for split in splits_of(make_source())]
        assert len(payloads) == len(set(payloads)) > 0

    def test_the_final_estimate_counts_the_splits(self, make_source: Callable[[], SplitSource]) -> None:
        source = make_source()
        splits = splits_of(source)
        assert source.estimate().final
        assert source.estimate().splits == len(splits)

    def test_it_can_be_closed_in_the_middle(self, make_source: Callable[[], SplitSource]) -> None:
        source = make_source()
        splits_of(source, limit=1)
        source.close()

    def test_the_estimate_may_be_asked_at_any_time(self, make_source: Callable[[], SplitSource]) -> None:
        source = make_source()
        before = source.estimate()
        splits = splits_of(source)
        assert before.splits <= len(splits)


class SplitReaderContract:
    """The contract of `SplitReader`. Subclasses provide the fixtures `reader`, `payloads` and `columns`: at least two
    splits, each with rows, and the columns to read."""

    def test_batches_have_the_columns(
        self, reader: SplitReader, payloads: Sequence[bytes], columns: Sequence[str]
    ) -> None:
        for payload in payloads:
            batches = list(reader.read(payload, columns, ()))
            assert sum(batch.num_rows for batch in batches) > 0
            assert {batch.num_columns for batch in batches} == {len(columns)}

    def test_a_retry_reads_the_same_rows(
        self, reader: SplitReader, payloads: Sequence[bytes], columns: Sequence[str]
    ) -> None:
        for payload in payloads:
            assert _rows(reader, payload, columns) == _rows(reader, payload, columns)

    def test_splits_are_read_by_several_threads_at_once(
        self, reader: SplitReader, payloads: Sequence[bytes], columns: Sequence[str]
    ) -> None:
        expected = [_rows(reader, payload, columns) for payload in payloads]
        with ThreadPoolExecutor(len(payloads)) as threads:
            found = list(threads.map(lambda payload: _rows(reader, payload, columns), payloads))
        assert found == expected

    def test_a_read_may_be_dropped_in_the_middle(
        self, reader: SplitReader, payloads: Sequence[bytes], columns: Sequence[str]
    ) -> None:
        batches = reader.read(payloads[0], columns, ())
        next(batches)
        del batches
        assert _rows(reader, payloads[0], columns)


def _rows(reader: SplitReader, payload: bytes, columns: Sequence[str]) -> list[tuple[object, ...]]:
    """The rows of a split, in an order that does not depend on its batches."""
    found = [
        row
        for batch in reader.read(payload, columns, ())
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]
    return sorted(found, key=repr)


def source_scan(source: DataSource, schema: StructType) -> SourceScan:
    """A scan of a data source of PySpark, for its `DataSourceSplits` and `DataSourceRows`."""
    from pyspark import cloudpickle

    digest = register(cloudpickle.dumps(source))  # type: ignore[no-untyped-call]  # it has no types
    output = tuple(
        Attribute(number, field.name, parse_type(json.loads(field.dataType.json())))
        for number, field in enumerate(schema.fields)
    )
    return SourceScan(type(source).name(), f"{HERE}{digest}:{schema.json()}", tuple(schema.names), output)


def splits_of(source: SplitSource, limit: int | None = None) -> list[Split]:
    """The first `limit` splits of a source, or all of them."""

    async def collect(splits: AsyncIterator[Split]) -> list[Split]:
        found: list[Split] = []
        async for split in splits:
            found.append(split)
            if len(found) == limit:
                break
        return found

    splits = source.splits()
    if isinstance(splits, AsyncIterator):
        return asyncio.run(collect(splits))
    return list(islice(splits, limit))
