# SPDX-License-Identifier: Apache-2.0
"""The contract of a file format.

    planning    footer(largest file).column_bytes      what the columns of a scan weigh
    lowering    footer(every file).column(name, type)  what a file holds, or DataError: then Spark reads the scan
                read(context, directory, schema)       one DataFusion table over the files
    writing     open_writer(path, schema, node)        one file such as Spark writes

Whether a scan can be read exactly is decided in two steps. `plan.file_scans.READ_RULES` has a row for each format: the
settings and options under which it reads as Spark does, known before any file is opened. `Footer.column` looks at each
file before its first row is given. A format must be in both tables; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from datafusion import DataFrame, SessionContext

from volley.plan.nodes import DataFile, WriteFiles
from volley.plan.types import DataType


class Footer(Protocol):
    """What a file says of itself. Equal only to itself, and the same object while its file does not change."""

    @property
    def column_bytes(self) -> Mapping[str, int]:
        """Stored bytes of each top-level column, by its name in lower case; of a part of the file that is like it."""

    def column(self, name: str, data_type: DataType) -> pa.Field | None:
        """What this column is in the file; None when the file has none.

        Raises DataError when the file holds it in a form that Spark would not read as this type.
        """


class FormatWriter(Protocol):
    """Writes one file. Used by one thread at a time."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> None:
        """Finish the file: it is complete on disk afterwards."""

    def abandon(self) -> None:
        """Let go of the file, which will be removed."""


class FileFormat(Protocol):
    """Stateless; called from any thread."""

    @property
    def name(self) -> str:
        """As `FileScan.format` and `WriteFiles.format` have it."""

    @property
    def suffix(self) -> str:
        """How names of its files end, with the dot."""

    @property
    def splittable(self) -> bool:
        """Whether several tasks can read parts of one file: DataFusion then divides its scan by itself."""

    def footer(self, file: DataFile) -> Footer:
        """Raises DataError when the file is missing, broken, or not as it was planned."""

    def read(
        self,
        context: SessionContext,
        directory: str,
        schema: pa.Schema,
        partitions: list[tuple[str, pa.DataType]],
    ) -> DataFrame:
        """The files below `directory` as one table: columns of `schema` by name, then those of the folders' names."""

    def open_writer(self, path: Path, schema: pa.Schema, node: WriteFiles) -> FormatWriter:
        """A new file with the metadata that Spark's own writer gives it."""
