# SPDX-License-Identifier: Apache-2.0
"""The contracts of file formats: tables of DataFusion (`FileFormat`), and streams of batches (`StreamedFormat`).

    planning    footer(largest file).column_bytes      the sizes of the columns of a scan
    lowering    footer(every file).column(name, type)  the column in a file, or DataError: then Spark runs the query
                read(context, directory, schema)       one DataFusion table over the files
    writing     plan_write(request)                    how its files are made, or why Spark has to write them
                open_writer(path, schema, node)        one file, as Spark would write it

Whether a scan can be read exactly is decided in two steps. `plan.read_rules.READ_RULES` has a row for each format: the
settings and options under which it reads what Spark reads, known before any file is opened. `Footer.column` checks
each file before its first row is returned. A format must be in both tables; a test compares them.

Files in object stores are read as streams of batches too, whatever their format (`streamed_format`).

DataFusion has no exact reader for text formats. Volley reads these itself, block by block, and checks every record: a
`StreamedFormat` raises DataError for a record or value of which the meaning is not certain, and Spark runs the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from datafusion import DataFrame, SessionContext

from volley.errors import DataError
from volley.plan.expressions import Attribute, Expression
from volley.plan.nodes import DataFile, StoredColumn, WriteFiles
from volley.plan.types import DataType

ReadOptions = tuple[tuple[str, str], ...]
"""`FileScan.options`."""


class Footer(Protocol):
    """The metadata of a file. Compared by identity: the same object as long as the file does not change."""

    @property
    def column_bytes(self) -> Mapping[str, int]:
        """Stored bytes of each top-level column, by lower-case name, in a representative part of the file."""

    @property
    def has_old_statistics(self) -> bool:
        """Whether minima and maxima may follow another order than Spark's, which ignores them."""

    def column(
        self,
        name: str,
        data_type: DataType,
        options: ReadOptions = (),
        stored: StoredColumn | None = None,
    ) -> pa.Field | None:
        """The column as it is in the file; None if the file does not have it. `options` are those of the scan.

        Without `stored` the file has it, and all inside it, under its name. Raises DataError if Spark would not read
        its stored form as this type.
        """


def find_columns(
    footer: Footer,
    columns: Sequence[Attribute],
    options: ReadOptions,
    stored: Callable[[str], StoredColumn | None],
) -> list[pa.Field | None]:
    """The columns as they are in the file. DataError if two of them are the same one, which Spark refuses."""
    fields = [footer.column(column.name, column.type, options, stored(column.name)) for column in columns]
    names = [found.name for found in fields if found is not None]
    if len(set(names)) < len(names):
        raise DataError(f"columns of a scan are the same one in a file: {', '.join(sorted(names))}.")
    return fields


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
    """How the files of a write are made: how their names end, and what the format's own writer is told.

    The writer gets the columns of `texts`, by position, as the texts that Spark makes of their values: with these
    patterns of dates, or as a cast does if there is none.
    """

    suffix: str
    options: tuple[tuple[str, str], ...]
    metadata: tuple[tuple[str, str], ...]
    texts: Mapping[int, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class NotWritable:
    """A setting or option with a value for which only Spark writes the files."""

    option: str
    value: str


MERGES_SCHEMA = "mergeschema"
"""An option of reads, which Spark parses in writes too."""


def find_invalid_option(request: WriteRequest) -> NotWritable | None:
    """The option of which Spark refuses the value; None if there is none."""
    value = request.options.get(MERGES_SCHEMA, "false")
    return None if value.lower() in ("true", "false") else NotWritable("mergeSchema", value)


@dataclass(frozen=True)
class ReadRequest:
    """Part `part` of `parts` of the rows of a file. Together the parts contain every row once.

    With `spark_range` it is a part as Spark's reader divides files, by the bytes from the first of them to the last.
    `columns` are those to read; `file_columns` are all columns of the table, in the order of its files.
    """

    file: DataFile
    part: int
    parts: int
    columns: tuple[Attribute, ...]
    file_columns: tuple[str, ...]
    options: ReadOptions
    filters: tuple[Expression, ...] = ()
    """Hints: rows for which one of them is not true need not be returned."""
    spark_range: tuple[int, int] | None = None
    stored: Mapping[str, StoredColumn] = field(default_factory=dict)
    """By name, the columns that the file may have under another one."""


class StreamedFormat(Protocol):
    """A format that is only read, record by record. Stateless; called from any thread."""

    @property
    def name(self) -> str:
        """The name in `FileScan.format`."""

    def can_split(self, file: DataFile, options: ReadOptions) -> bool:
        """Whether several tasks can read parts of the file. `options` are those of the scan."""

    def unreadable(self, file: DataFile) -> str | None:
        """Why only Spark reads this file, as far as its name says; None if it can be tried."""

    def read(self, request: ReadRequest) -> Iterator[pa.RecordBatch]:
        """Yield the requested columns in batches, by position, with Spark's types; other names do not matter.

        Raises DataError if the file has changed since planning, or has a record that Spark may read differently.
        """


class WritableFormat(Protocol):
    """A format that is written. Stateless; called from any thread."""

    @property
    def name(self) -> str:
        """The name in `FileScan.format` and `WriteFiles.format`."""

    @property
    def suffix(self) -> str:
        """The suffix of its file names, with the dot."""

    @property
    def write_rules(self) -> WriteRules: ...

    def plan_write(self, request: WriteRequest) -> FilePlan | NotWritable:
        """Decide how to write the files of a request that keeps to `write_rules`."""

    def open_writer(self, path: Path, schema: pa.Schema, node: WriteFiles) -> FormatWriter:
        """Create a file by `node.options`, with the metadata that Spark's own writer would add.

        Its `write` raises DataError for rows that only Spark writes: then Spark writes all of them.
        """


class FileFormat(WritableFormat, Protocol):
    """A format that is written, and read as a table of DataFusion."""

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
        *,
        prune: bool = True,
    ) -> DataFrame:
        """The files below `directory` as one table: the columns of `schema` by name, then those of the folder names.

        Without `prune`, statistics are not used to skip rows.
        """
