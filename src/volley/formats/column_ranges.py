# SPDX-License-Identifier: Apache-2.0
"""The smallest and the largest value of columns of numbers, from the statistics in the footers of Parquet files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from volley.formats import FORMATS, streamed_format
from volley.formats.parquet import Parquet
from volley.plan.expressions import Attribute
from volley.plan.nodes import DataFile, FileScan
from volley.plan.types import INTEGRAL, DecimalType

ValueRange = tuple[int, int]
"""The bounds of all values, and 0. Decimals are without their point, at the scale of the column's type."""

# Each footer is read once more for this.
_MOST_FILES = 256
# Others may be ordered in a way that their writer got wrong.
_PHYSICAL = ("INT32", "INT64")


def column_range(scan: FileScan, column: Attribute) -> ValueRange | None:
    """The range of all values that the scan reads in this column; None if its files do not tell."""
    is_number = column.type in INTEGRAL or isinstance(column.type, DecimalType)
    is_stored = all(column.id != attribute.id for attribute in scan.partition_columns)
    if scan.format != Parquet.name or streamed_format(scan) is not None or not is_number or not is_stored:
        return None
    if scan.stored_column(column.name) is not None:
        return None
    if len(scan.files) > _MOST_FILES:
        return None
    low, high = [], []
    for file in scan.files:
        found = _range_in_file(file, scan, column)
        if found is None:
            return None
        low.append(found[0])
        high.append(found[1])
    return (min(low), max(high)) if low else None


def _range_in_file(file: DataFile, scan: FileScan, column: Attribute) -> ValueRange | None:
    field = FORMATS[Parquet.name].footer(file).column(column.name, column.type, scan.options)
    # Statistics are found by paths, in which a dot may also stand for a field of a struct.
    if field is None or "." in field.name:
        return None
    scale = column.type.scale if isinstance(column.type, DecimalType) else 0
    if pa.types.is_decimal128(field.type):
        scale -= field.type.scale
    elif not pa.types.is_signed_integer(field.type):
        return None
    try:
        status = Path(file.path).stat()
        stored = _stored_range(file.path, status.st_size, status.st_mtime_ns, field.name)
    except (OSError, pa.ArrowException):
        return None  # reading the rows reports what is wrong
    return None if stored is None else (stored[0] * 10**scale, stored[1] * 10**scale)


@lru_cache(maxsize=4096)
def _stored_range(path: str, size_bytes: int, modified_ns: int, name: str) -> ValueRange | None:
    # Size and time are only part of the cache key: a rewritten file gets a new entry.
    low = high = 0
    metadata = pq.read_metadata(path)
    paths = [metadata.schema.column(number).path for number in range(len(metadata.schema.names))]
    place = paths.index(name) if name in paths else None
    for number in range(metadata.num_row_groups if place is not None else 0):
        chunk = metadata.row_group(number).column(place)
        statistics = chunk.statistics
        if chunk.physical_type not in _PHYSICAL or statistics is None:
            return None
        if statistics.has_null_count and statistics.null_count == chunk.num_values:
            continue
        if not statistics.has_min_max:
            return None
        low, high = min(low, statistics.min_raw), max(high, statistics.max_raw)
    return (low, high) if place is not None else None
