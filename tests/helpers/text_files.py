# SPDX-License-Identifier: Apache-2.0
"""Text files for tests of formats that Volley parses itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from volley.errors import DataError
from volley.formats import STREAMED
from volley.formats.base import ReadRequest
from volley.plan.expressions import Attribute
from volley.plan.nodes import DataFile
from volley.plan.types import DataType


def read_natively(
    path: Path,
    file_format: str,
    columns: Mapping[str, DataType],
    options: dict[str, str],
    *,
    part: int = 0,
    parts: int = 1,
    wanted: Iterable[str] | None = None,
) -> list[pa.RecordBatch]:
    """The batches of a file, without Spark. Raises DataError for a record that only Spark reads.

    `columns` are those of the table; all of them are read unless `wanted` names some.
    """
    names = columns if wanted is None else wanted
    requested = tuple(Attribute(number, name, columns[name]) for number, name in enumerate(names))
    file = DataFile(str(path), path.stat().st_size, 0)
    given = tuple(sorted((key.lower(), value) for key, value in options.items()))
    return list(STREAMED[file_format].read(ReadRequest(file, part, parts, requested, tuple(columns), given)))


def accepted_lines(
    lines: Iterable[bytes],
    directory: Path,
    file_format: str,
    columns: Mapping[str, DataType],
    options: dict[str, str],
) -> Iterator[bytes]:
    """The lines that have a native form, each tried alone."""
    path = directory / "line"
    for line in lines:
        path.write_bytes(line + b"\n")
        try:
            read_natively(path, file_format, columns, options)
        except DataError:
            continue
        yield line
