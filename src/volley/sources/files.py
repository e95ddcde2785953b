# SPDX-License-Identifier: Apache-2.0
"""Reads the files of a directory while the directory is still being listed.

    spark.dataSource.register(Files)
    spark.read.format("volley_files").option("format", "parquet").load("/data/events")

Spark lists a whole directory before it reads the first file. This source yields files as it finds them, folder by
folder, on the local file system or any that pyarrow supports (`s3://`, `gs://`, `hdfs://`). Large Parquet and ORC files
are cut into byte ranges without reading their footers. A row group belongs to the range in which it begins; a stripe to
the range in which it would begin if all stripes had the same size.

Folders named `key=value` become columns, of type string unless `.schema(...)` says otherwise. Files and folders whose
names begin with `_` or `.` are skipped, as in Spark. Folders that a query's filter excludes are not listed. Parquet row
groups that it excludes by their statistics, and unused columns, are not read.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from volley.batches import make_batch
from volley.formats.ranges import RANGE_READERS, FileRange
from volley.sources.pruning import Pruner
from volley.spark_versions.arrow import arrow_schema, spark_schema

if TYPE_CHECKING:
    # Spark 4.0 has no filters.
    from pyspark.sql.datasource import Filter

_SPLIT_BYTES = 64 * 2**20


@dataclass
class FilePartition(InputPartition):
    """The part of a file of `size` bytes that begins in the byte range [`start`, `end`). CSV and JSON are not cut."""

    path: str
    start: int
    end: int
    size: int
    values: dict[str, str | None]

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


class Files(DataSource):
    """Options: `path`, `format` (parquet, orc, csv, json), `splitBytes`."""

    @classmethod
    def name(cls) -> str:
        return "volley_files"

    def schema(self) -> StructType:
        """The columns of the first file that is found, and those of its folders."""
        reader = self._reader()
        first = next(reader.discover(), None)
        if first is None:
            raise ValueError(f"{self.options['path']} has no files, and no schema was given")
        file_system, _ = _open(self.options["path"])
        found = ds.dataset(first.path, filesystem=file_system, format=reader.format).schema
        columns = [*found, *(pa.field(name, pa.string()) for name in first.values)]
        return spark_schema(pa.schema(columns))

    def reader(self, schema: StructType) -> FilesReader:
        return self._reader(schema)

    def _reader(self, schema: StructType | None = None) -> FilesReader:
        kind = self.options.get("format", "parquet").lower()
        if kind not in RANGE_READERS:
            raise ValueError(f"format {kind} is not one of {', '.join(RANGE_READERS)}")
        split_bytes = int(self.options.get("splitBytes", _SPLIT_BYTES))
        return FilesReader(self.options["path"], kind, split_bytes, schema)


class FilesReader(DataSourceReader):
    def __init__(self, path: str, kind: str, split_bytes: int, schema: StructType | None) -> None:
        self.format = kind
        self._path = path
        self._split_bytes = split_bytes
        self._schema = schema
        self._pruner = Pruner([], schema)

    def prune(self, filters: Sequence[Filter]) -> None:
        """Skip whatever cannot satisfy all of these filters."""
        self._pruner = Pruner(filters, self._schema)

    def select(self, columns: Sequence[str]) -> None:
        """Read only these columns."""
        assert self._schema is not None
        self._schema = StructType([self._schema[name] for name in columns])

    def discover(self) -> Iterator[FilePartition]:
        file_system, root = _open(self._path)
        if file_system.get_file_info(root).is_file:
            yield from self._pieces(root, file_system.get_file_info(root).size, {})
            return
        folders: deque[tuple[str, dict[str, str | None]]] = deque([(root, {})])
        while folders:
            folder, values = folders.popleft()
            for path, size in _list(file_system, folder):
                name = path.rpartition("/")[2]
                if name.startswith(("_", ".")):
                    continue
                if size is None:
                    found = _parse_folder(name)
                    if self._pruner.keeps_folder(found):
                        folders.append((path, values | found))
                else:
                    yield from self._pieces(path, size, values)

    def partitions(self) -> list[InputPartition]:
        return list(self.discover())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, FilePartition):
            return  # Spark calls read() once, without a partition, if there are none
        assert self._schema is not None
        wanted = arrow_schema(self._schema)
        stored = [field.name for field in wanted if field.name not in partition.values]
        file_system, _ = _open(self._path)
        part = FileRange(partition.path, partition.start, partition.end, partition.size)
        batches = RANGE_READERS[self.format].read(file_system, part, stored, wanted, self._pruner.keeps_group)
        for batch in batches:
            yield _conform(batch, partition.values, wanted)

    def _pieces(self, path: str, size: int, values: dict[str, str | None]) -> Iterator[FilePartition]:
        count = max(1, -(-size // self._split_bytes)) if RANGE_READERS[self.format].splittable else 1
        for number in range(count):
            yield FilePartition(path, size * number // count, size * (number + 1) // count, size, values)


def _open(path: str) -> tuple[fs.FileSystem, str]:
    return fs.FileSystem.from_uri(path) if "://" in path else (fs.LocalFileSystem(), os.path.abspath(path))  # noqa: PTH100


def _list(file_system: fs.FileSystem, folder: str) -> Iterator[tuple[str, int | None]]:
    """Yield paths with their size, None for folders. Local folders are listed lazily, whatever their size."""
    if isinstance(file_system, fs.LocalFileSystem):
        with os.scandir(folder) as entries:
            for entry in entries:
                yield entry.path, None if entry.is_dir() else entry.stat().st_size
        return
    for found in file_system.get_file_info(fs.FileSelector(folder)):
        yield found.path, found.size if found.is_file else None


def _parse_folder(folder: str) -> dict[str, str | None]:
    key, is_value, value = folder.partition("=")
    if not is_value:
        return {}
    return {unquote(key): None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)}


def _conform(batch: pa.RecordBatch, values: dict[str, str | None], wanted: pa.Schema) -> pa.RecordBatch:
    def column(field: pa.Field) -> Any:
        if field.name in values:
            return pa.repeat(pa.scalar(values[field.name], pa.string()), batch.num_rows).cast(field.type)
        if field.name in batch.schema.names:
            return batch.column(field.name).cast(field.type)
        return pa.nulls(batch.num_rows, field.type)

    return make_batch([column(field) for field in wanted], wanted, batch.num_rows)
