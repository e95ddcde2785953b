# SPDX-License-Identifier: Apache-2.0
"""Reads Apache Iceberg tables, planned by pyiceberg, one data file per partition.

    spark.dataSource.register(Iceberg)
    spark.read.format("volley_iceberg").option("catalog.uri", "sqlite:////data/catalog.db").load("sales.orders")

Needs the extra `volley-spark[iceberg]`. Options that begin with `catalog.` are properties of the catalog. `snapshot`,
`asOfTimestamp` (milliseconds), `branch` or `tag` reads another version of the table. All actions of a DataFrame read
the version that the catalog had when it was created.

Manifests are read a few at a time, while tasks already read the files of earlier ones. pyiceberg handles schema
evolution, partition evolution, position deletes and the pruning of manifests and files by a query's filter. Equality
deletes and encrypted files raise `TableNotSupported`.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from volley.batches import make_batch
from volley.errors import TableNotSupported
from volley.spark_versions.arrow import arrow_schema, spark_schema

if TYPE_CHECKING:
    # Spark 4.0 has no filters.
    from pyspark.sql.datasource import Filter

# The plain values that are needed to read a data file or a delete file.
File = dict[str, Any]


_MANIFESTS_AT_A_TIME = 8
# Credentials of catalogs expire.
_REOPENED_AFTER_SECONDS = 600
_PINNED = "metadata"
_VERSIONS = ("snapshot", "asOfTimestamp", "branch", "tag")


@dataclass
class IcebergPartition(InputPartition):
    """One data file of the table, with the delete files that apply to it, and the table's metadata to read it with."""

    file: File
    deletes: list[File] = field(default_factory=list)
    metadata: str = ""

    @property
    def size_bytes(self) -> int:
        return int(self.file["file_size_in_bytes"])

    @property
    def rows(self) -> int:
        return int(self.file["record_count"])


class Iceberg(DataSource):
    """Options: `path` (the table, `namespace.name`), `snapshot`, `asOfTimestamp`, `branch`, `tag`, `catalog.*`."""

    @classmethod
    def name(cls) -> str:
        return "volley_iceberg"

    def schema(self) -> StructType:
        table = _load_table(self.options)
        # The object is pickled after this call: whatever reads it reads the same version.
        self.options[_PINNED] = table.metadata_location
        scan, schema = _scan(table, self.options)
        _refuse_equality_deletes(scan.snapshot())
        return spark_schema(schema.as_arrow())

    def reader(self, schema: StructType) -> IcebergReader:
        return IcebergReader(self.options, schema)


