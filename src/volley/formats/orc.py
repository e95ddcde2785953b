# SPDX-License-Identifier: Apache-2.0
"""ORC files, stripe by stripe, for columns of simple types whose stored form is the requested one."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as arrow_orc

from volley.batches import batch_by_position
from volley.errors import DataError
from volley.formats.base import ReadOptions, ReadRequest
from volley.formats.file_source import Source, open_source
from volley.plan.expressions import Attribute
from volley.plan.nodes import DataFile
from volley.plan.types import DATE, to_arrow

_SPARK = b"org.apache.spark.version"
# Spark may take older dates for those of another calendar.
GREGORIAN_DAY = -141_427  # 1582-10-15


class Orc:
    """See `StreamedFormat`."""

    name = "orc"

    def can_split(self, file: DataFile, options: ReadOptions) -> bool:
        return True

    def unreadable(self, file: DataFile) -> str | None:
        return None

    def read(self, request: ReadRequest) -> Iterator[pa.RecordBatch]:
        path = request.file.path
        try:
            with open_source(request.file) as opened:
                yield from _read(opened, request)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path} cannot be read as ORC: {error}") from error


def _read(opened: Source, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    file = arrow_orc.ORCFile(opened.source)
    names = _names(file, request)
    # Read at least one column, or the rows could not be counted.
    read = [name for name in names if name is not None] or file.schema.names[:1]
    for stripe in range(file.nstripes):
        if stripe * request.parts // file.nstripes == request.part:
            batch = file.read_stripe(stripe, columns=read)
            opened.confirm()
            arrays = [
                _column(batch, name, column) for name, column in zip(names, request.columns, strict=True)
            ]
            yield batch_by_position(arrays, batch.num_rows)


def _names(file: arrow_orc.ORCFile, request: ReadRequest) -> list[str | None]:
    """The column of the file for each requested one; None where it has none."""
    path, schema = request.file.path, file.schema
    if file.writer != "ORC_CPP" and _SPARK not in dict(file.metadata or {}):
        # Its text may be of a type with blanks at the end, which Arrow does not tell.
        raise DataError(f"{path} was written by {file.writer}, not by Spark.")
    if all(name.startswith("_col") for name in schema.names):
        raise DataError(f"{path} has no column names.")
    by_name: dict[str, list[pa.Field]] = {}
    for field in schema:
        by_name.setdefault(field.name.lower(), []).append(field)
    found: list[str | None] = []
    for column in request.columns:
        same = by_name.get(column.name.lower(), [])
        if len(same) > 1:
            raise DataError(f"{path}: several columns named {column.name} differ only in case.")
        if same and same[0].type != to_arrow(column.type):
            raise DataError(f"{path}: column {column.name} is {same[0].type}, not {column.type}.")
        found.append(same[0].name if same else None)
    return found


def _column(batch: pa.RecordBatch, name: str | None, column: Attribute) -> pa.Array:
    if name is None:
        return pa.nulls(batch.num_rows, to_arrow(column.type))
    values = batch.column(name)
    if column.type == DATE:
        first = pc.min(values.cast(pa.int32())).as_py()
        if first is not None and first < GREGORIAN_DAY:
            raise DataError("a date may be of another calendar.")
    return values
