# SPDX-License-Identifier: Apache-2.0
"""A data source of three partitions with ten rows each, in a module that workers can import."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType


@dataclass
class Ten(InputPartition):
    start: int


class Listed(DataSourceReader):
    """Knows all its partitions at once, as Spark asks for them."""

    def partitions(self) -> list[InputPartition]:
        return [Ten(start) for start in (0, 10, 20)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Ten)
        yield pa.record_batch({"n": pa.array(range(partition.start, partition.start + 10), pa.int64())})


class Found(Listed):
    """Finds its partitions one after the other."""

    async def discover(self) -> AsyncIterator[InputPartition]:
        for partition in self.partitions():
            yield partition


class Tens(DataSource):
    @classmethod
    def name(cls) -> str:
        return "tens"

    def reader(self, schema: StructType) -> DataSourceReader:
        return Found() if self.options.get("async") else Listed()
