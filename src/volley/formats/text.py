# SPDX-License-Identifier: Apache-2.0
"""Text files: each line is a row of one column."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.csv as csv

from volley.batches import batch_by_position
from volley.errors import DataError
from volley.formats import lines
from volley.formats.base import ReadOptions, ReadRequest
from volley.plan.nodes import DataFile

# The parser of CSV files cuts lines fastest; a separator that a block does not have leaves them whole.
_SEPARATORS = [bytes([code]) for code in (*range(1, 9), *range(14, 32))]


class Text:
    """See `StreamedFormat`."""

    name = "text"

    def can_split(self, file: DataFile, options: ReadOptions) -> bool:
        return lines.can_split(file)

    def unreadable(self, file: DataFile) -> str | None:
        return lines.unreadable(file)

    def read(self, request: ReadRequest) -> Iterator[pa.RecordBatch]:
        form = lines.TextForm.of(dict(request.options))
        for block in lines.read_blocks(request.file, request.part, request.parts, form):
            values = split_lines(block)
            yield batch_by_position([values] * len(request.columns), len(values))


def split_lines(data: bytes) -> pa.Array:
    """The lines of a block, empty ones included. Raises DataError for invalid UTF-8."""
    lines.refuse_mark(data)
    separator = next((found for found in _SEPARATORS if found not in data), None)
    if separator is None:
        raise DataError("a text file has every control character.")
    if not data:
        return pa.array([], pa.string())
    try:
        table = csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=["value"]),
            csv.ParseOptions(delimiter=separator.decode(), quote_char=False, ignore_empty_lines=False),
            csv.ConvertOptions(column_types={"value": pa.string()}, strings_can_be_null=False),
        )
    except pa.ArrowException as error:
        raise DataError(f"lines cannot be read: {error}") from error
    return table.column(0).combine_chunks() if table.column(0).num_chunks != 1 else table.column(0).chunk(0)
