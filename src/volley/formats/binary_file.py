# SPDX-License-Identifier: Apache-2.0
"""The format `binaryFile`: each file is a row with its path, time, length and content."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from volley.batches import batch_by_position
from volley.errors import DataError
from volley.formats.base import ReadOptions, ReadRequest
from volley.formats.file_source import open_source
from volley.plan.file_scans import print_path
from volley.plan.nodes import DataFile
from volley.plan.read_rules import MAX_LENGTH
from volley.plan.types import to_arrow


class BinaryFile:
    """See `StreamedFormat`. Spark calls the format `binaryFile` and its class `BinaryFileFormat`."""

    name = "binary"

    def can_split(self, file: DataFile, options: ReadOptions) -> bool:
        return False

    def unreadable(self, file: DataFile) -> str | None:
        return None

    def read(self, request: ReadRequest) -> Iterator[pa.RecordBatch]:
        file = request.file
        path = print_path(file.path) if file.store else f"file:{file.path}"
        values = {"path": path, "modificationtime": 1000 * file.modified_ms}
        arrays = []
        for column in request.columns:
            name = column.name.lower()
            value: object = values.get(name)
            if name == "length":
                value = file.size_bytes
            elif name == "content":
                value = _content(file, int(dict(request.options)[MAX_LENGTH]))
            arrays.append(pa.array([value], to_arrow(column.type)))
        yield batch_by_position(arrays, 1)


def _content(file: DataFile, max_length: int) -> bytes:
    if file.size_bytes > max_length:
        raise DataError(f"{file.path} is longer than {MAX_LENGTH}.")
    try:
        with open_source(file) as opened:
            # One byte more, to see a file that has grown.
            content = opened.read(0, file.size_bytes + 1)
            opened.confirm()
    except OSError as error:
        raise DataError(f"{file.path} cannot be read: {error}") from error
    if len(content) != file.size_bytes:
        raise DataError(f"{file.path} changed since it was planned.")
    return content
