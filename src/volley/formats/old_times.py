# SPDX-License-Identifier: Apache-2.0
"""Tells whether a file, or what is to be written, may have times on which the old and the new calendar disagree.

Spark converts or refuses only those: dates before 1582-10-15 and instants before 1900.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

CORRECTED = "CORRECTED"
"""The mode of reading files as if they had been written with the new calendar."""
SPARK_VERSION = "org.apache.spark.version"

_FIRST_DAY = -141_427
_FIRST_SECOND = -2_208_988_800
_UNITS = {"milliseconds": 1_000, "microseconds": 1_000_000, "nanoseconds": 1_000_000_000}


@dataclass(frozen=True)
class Calendar:
    """Which calendar the writer of a file used: Spark says so in its files, other writers do not."""

    is_known: bool
    legacy: bool
    legacy_int96: bool

    @staticmethod
    def of(tags: Mapping[bytes, bytes]) -> Calendar:
        """By the metadata of a file."""
        version = tags.get(SPARK_VERSION.encode())
        return Calendar(
            is_known=version is not None,
            legacy=b"org.apache.spark.legacyDateTime" in tags or (version or b"4") < b"3.0.0",
            legacy_int96=b"org.apache.spark.legacyINT96" in tags or (version or b"4") < b"3.1.0",
        )

    @property
    def is_corrected(self) -> bool:
        """Whether it is the new one, whatever the settings are."""
        return self.is_known and not self.legacy and not self.legacy_int96

    def is_doubtful(self, mode: str) -> bool:
        """Whether Spark would convert values or refuse old ones. In files of unknown writers the mode decides."""
        return self.legacy or (not self.is_known and mode.upper() != CORRECTED)

    def is_doubtful_int96(self, mode: str) -> bool:
        """The same of times in INT96."""
        return self.legacy_int96 or (not self.is_known and mode.upper() != CORRECTED)


def find_old_times(metadata: pq.FileMetaData) -> frozenset[str]:
    """The paths of columns that may have such times: those that have, and those whose statistics do not say."""
    schema = metadata.schema
    limits = {index: _limit(schema.column(index)) for index in range(len(schema.names))}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return frozenset(
        schema.column(index).path
        for index, (is_time, limit) in limits.items()
        if is_time and any(_may_precede(group.column(index), limit) for group in groups)
    )


def _limit(column: pq.ColumnSchema) -> tuple[bool, int | None]:
    """Whether a column has times, and the first value on which the calendars agree; None if there are no statistics."""
    if column.physical_type == "INT96":
        return True, None
    match column.logical_type.type:
        case "DATE":
            return True, _FIRST_DAY
        case "TIMESTAMP":
            unit = json.loads(column.logical_type.to_json())["timeUnit"]
            return True, _FIRST_SECOND * _UNITS[unit]
        case _:
            return False, None


def _may_precede(chunk: pq.ColumnChunkMetaData, limit: int | None) -> bool:
    if chunk.num_values == 0:
        return False
    statistics = chunk.statistics
    if limit is None or statistics is None:
        return True
    if not statistics.has_min_max:
        return not (statistics.has_null_count and statistics.null_count == chunk.num_values)
    return bool(statistics.min_raw < limit)


def holds_old_times(values: pa.Array) -> bool:
    """Whether an array has such times, also inside of nested values."""
    kind = values.type
    if pa.types.is_date32(kind):
        return bool(pc.any(pc.less(values.cast(pa.int32()), _FIRST_DAY)).as_py())
    if pa.types.is_timestamp(kind):
        limit = _FIRST_SECOND * _UNITS_OF_ARROW[kind.unit]
        return bool(pc.any(pc.less(values.cast(pa.int64()), limit)).as_py())
    if pa.types.is_struct(kind):
        return any(map(holds_old_times, values.flatten()))
    if pa.types.is_map(kind):
        return holds_old_times(values.keys) or holds_old_times(values.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return holds_old_times(values.flatten())
    return False


_UNITS_OF_ARROW = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
