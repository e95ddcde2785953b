# SPDX-License-Identifier: Apache-2.0
"""Reads Delta Lake tables, whose log is read by delta-rs, one data file or range of one per partition.

    spark.dataSource.register(Delta)
    spark.read.format("volley_delta").option("versionAsOf", "12").load("/lake/orders")

Needs the extra `volley-spark[delta]`, and no jar. `versionAsOf` or `timestampAsOf` reads an older version of the
table; otherwise all actions of a DataFrame read the version that was the newest when it was created. Options that begin
with `storage.` are settings of the object store, as delta-rs has them.

Files are excluded by partition values and by the statistics of the log. Deletion vectors are applied, and renamed and
dropped columns (column mapping, by name or by id) are read. Other features of readers raise `TableNotSupported`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructField, StructType

from volley.batches import make_batch
from volley.errors import TableNotSupported
from volley.formats.parquet import describe
from volley.formats.ranges import begins_in
from volley.sources.legacy_calendar import refuse_old_times
from volley.sources.pruning import Pruner
from volley.sources.schema_evolution import FIELD_ID, FIELD_NAME, arrow_type, find_field, read_as
from volley.spark_versions.arrow import arrow_schema

if TYPE_CHECKING:
    # Spark 4.0 has no filters.
    from pyspark.sql.datasource import Filter

_SPLIT_BYTES = 64 * 2**20
_ROWS_PER_BATCH = 65_536
_READER_FEATURES = frozenset({"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint"})
_MODE = "delta.columnMapping.mode"
_PHYSICAL_NAME = "delta.columnMapping.physicalName"


@dataclass
class DeltaPartition(InputPartition):
    """The row groups of a data file that begin in the byte range [`start`, `end`).

    `path` is relative to the table, or a URL. `deleted` is a compressed bit per row of the file, 1 if it is deleted; a
    file that has it is not cut.
    """

    path: str
    start: int
    end: int
    values: dict[str, Any]
    deleted: bytes | None = None

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


class Delta(DataSource):
    """Options: `path`, `versionAsOf`, `timestampAsOf`, `splitBytes`, `storage.*`."""

    @classmethod
    def name(cls) -> str:
        return "volley_delta"

    def schema(self) -> StructType:
        table = _load_table(self.options)
        # The object is pickled after this call: whatever reads it reads the same version.
        self.options.pop("timestampAsOf", None)
        self.options["versionAsOf"] = str(table.version())
        return _spark_schema(table)

    def reader(self, schema: StructType) -> DeltaReader:
        return DeltaReader(self.options, schema)


class DeltaReader(DataSourceReader):
    def __init__(self, options: Any, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pruner = Pruner([], schema)

    def prune(self, filters: Sequence[Filter]) -> None:
        """Skip files and row groups that cannot satisfy all of these filters."""
        self._pruner = Pruner(filters, self._schema)

    def select(self, columns: Sequence[str]) -> None:
        """Read only these columns."""
        self._schema = StructType([self._schema[name] for name in columns])

    def discover(self) -> Iterator[DeltaPartition]:
        table = _load_table(self._options)
        known = {field.name: field for field in _spark_schema(table)}
        for field in self._schema:
            if field.name in known and field.metadata != known[field.name].metadata:
                raise TableNotSupported(
                    f"the table maps its columns to others in its files, and a schema was given that does not: "
                    f"column {field.name}"
                )
        stored_names = {
            name: stored for name, stored in _stored_names(table).items() if name in self._pruner.columns
        }
        deleted = _deleted_rows(table)
        split_bytes = int(self._options.get("splitBytes", _SPLIT_BYTES))
        for batch in pa.table(table.get_add_actions()).to_batches(max_chunksize=1024):
            for action in batch.to_pylist():
                if self._may_match(action, stored_names):
                    yield from _cut(action, deleted.pop(unquote(action["path"]), None), split_bytes)
                else:
                    deleted.pop(unquote(action["path"]), None)
        if deleted:
            raise TableNotSupported(f"deletion vectors of unknown files: {', '.join(sorted(deleted))}")

    def partitions(self) -> list[InputPartition]:
        return list(self.discover())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, DeltaPartition):
            return  # Spark calls read() once, without a partition, if there are none
        file_system, path = _open(self._options, partition.path)
        with file_system.open_input_file(path) as opened:
            file = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
            yield from self._read_file(file, partition)

    def _read_file(self, file: pq.ParquetFile, partition: DeltaPartition) -> Iterator[pa.RecordBatch]:
        wanted = arrow_schema(self._schema)
        stored = list(file.schema_arrow)
        places = {
            field.name: find_field(field, stored)
            for field in self._schema
            if field.name not in partition.values
        }
        names = [stored[place].name for place in places.values() if place is not None]
        kept = _kept_rows(partition, file.metadata.num_rows)
        footer = describe(partition.path, file.metadata)
        constants = {
            field.name: pa.scalar(partition.values[field.name], arrow_type(field.dataType))
            for field in self._schema
            if field.name in partition.values
        }

        def column(field: StructField, batch: pa.RecordBatch) -> pa.Array:
            if field.name in constants:
                return pa.repeat(constants[field.name], batch.num_rows)
            place = places[field.name]
            if place is None:
                return pa.nulls(batch.num_rows, arrow_type(field.dataType))
            name = stored[place].name
            values = read_as(batch.column(name), field.dataType)
            if footer.is_doubtful(name, ()):
                refuse_old_times(values, f"{partition.path}, column {field.name}")
            return values

        for first_row, group in self._groups(file, partition):
            for batch in _batches(file, group, names):
                rows = batch.num_rows
                if kept is not None:
                    batch = batch.filter(kept.slice(first_row, rows))
                first_row += rows
                yield make_batch([column(field, batch) for field in self._schema], wanted, batch.num_rows)

    def _groups(self, file: pq.ParquetFile, partition: DeltaPartition) -> Iterator[tuple[int, int]]:
        """The row groups to read, each with the number of its first row in the file."""
        first_row = 0
        # If names are mapped, those of the filters are not those of the file.
        by_name = all(not field.metadata for field in self._schema)
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            if begins_in(group, partition.start, partition.end) and not (
                by_name and not self._pruner.keeps_group(group, file.schema_arrow)
            ):
                yield first_row, number
            first_row += group.num_rows

    def _may_match(self, action: dict[str, Any], stored_names: dict[str, str]) -> bool:
        values = action.get("partition") or {}
        low, high = action.get("min") or {}, action.get("max") or {}
        return all(
            self._pruner.keeps_value(name, values[name])
            if name in values
            else self._pruner.keeps_bounds(name, low.get(stored), high.get(stored))
            for name, stored in stored_names.items()
        )


# --------------------------------------------------------------------------------------------- the log


def _load_table(options: Any) -> Any:
    try:
        from deltalake import DeltaTable
    except ImportError as error:
        raise ImportError("Delta tables need deltalake: pip install volley-spark[delta]") from error
    version, time = options.get("versionAsOf"), options.get("timestampAsOf")
    if version is not None and time is not None:
        raise ValueError("give versionAsOf or timestampAsOf, not both")
    table = DeltaTable(
        options["path"], None if version is None else int(version), _storage_options(options) or None
    )
    if time is not None:
        table.load_as_version(time)
    unknown = set(table.protocol().reader_features or ()) - _READER_FEATURES
    if unknown:
        raise TableNotSupported(f"{options['path']} has reader features {', '.join(sorted(unknown))}")
    return table


def _storage_options(options: Any) -> dict[str, str]:
    return {
        key.removeprefix("storage."): value
        for key, value in dict(options).items()
        if key.startswith("storage.")
    }


def _spark_schema(table: Any) -> StructType:
    """The columns of the table. Their metadata says which fields of files they are."""
    mode = table.metadata().configuration.get(_MODE, "none")
    if mode not in ("none", "name", "id"):
        raise TableNotSupported(f"column mapping mode {mode}")

    def plain(described: Any) -> Any:
        """Files may have NULLs where the table has none by now, so nothing is declared free of them."""
        if not isinstance(described, dict):
            return described
        found = {key: plain(value) for key, value in described.items()}
        for key in ("nullable", "containsNull", "valueContainsNull"):
            if key in found:
                found[key] = True
        if "fields" in found:
            found["fields"] = [plain(field) for field in described["fields"]]
        if "metadata" in found:
            found["metadata"] = _field_metadata(described["metadata"], mode)
        return found

    return StructType.fromJson(plain(json.loads(table.schema().to_json())))


def _stored_names(table: Any) -> dict[str, str]:
    """The names that statistics have for the columns of the table."""
    mapped = table.metadata().configuration.get(_MODE, "none") != "none"
    fields = json.loads(table.schema().to_json())["fields"]
    return {field["name"]: field["metadata"][_PHYSICAL_NAME] if mapped else field["name"] for field in fields}


def _field_metadata(metadata: dict[str, Any], mode: str) -> dict[str, Any]:
    if mode == "name":
        return {FIELD_NAME: metadata[_PHYSICAL_NAME]}
    return {FIELD_ID: metadata["delta.columnMapping.id"]} if mode == "id" else {}


def _deleted_rows(table: Any) -> dict[str, bytes]:
    """The deleted rows of files that have some, by path."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    root = unquote(table.table_uri)
    found = {}
    for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
        for url, kept in zip(batch["filepath"], batch["selection_vector"], strict=True):
            bits = np.packbits(~kept.values.to_numpy(zero_copy_only=False))
            found[unquote(url.as_py()).removeprefix(root)] = zlib.compress(bits.tobytes(), 1)
    return found