class IcebergReader(DataSourceReader):
    def __init__(self, options: Any, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filters: Sequence[Filter] = ()

    def prune(self, filters: Sequence[Filter]) -> None:
        """Skip manifests and files that cannot satisfy all of these filters."""
        self._filters = filters

    def select(self, columns: Sequence[str]) -> None:
        """Read only these columns."""
        self._schema = StructType([self._schema[name] for name in columns])

    def discover(self) -> Iterator[IcebergPartition]:
        table = _load_table(self._options)
        scan, schema = _scan(table, self._options)
        # pyiceberg finds the columns of filters by name in the current schema, whatever the snapshot.
        same = {field.name: field.field_id for field in schema.fields}.items() & {
            field.name: field.field_id for field in table.schema().fields
        }.items()
        filters = _to_iceberg(self._filters, {name for name, _ in same})
        for file, deletes in _plan(scan.filter(filters)):
            described = [_describe(delete) for delete in deletes]
            yield IcebergPartition(_describe(file), described, table.metadata_location)

    def partitions(self) -> list[InputPartition]:
        return list(self.discover())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan
        from pyiceberg.table import FileScanTask

        if not isinstance(partition, IcebergPartition):
            return  # Spark calls read() once, without a partition, if there are none
        options = dict(self._options) | {_PINNED: partition.metadata}
        table = _open_table(tuple(sorted(options.items())), int(time.monotonic() // _REOPENED_AFTER_SECONDS))
        projected = _scan(table, self._options)[1].select(*self._schema.names)
        task = FileScanTask(_rebuild(partition.file), {_rebuild(file) for file in partition.deletes})
        wanted = arrow_schema(self._schema)
        for batch in ArrowScan(table.metadata, table.io, projected, AlwaysTrue()).to_record_batches([task]):
            columns = [batch.column(column.name).cast(column.type) for column in wanted]
            yield make_batch(columns, wanted, batch.num_rows)


# ------------------------------------------------------------------------------------------- the table


@lru_cache(maxsize=16)
def _open_table(options: tuple[tuple[str, str], ...], period: int) -> Any:
    """Open a version of a table once per process and `period`: all tasks use its metadata and file system."""
    return _load_table(dict(options))


def _load_table(options: Any) -> Any:
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.table import StaticTable
    except ImportError as error:
        raise ImportError("Iceberg tables need pyiceberg: pip install volley-spark[iceberg]") from error
    properties = {
        key.removeprefix("catalog."): value
        for key, value in dict(options).items()
        if key.startswith("catalog.")
    }
    table = load_catalog("volley", **properties).load_table(options["path"])
    pinned = options.get(_PINNED)
    if pinned is None or pinned == table.metadata_location:
        return table
    # The table has changed since. The catalog's file system has its credentials.
    return StaticTable.from_metadata(pinned, dict(table.io.properties))


def _scan(table: Any, options: Any) -> tuple[Any, Any]:
    """The scan of the wanted version, and its schema: the current one, also of a branch, but not of older versions."""
    given = [name for name in _VERSIONS if options.get(name) is not None]
    if len(given) > 1:
        raise ValueError(f"give {' or '.join(given)}, not both")
    if not given:
        return table.scan(), table.schema()
    (name,), value = given, options[given[0]]
    if name == "snapshot":
        snapshot = int(value)
    elif name == "asOfTimestamp":
        found = table.snapshot_as_of_timestamp(int(value))
        if found is None:
            raise ValueError(f"the table has no snapshot as old as {value}")
        snapshot = found.snapshot_id
    else:
        reference = table.refs().get(value)
        if reference is None or reference.snapshot_ref_type.value != name:
            raise ValueError(f"the table has no {name} {value}")
        snapshot = reference.snapshot_id
    scan = table.scan(snapshot_id=snapshot)
    return scan, table.schema() if name == "branch" else scan.projection()


def _plan(scan: Any) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Yield data files with their delete files, a few manifests at a time."""
    from pyiceberg.manifest import INITIAL_SEQUENCE_NUMBER, DataFileContent, ManifestContent
    from pyiceberg.table import ManifestGroupPlanner
    from pyiceberg.table.delete_file_index import DeleteFileIndex

    snapshot = scan.snapshot()
    if snapshot is None:
        return
    _refuse_equality_deletes(snapshot)
    planner = ManifestGroupPlanner(
        scan.table_metadata, scan.io, scan.row_filter, scan.case_sensitive, scan.options
    )
    manifests = snapshot.manifests(scan.io)
    # A delete file may concern files of every manifest, so these come first.
    deletes = DeleteFileIndex()
    of_deletes = [manifest for manifest in manifests if manifest.content == ManifestContent.DELETES]
    for entry in chain.from_iterable(planner.plan_manifest_entries(of_deletes)):
        if entry.data_file.content != DataFileContent.POSITION_DELETES:
            raise TableNotSupported("the table has equality deletes")
        deletes.add_delete_file(entry, partition_key=entry.data_file.partition)
    of_data = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
    for group in _groups(of_data):
        for entry in chain.from_iterable(planner.plan_manifest_entries(group)):
            sequence = entry.sequence_number or INITIAL_SEQUENCE_NUMBER
            file = entry.data_file
            yield file, list(deletes.for_data_file(sequence, file, partition_key=file.partition))


def _groups(manifests: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(manifests), _MANIFESTS_AT_A_TIME):
        yield manifests[start : start + _MANIFESTS_AT_A_TIME]


def _refuse_equality_deletes(snapshot: Any) -> None:
    """Raise TableNotSupported if the summary of a snapshot counts some. Summaries need not have a count."""
    summary = snapshot.summary if snapshot is not None else None
    if summary is not None and int(summary["total-equality-deletes"] or 0):
        raise TableNotSupported("the table has equality deletes")


# ---------------------------------------------------------------------------------------- filters, files

# These have the same names in PySpark and in pyiceberg.
_COMPARISONS = ("EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "In")


def _to_iceberg(filters: Sequence[Filter], columns: Collection[str]) -> Any:
    from pyiceberg import expressions

    condition: Any = expressions.AlwaysTrue()
    for item in filters:
        words: Any = item
        name = type(item).__name__
        if name in _COMPARISONS and len(words.attribute) == 1 and words.attribute[0] in columns:
            value = [_plain(one) for one in words.value] if name == "In" else _plain(words.value)
            condition = expressions.And(condition, getattr(expressions, name)(words.attribute[0], value))
    return condition


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.date) else value


def _describe(file: Any) -> File:
    """Describe a file in plain values, so that it can be sent to a worker."""
    if file.key_metadata is not None:
        raise TableNotSupported(f"{file.file_path} is encrypted")
    return {
        "content": int(file.content),
        "file_path": file.file_path,
        "file_format": str(getattr(file.file_format, "value", file.file_format)),
        "record_count": file.record_count,
        "file_size_in_bytes": file.file_size_in_bytes,
        "spec_id": file.spec_id,
        "partition": [file.partition[place] for place in range(len(file.partition))],
        "equality_ids": list(file.equality_ids or ()) or None,
    }


def _rebuild(described: File) -> Any:
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    words = dict(described)
    spec = words.pop("spec_id")
    file = DataFile.from_args(
        content=DataFileContent(words.pop("content")),
        file_format=FileFormat(words.pop("file_format")),
        partition=Record(*words.pop("partition")),
        **words,
    )
    file.spec_id = spec
    return file
