# SPDX-License-Identifier: Apache-2.0
"""File formats, one class each, registered by the format name of a scan or a write.

A file enters; its footer, a table over it, or a writer for it leaves. Nothing outside this package knows the layout of
a format's files, and nothing here knows about stages, tasks or transports.
"""

from __future__ import annotations

from volley.formats.avro import Avro
from volley.formats.base import FileFormat, Footer, StreamedFormat, WritableFormat
from volley.formats.binary_file import BinaryFile
from volley.formats.csv import Csv
from volley.formats.json import Json
from volley.formats.orc import Orc
from volley.formats.orc_writer import OrcWriter
from volley.formats.parquet import Parquet
from volley.formats.remote_parquet import RemoteParquet, remote_footer
from volley.formats.text import Text
from volley.formats.text_writers import CsvWriter, JsonWriter
from volley.plan.nodes import DataFile, FileScan

FORMATS: dict[str, FileFormat] = {file_format.name: file_format for file_format in (Parquet(),)}
STREAMED: dict[str, StreamedFormat] = {
    file_format.name: file_format for file_format in (Csv(), Json(), Orc(), Text(), Avro(), BinaryFile())
}
# How files in object stores are read, and those of which a plan needs the order of rows.
_REMOTE: dict[str, StreamedFormat] = {**STREAMED, RemoteParquet.name: RemoteParquet()}
_WRITABLE: tuple[WritableFormat, ...] = (*FORMATS.values(), CsvWriter(), JsonWriter(), OrcWriter())
WRITABLE = {file_format.name: file_format for file_format in _WRITABLE}


def format_of(name: str) -> FileFormat:
    """The format of a scan that DataFusion reads."""
    return FORMATS[name]


def streamed_format(scan: FileScan) -> StreamedFormat | None:
    """The format of a scan that is read as streams of batches; None if DataFusion reads its files.

    DataFusion reads no parts of files in order.
    """
    return _REMOTE[scan.format] if scan.stores or scan.partitions else STREAMED.get(scan.format)


def footer_of(scan: FileScan, file: DataFile) -> Footer | None:
    """The footer of a file; None if its format has none that says the sizes of columns. Raises DataError."""
    if scan.format in STREAMED:
        return None
    return remote_footer(file) if file.store else FORMATS[scan.format].footer(file)


def writer_of(name: str) -> WritableFormat:
    """The format of a write that `bridge` has accepted."""
    return WRITABLE[name]


def can_read(name: str) -> bool:
    return name in FORMATS or name in STREAMED


def can_split(scan: FileScan, file: DataFile) -> bool:
    """Whether several tasks can read parts of a file of this scan."""
    if scan.format in STREAMED:
        return STREAMED[scan.format].can_split(file, scan.options)
    return FORMATS[scan.format].splittable
