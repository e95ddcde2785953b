# SPDX-License-Identifier: Apache-2.0
"""Files of a directory, read while the directory is still being listed.

    spark.dataSource.register(Files)
    spark.read.format("volley_files").option("format", "parquet").load("/data/events")

Spark lists a directory to its end before it reads the first file. This source yields files as it meets them, folder by
folder, on a local file system or any that pyarrow knows (`s3://`, `gs://`, `hdfs://`). Large files of Parquet and ORC
are cut into ranges, and a row group belongs to the range in which it begins, a stripe to that in which it would begin
if all were alike; so no footer is read to cut one.

Values of folders named `key=value` are columns, of type string unless `.schema(...)` says otherwise. Files and folders
whose names begin with `_` or `.` are left out, as Spark leaves them out. Folders whose values a query's filter excludes
are not listed. Row groups of Parquet that it excludes by their statistics, and columns that nobody wants, are not read.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs
import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from volley.batches import make_batch
from volley.sources.pruning import Pruner

FORMATS = ("parquet", "orc", "csv", "json")
_SPLIT_BYTES = 64 * 2**20
_ROWS_A_BATCH = 65_536


@dataclass
class FilePartition(InputPartition):
    """The part of a file of `size` bytes that begins at one of those from `start` up to `end`; all of CSV and JSON."""

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
        """The columns of the first file that the listing meets, and those of its folders."""
        reader = self._reader()
        first = next(reader.discover(), None)
        if first is None:
            raise ValueError(f"there is no file in {self.options['path']}, and no schema was given")
        file_system, _ = _opened(self.options["path"])
        found = ds.dataset(first.path, filesystem=file_system, format=reader.format).schema
        columns = [*found, *(pa.field(name, pa.string()) for name in first.values)]
        return from_arrow_schema(pa.schema(columns))

    def reader(self, schema: StructType) -> FilesReader:
        return self._reader(schema)

    def _reader(self, schema: StructType | None = None) -> FilesReader:
        kind = self.options.get("format", "parquet").lower()
        if kind not in FORMATS:
            raise ValueError(f"format {kind} is none of {', '.join(FORMATS)}")
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
        """Read nothing for which one of these cannot hold."""
        self._pruner = Pruner(filters, self._schema)

    def select(self, columns: Sequence[str]) -> None:
        """Read these columns alone."""
        assert self._schema is not None
        self._schema = StructType([self._schema[name] for name in columns])

    def discover(self) -> Iterator[FilePartition]:
        file_system, root = _opened(self._path)
        if file_system.get_file_info(root).is_file:
            yield from self._pieces(root, file_system.get_file_info(root).size, {})
            return
        folders: deque[tuple[str, dict[str, str | None]]] = deque([(root, {})])
        while folders:
            folder, values = folders.popleft()
            for path, size in _listed(file_system, folder):
                name = path.rpartition("/")[2]
                if name.startswith(("_", ".")):
                    continue
                if size is None:
                    found = _value(name)
                    if self._pruner.keeps_folder(found):
                        folders.append((path, values | found))
                else:
                    yield from self._pieces(path, size, values)

    def partitions(self) -> list[InputPartition]:
        return list(self.discover())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, FilePartition):
            return  # Spark reads a source without partitions once, without one
        assert self._schema is not None
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        stored = [field.name for field in wanted if field.name not in partition.values]
        file_system, _ = _opened(self._path)
        match self.format:
            case "parquet":
                batches = _parquet(self._pruner, file_system, partition, stored)
            case "orc":
                batches = _orc(file_system, partition, stored)
            case kind:
                batches = _whole(kind, wanted, file_system, partition, stored)
        for batch in batches:
            yield _as_declared(batch, partition.values, wanted)

    def _pieces(self, path: str, size: int, values: dict[str, str | None]) -> Iterator[FilePartition]:
        count = max(1, -(-size // self._split_bytes)) if self.format in ("parquet", "orc") else 1
        for number in range(count):
            yield FilePartition(path, size * number // count, size * (number + 1) // count, size, values)


def _opened(path: str) -> tuple[fs.FileSystem, str]:
    return fs.FileSystem.from_uri(path) if "://" in path else (fs.LocalFileSystem(), os.path.abspath(path))  # noqa: PTH100


def _listed(file_system: fs.FileSystem, folder: str) -> Iterator[tuple[str, int | None]]:
    """Paths with the sizes of files, None for folders. A local folder of any size is given entry by entry."""
    if isinstance(file_system, fs.LocalFileSystem):
        with os.scandir(folder) as entries:
            for entry in entries:
                yield entry.path, None if entry.is_dir() else entry.stat().st_size
        return
    for found in file_system.get_file_info(fs.FileSelector(folder)):
        yield found.path, found.size if found.is_file else None


def _value(folder: str) -> dict[str, str | None]:
    key, is_value, value = folder.partition("=")
    if not is_value:
        return {}
    return {unquote(key): None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)}


def _parquet(
    pruner: Pruner, file_system: fs.FileSystem, partition: FilePartition, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    with file_system.open_input_file(partition.path) as opened, pq.ParquetFile(opened) as file:
        groups = [
            number
            for number in range(file.metadata.num_row_groups)
            if partition.start <= _begin(file.metadata.row_group(number)) < partition.end
            and pruner.keeps_group(file.metadata.row_group(number), file.schema_arrow)
        ]
        present = [name for name in columns if name in file.schema_arrow.names]
        if groups and present:
            yield from file.iter_batches(_ROWS_A_BATCH, groups, present, use_threads=False)
        elif groups:
            rows = sum(file.metadata.row_group(number).num_rows for number in groups)
            yield pa.RecordBatch.from_arrays([pa.nulls(rows)], ["row"])


def _begin(group: pq.RowGroupMetaData) -> int:
    first = group.column(0)
    begin: int = first.data_page_offset
    return begin if first.dictionary_page_offset is None else min(begin, first.dictionary_page_offset)


def _orc(
    file_system: fs.FileSystem, partition: FilePartition, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    with file_system.open_input_file(partition.path) as opened:
        file = orc.ORCFile(opened)
        # Rows without columns could not be counted.
        present = [name for name in columns if name in file.schema.names] or file.schema.names[:1]
        for stripe in range(file.nstripes):
            if partition.start <= partition.size * stripe // file.nstripes < partition.end:
                yield file.read_stripe(stripe, columns=present)


def _whole(
    kind: str, wanted: pa.Schema, file_system: fs.FileSystem, partition: FilePartition, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    found = ds.dataset(partition.path, filesystem=file_system, format=kind)
    present = [name for name in columns if name in found.schema.names]
    typed = pa.schema(
        [wanted.field(name) if name in present else found.schema.field(name) for name in found.schema.names]
    )
    yield from found.replace_schema(typed).to_batches(columns=present, batch_size=_ROWS_A_BATCH)


def _as_declared(batch: pa.RecordBatch, values: dict[str, str | None], wanted: pa.Schema) -> pa.RecordBatch:
    def column(field: pa.Field) -> Any:
        if field.name in values:
            return pa.repeat(pa.scalar(values[field.name], pa.string()), batch.num_rows).cast(field.type)
        if field.name in batch.schema.names:
            return batch.column(field.name).cast(field.type)
        return pa.nulls(batch.num_rows, field.type)

    return make_batch([column(field) for field in wanted], wanted, batch.num_rows)