def _cut(action: dict[str, Any], deleted: bytes | None, split_bytes: int) -> Iterator[DeltaPartition]:
    size = action["size_bytes"]
    count = max(1, -(-size // split_bytes)) if deleted is None else 1
    values = action.get("partition") or {}
    for number in range(count):
        start, end = size * number // count, size * (number + 1) // count
        yield DeltaPartition(unquote(action["path"]), start, end, values, deleted)


# ------------------------------------------------------------------------------------------- the files


def _open(options: Any, path: str) -> tuple[fs.FileSystem, str]:
    root = options["path"]
    if "://" not in root:
        return fs.LocalFileSystem(), path.removeprefix("file://") if "://" in path else f"{root}/{path}"
    if root.startswith("file://"):
        return _open({"path": unquote(root.removeprefix("file://"))}, path)
    if "://" in path:
        raise TableNotSupported(f"a file outside of the table: {path}")
    from deltalake.fs import DeltaStorageHandler

    return fs.PyFileSystem(DeltaStorageHandler(root, _storage_options(options))), path


def _kept_rows(partition: DeltaPartition, rows: int) -> pa.Array | None:
    """For each row of the file whether it is kept; None if all are."""
    if partition.deleted is None:
        return None
    bits = np.unpackbits(np.frombuffer(zlib.decompress(partition.deleted), np.uint8))[:rows]
    kept = np.ones(rows, bool)
    # A vector may end before the file does.
    kept[: len(bits)] = bits == 0
    return pa.array(kept)


def _batches(file: pq.ParquetFile, group: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    if names:
        yield from file.iter_batches(_ROWS_PER_BATCH, [group], list(names), use_threads=False)
    else:
        yield pa.record_batch({"row": pa.nulls(file.metadata.row_group(group).num_rows)})
