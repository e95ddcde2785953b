# SPDX-License-Identifier: Apache-2.0
"""The contract of a file format.

    planning    footer(largest file).column_bytes      the sizes of the columns of a scan
    lowering    footer(every file).column(name, type)  the column in a file, or DataError: then Spark runs the query
                read(context, directory, schema)       one DataFusion table over the files
    writing     plan_write(request)                    how its files are made, or why Spark has to write them
                open_writer(path, schema, node)        one file, as Spark would write it

Whether a scan can be read exactly is decided in two steps. `plan.file_scans.READ_RULES` has a row for each format: the
settings and options under which it reads what Spark reads, known before any file is opened. `Footer.column` checks
each file before its first row is returned. A format must be in both tables; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from datafusion import DataFrame, SessionContext

from volley.plan.expressions import Attribute
from volley.plan.nodes import DataFile, WriteFiles
from volley.plan.types import DataType


class Footer(Protocol):
    """The metadata of a file. Compared by identity: the same object as long as the file does not change."""

    @property
    def column_bytes(self) -> Mapping[str, int]:
        """Stored bytes of each top-level column, by lower-case name, in a representative part of the file."""

    def column(self, name: str, data_type: DataType) -> pa.Field | None:
        """The column as it is in the file; None if the file does not have it.

        Raises DataError if Spark would not read its stored form as this type.
        """


class FormatWriter(Protocol):
    """Writes one file. Used by one thread at a time."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> None:
        """Complete the file on disk."""

    def abandon(self) -> None:
        """Release the file without completing it; it will be removed."""


@dataclass(frozen=True)
class WriteRules:
    """When a format may write what Spark writes, known before it plans the write.

    `settings`: session settings that change its files, with the only value that Volley writes for, or None if the
    format itself decides in `plan_write`. `options`: the write options that it knows, in lower case, besides those of
    all formats. `hadoop`: keys that must not be set in Hadoop's configuration.
    """

    settings: Mapping[str, str | None]
    options: frozenset[str]
    hadoop: frozenset[str]


@dataclass(frozen=True)
class WriteRequest:
    """A write that Spark planned. `columns` are those in the files, `schema` the same as Spark's JSON."""

    columns: tuple[Attribute, ...]
    schema: str
    settings: Mapping[str, str]
    options: Mapping[str, str]
    spark_version: str


@dataclass(frozen=True)
class FilePlan:
    """How the files of a write are made: how their names end, and what the format's own writer is told."""

    suffix: str
    options: tuple[tuple[str, str], ...]
    metadata: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class NotWritable:
    """A setting or option with a value for which only Spark writes the files."""

    option: str
    value: str


class FileFormat(Protocol):
    """Stateless; called from any thread."""

    @property
    def name(self) -> str:
        """The name in `FileScan.format` and `WriteFiles.format`."""

    @property
    def suffix(self) -> str:
        """The suffix of its file names, with the dot."""

    @property
    def splittable(self) -> bool:
        """Whether several tasks can read parts of one file. DataFusion then divides the scan itself."""

    def footer(self, file: DataFile) -> Footer:
        """The footer of a file. Raises DataError if the file is missing, damaged, or changed since planning."""

    def read(
        self,
        context: SessionContext,
        directory: str,
        schema: pa.Schema,
        partitions: list[tuple[str, pa.DataType]],
    ) -> DataFrame:
        """The files below `directory` as one table: the columns of `schema` by name, then those of the folder names."""

    @property
    def write_rules(self) -> WriteRules: ...

    def plan_write(self, request: WriteRequest) -> FilePlan | NotWritable:
        """Decide how to write the files of a request that keeps to `write_rules`."""

    def open_writer(self, path: Path, schema: pa.Schema, node: WriteFiles) -> FormatWriter:
        """Create a file by `node.options`, with the metadata that Spark's own writer would add."""
