# SPDX-License-Identifier: Apache-2.0
"""Reads Apache Iceberg tables, planned by pyiceberg, one data file per partition.

    spark.dataSource.register(Iceberg)
    spark.read.format("volley_iceberg").option("catalog.uri", "sqlite:////data/catalog.db").load("sales.orders")

Needs the extra `volley-spark[iceberg]`. Options that begin with `catalog.` are properties of the catalog; `snapshot`
reads an older version of the table. pyiceberg handles schema evolution, positional deletes and the pruning of files by
a query's filter. It does not support equality deletes: a table that has them raises an error.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from volley.batches import make_batch
from volley.spark_versions.arrow import arrow_schema, spark_schema

if TYPE_CHECKING:
    # Spark 4.0 has no filters.
    from pyspark.sql.datasource import Filter

# The plain values that are needed to read a data file or a delete file.
File = dict[str, Any]


@dataclass
class IcebergPartition(InputPartition):
    """One data file of the table, with the delete files that apply to it."""

    file: File
    deletes: list[File] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return int(self.file["file_size_in_bytes"])

    @property
    def rows(self) -> int:
        return int(self.file["record_count"])


class Iceberg(DataSource):
    """Options: `path` (the table, `namespace.name`), `snapshot`, `catalog.*`."""

    @classmethod
    def name(cls) -> str:
        return "volley_iceberg"

    def schema(self) -> StructType:
        table = _load_table(dict(self.options))
        return spark_schema(_scan(table, self.options).projection().as_arrow())

    def reader(self, schema: StructType) -> IcebergReader:
        return IcebergReader(dict(self.options), schema)


class IcebergReader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filters: Sequence[Filter] = ()

    def prune(self, filters: Sequence[Filter]) -> None:
        """Skip files that cannot satisfy all of these filters."""
        self._filters = filters

    def select(self, columns: Sequence[str]) -> None:
        """Read only these columns."""
        self._schema = StructType([self._schema[name] for name in columns])

    def discover(self) -> Iterator[IcebergPartition]:
        table = _load_table(self._options)
        for task in _scan(table, self._options).filter(_to_iceberg(self._filters)).plan_files():
            yield IcebergPartition(_describe(task.file), [_describe(file) for file in task.delete_files])

    def partitions(self) -> list[InputPartition]:
        return list(self.discover())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan
        from pyiceberg.table import FileScanTask

        if not isinstance(partition, IcebergPartition):
            return  # Spark calls read() once, without a partition, if there are none
        table = _load_table(self._options)
        projected = _scan(table, self._options).select(*self._schema.names).projection()
        task = FileScanTask(_rebuild(partition.file), {_rebuild(file) for file in partition.deletes})
        wanted = arrow_schema(self._schema)
        for batch in ArrowScan(table.metadata, table.io, projected, AlwaysTrue()).to_record_batches([task]):
            columns = [batch.column(column.name).cast(column.type) for column in wanted]
            yield make_batch(columns, wanted, batch.num_rows)


def _load_table(options: dict[str, str]) -> Any:
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise ImportError("Iceberg tables need pyiceberg: pip install volley-spark[iceberg]") from error
    properties = {
        key.removeprefix("catalog."): value for key, value in options.items() if key.startswith("catalog.")
    }
    return load_catalog("volley", **properties).load_table(options["path"])


def _scan(table: Any, options: Any) -> Any:
    return table.scan(snapshot_id=int(options["snapshot"]) if "snapshot" in options else None)


# These have the same names in PySpark and in pyiceberg.
_COMPARISONS = ("EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "In")


def _to_iceberg(filters: Sequence[Filter]) -> Any:
    from pyiceberg import expressions

    condition: Any = expressions.AlwaysTrue()
    for item in filters:
        words: Any = item
        name = type(item).__name__
        if name in _COMPARISONS and len(words.attribute) == 1:
            value = [_plain(one) for one in words.value] if name == "In" else _plain(words.value)
            condition = expressions.And(condition, getattr(expressions, name)(words.attribute[0], value))
    return condition


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.date) else value


def _describe(file: Any) -> File:
    """Describe a file in plain values, so that it can be sent to a worker."""
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
