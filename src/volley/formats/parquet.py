# SPDX-License-Identifier: Apache-2.0
"""Parquet: footers, reading, and writing files as Spark would write them.

DataFusion casts stored types to requested ones where Spark would refuse, and Spark has its own rules for old dates. So
every footer is checked before its file is read, and Spark handles anything but the plain case.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from datafusion import DataFrame, SessionContext

from volley.errors import DataError
from volley.formats.base import FilePlan, NotWritable, ReadOptions, WriteRequest, WriteRules
from volley.formats.int96 import mark_instants
from volley.formats.old_statistics import has_old_statistics
from volley.formats.old_times import find_old_times, holds_old_times
from volley.plan.nodes import DataFile, WriteFiles
from volley.plan.read_rules import KEEPS_TYPES, REBASE, REBASE_INT96
from volley.plan.types import (
    BINARY,
    BYTE,
    DATE,
    DAY_TIME_INTERVALS,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructField,
    StructType,
    contains_any,
    to_arrow,
)

SPARK_VERSION = "org.apache.spark.version"
"""The footer entry that tells Spark that dates and times need no rebasing."""
_ROW_METADATA = "org.apache.spark.sql.parquet.row.metadata"

# A reader reads a row group at a time, and a writer holds one in memory before writing it.
_GROUP_ROWS = 1 << 20
_GROUP_BYTES = 32 * 2**20


class Parquet:
    """See `FileFormat`."""

    name = "parquet"
    suffix = ".parquet"
    splittable = True

    def footer(self, file: DataFile) -> ParquetFooter:
        try:
            status = os.stat(file.path)  # noqa: PTH116  # a Path costs more than the call, for every file of a query
            if status.st_size != file.size_bytes:
                raise DataError(
                    f"{file.path} changed: {file.size_bytes} bytes when planned, {status.st_size} now."
                )
            return _footer(file.path, status.st_size, status.st_mtime_ns)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{file.path} cannot be read as Parquet: {error}") from error

    def read(
        self,
        context: SessionContext,
        directory: str,
        schema: pa.Schema,
        partitions: list[tuple[str, pa.DataType]],
        *,
        prune: bool = True,
    ) -> DataFrame:
        return context.read_parquet(
            directory,
            schema=schema,
            table_partition_cols=partitions or None,
            parquet_pruning=prune,
            # An order by nothing. Otherwise DataFusion believes the order that footers claim, which no writer checks.
            file_sort_order=[[]],
        )

    @property
    def write_rules(self) -> WriteRules:
        return _WRITE_RULES

    def plan_write(self, request: WriteRequest) -> FilePlan | NotWritable:
        stamps = request.settings[_TIMESTAMP_TYPE]
        int96 = stamps == "INT96"
        # Spark writes times without a zone as INT64, whatever the setting; Arrow has one form for all.
        local = any(contains_any(column.type, frozenset({TIMESTAMP_NTZ})) for column in request.columns)
        if stamps == "TIMESTAMP_MILLIS" or (int96 and local):
            return NotWritable("outputTimestampType", stamps)
        has_times = any(contains_any(column.type, _TIMES) for column in request.columns)
        modes = {key: request.settings[key].upper() for key in _REBASE_SETTINGS}
        for key, mode in modes.items():
            if has_times and mode not in (_CORRECTED, _REFUSED):
                return NotWritable(key, mode)
        refuses_old = has_times and _REFUSED in modes.values()
        name = next((request.options[key] for key in _CODEC_OPTIONS if key in request.options), None)
        codec = (name or request.settings[_CODEC]).lower()
        if codec not in _CODECS:
            return NotWritable("compression", codec)
        compression, suffix = _CODECS[codec]
        return FilePlan(
            suffix,
            (
                ("compression", compression),
                ("int96", str(int96).lower()),
                ("refuses_old_times", str(refuses_old).lower()),
            ),
            ((SPARK_VERSION, request.spark_version), (_ROW_METADATA, request.schema)),
        )

    def open_writer(self, path: Path, schema: pa.Schema, node: WriteFiles) -> ParquetFile:
        return ParquetFile(path, schema, node)


@dataclass(frozen=True, eq=False)
class ParquetFooter:
    """The top-level columns of a file by lower-case name, and whether its dates use the old calendar.

    An unchanged file has one footer object: footers are compared by identity.
    """

    path: str
    columns: dict[str, list[pa.Field]]
    int96: frozenset[str]
    calendar: _Calendar
    old_times: frozenset[str]
    """The columns with times on which the calendars may disagree, as paths; not asked for if Spark wrote the file."""
    column_bytes: Mapping[str, int]
    """Compressed, in the first row group."""
    has_old_statistics: bool

    def column(self, name: str, data_type: DataType, options: ReadOptions = ()) -> pa.Field | None:
        candidates = self.columns.get(name.lower(), ())
        if not candidates:
            return None
        if len(candidates) > 1:
            raise DataError(f"{self.path}: several columns named {name} differ only in case.")
        (column,) = candidates
        is_refused = KEEPS_TYPES in dict(options) and _is_widened(column.type, data_type)
        if is_refused or not _readable(column.type, data_type):
            raise DataError(
                f"{self.path}: column {column.name} is {column.type}, the plan expects {data_type}."
            )
        if (
            contains_any(data_type, _TIMES)
            and self.calendar.is_doubtful(column.name in self.int96, options)
            and any(leaf == column.name or leaf.startswith(f"{column.name}.") for leaf in self.old_times)
        ):
            raise DataError(
                f"{self.path}: column {column.name} may have dates in the legacy calendar of Spark 2."
            )
        return column


@dataclass(frozen=True)
class _Calendar:
    """Which calendar the writer of a file used: Spark says so in its files, other writers do not."""

    is_known: bool
    legacy: bool
    legacy_int96: bool

    @property
    def is_corrected(self) -> bool:
        """Whether it is the new one, whatever the settings are."""
        return self.is_known and not self.legacy and not self.legacy_int96

    @staticmethod
    def of(tags: Mapping[bytes, bytes]) -> _Calendar:
        version = tags.get(SPARK_VERSION.encode())
        return _Calendar(
            is_known=version is not None,
            legacy=b"org.apache.spark.legacyDateTime" in tags or (version or b"4") < b"3.0.0",
            legacy_int96=b"org.apache.spark.legacyINT96" in tags or (version or b"4") < b"3.1.0",
        )

    def is_doubtful(self, int96: bool, options: ReadOptions) -> bool:
        """Whether Spark would convert a column's values, or refuse old ones."""
        modes = dict(options)
        # A read option counts before the setting. In files of unknown writers the mode decides.
        mode = modes.get("datetimerebasemode", modes.get(REBASE, _CORRECTED))
        mode_int96 = modes.get("int96rebasemode", modes.get(REBASE_INT96, _CORRECTED))
        if self.legacy or (not self.is_known and mode.upper() != _CORRECTED):
            return True
        return int96 and (self.legacy_int96 or (not self.is_known and mode_int96.upper() != _CORRECTED))


_CORRECTED = "CORRECTED"


@lru_cache(maxsize=16_384)
def _footer(path: str, size_bytes: int, modified_ns: int) -> ParquetFooter:
    # Size and time are only part of the cache key: a rewritten file gets a new entry.
    return describe(path, pq.read_metadata(path))


def describe(path: str, metadata: pq.FileMetaData) -> ParquetFooter:
    """What a scan needs to know of a footer."""
    schema = metadata.schema
    tags = metadata.metadata or {}
    columns: dict[str, list[pa.Field]] = {}
    fields, int96 = mark_instants(schema)
    for column in fields:
        columns.setdefault(column.name.lower(), []).append(column)
    calendar = _Calendar.of(tags)
    return ParquetFooter(
        path=path,
        columns=columns,
        int96=int96,
        calendar=calendar,
        old_times=frozenset() if calendar.is_corrected else find_old_times(metadata),
        column_bytes=_column_bytes(metadata),
        has_old_statistics=has_old_statistics(metadata),
    )


def drop_footers() -> None:
    """Forget the footers of all files."""
    _footer.cache_clear()


def _column_bytes(metadata: pq.FileMetaData) -> dict[str, int]:
    found: dict[str, int] = {}
    if metadata.num_row_groups:
        group = metadata.row_group(0)
        for number in range(group.num_columns):
            column = group.column(number)
            name = column.path_in_schema.split(".")[0].lower()
            found[name] = found.get(name, 0) + column.total_compressed_size
    return found


_READABLE: dict[DataType, frozenset[pa.DataType]] = {
    BYTE: frozenset({pa.int8()}),
    SHORT: frozenset({pa.int8(), pa.int16(), pa.uint8()}),
    # Columns without a value have no type in Arrow, and are stored as INT32.
    INTEGER: frozenset({pa.int8(), pa.int16(), pa.int32(), pa.uint16(), pa.null()}),
    LONG: frozenset({pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint32()}),
    FLOAT: frozenset({pa.float32()}),
    DOUBLE: frozenset({pa.int8(), pa.int16(), pa.int32(), pa.float32(), pa.float64()}),
    STRING: frozenset({pa.string(), pa.large_string(), pa.string_view()}),
    BINARY: frozenset({pa.binary(), pa.large_binary(), pa.binary_view()}),
    DATE: frozenset({pa.date32()}),
    TIMESTAMP_NTZ: frozenset({pa.timestamp("us"), pa.timestamp("ms"), pa.date32()}),
    # Arrow's writers keep durations as numbers, and say so in metadata that Spark does not read.
    **dict.fromkeys(DAY_TIME_INTERVALS, frozenset({pa.int64(), pa.duration("us")})),
}


# The digits before the point that Spark wants a decimal to have for every value of an integer.
_DIGITS = {pa.int8(): 10, pa.int16(): 10, pa.int32(): 10, pa.int64(): 20}


def _readable(found: pa.DataType, wanted: DataType) -> bool:
    if pa.types.is_dictionary(found):
        found = found.value_type
    if wanted == TIMESTAMP:
        # An INT64 is an instant only if annotated as adjusted to UTC.
        return pa.types.is_timestamp(found) and found.tz is not None and found.unit in ("us", "ms")
    match wanted:
        case StructType(fields):
            return pa.types.is_struct(found) and _has_fields(found, fields)
        case ArrayType(element, _):
            return pa.types.is_list(found) and _readable(found.value_type, element)
        case MapType(key, value, _):
            return (
                pa.types.is_map(found)
                and _readable(found.key_type, key)
                and _readable(found.item_type, value)
            )
        case DecimalType(precision, scale) if pa.types.is_decimal(found):
            return bool(found.scale <= scale and found.precision - found.scale <= precision - scale)
        case DecimalType(20, 0) if found == pa.uint64():
            return True
        case DecimalType(precision, scale):
            return precision - scale >= _DIGITS.get(found, precision + 1)
        case _:
            return found in _READABLE.get(wanted, (to_arrow(wanted),))


_WIDENED: dict[DataType, frozenset[pa.DataType]] = {
    LONG: frozenset({pa.int8(), pa.int16(), pa.int32()}),
    DOUBLE: frozenset({pa.int8(), pa.int16(), pa.int32(), pa.float32()}),
    TIMESTAMP_NTZ: frozenset({pa.date32()}),
}


def _is_widened(found: pa.DataType, wanted: DataType) -> bool:
    """Whether a column, or one inside it, is read in a wider type than it has in the file."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    match wanted:
        case StructType(fields) if pa.types.is_struct(found):
            kinds = {field.name.lower(): field.type for field in found}
            common = (field for field in fields if field.name.lower() in kinds)
            return any(_is_widened(kinds[field.name.lower()], field.type) for field in common)
        case ArrayType(element, _) if pa.types.is_list(found):
            return _is_widened(found.value_type, element)
        case MapType(key, value, _) if pa.types.is_map(found):
            return _is_widened(found.key_type, key) or _is_widened(found.item_type, value)
        case DecimalType(precision, scale) if pa.types.is_decimal(found):
            return bool((found.precision, found.scale) != (precision, scale))
        case DecimalType():
            return bool(found != pa.uint64())
        case _:
            return found in _WIDENED.get(wanted, ())


def _has_fields(found: pa.StructType, wanted: tuple[StructField, ...]) -> bool:
    """Whether a struct has each of the fields once. Spark reads only those that a query needs."""
    stored: dict[str, list[pa.Field]] = {}
    for field in found:
        stored.setdefault(field.name.lower(), []).append(field)
    for field in wanted:
        same = stored.get(field.name.lower(), [])
        if [one.name for one in same] != [field.name] or not _readable(same[0].type, field.type):
            return False
    return True


_TIMES = frozenset({DATE, TIMESTAMP, TIMESTAMP_NTZ})


# --------------------------------------------------------------------------------------------- writing

_TIMESTAMP_TYPE = "spark.sql.parquet.outputTimestampType"
_CODEC = "spark.sql.parquet.compression.codec"
# The first that is given counts, before the setting of the session.
_CODEC_OPTIONS = ("compression", "parquet.compression")
# pyarrow's name and the ending of the file for each of Spark's codecs that both write alike.
_CODECS = {
    "none": ("none", ".parquet"),
    "uncompressed": ("none", ".parquet"),
    "snappy": ("snappy", ".snappy.parquet"),
    "gzip": ("gzip", ".gz.parquet"),
    "zstd": ("zstd", ".zstd.parquet"),
    "lz4_raw": ("lz4", ".lz4raw.parquet"),
}
_REBASE_SETTINGS = (
    "spark.sql.parquet.datetimeRebaseModeInWrite",
    "spark.sql.parquet.int96RebaseModeInWrite",
)
_REFUSED = "EXCEPTION"
_WRITE_RULES = WriteRules(
    settings={
        "spark.sql.parquet.output.committer.class": "org.apache.parquet.hadoop.ParquetOutputCommitter",
        "spark.sql.parquet.writeLegacyFormat": "false",
        **dict.fromkeys(_REBASE_SETTINGS),
        _TIMESTAMP_TYPE: None,
        _CODEC: None,
    },
    options=frozenset(_CODEC_OPTIONS),
    # It encrypts.
    hadoop=frozenset({"parquet.crypto.factory.class"}),
)


class ParquetFile:
    """A `FormatWriter` that collects rows into row groups."""

    def __init__(self, path: Path, schema: pa.Schema, node: WriteFiles) -> None:
        self._schema = schema
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0
        options = dict(node.options)
        self._refuses_old_times = options["refuses_old_times"] == "true"
        self._writer = pq.ParquetWriter(
            path,
            schema,
            compression=options["compression"],
            use_deprecated_int96_timestamps=options["int96"] == "true",
            # Spark reads its own metadata; Arrow's would only make the files differ from Spark's.
            store_schema=False,
            store_decimal_as_integer=True,
        )
        self._writer.add_key_value_metadata(dict(node.metadata))

    def write(self, batch: pa.RecordBatch) -> None:
        if self._refuses_old_times and any(map(holds_old_times, batch.columns)):
            # Spark raises its own error, or finds that the values are not that old.
            raise DataError("there are times that Spark may refuse to write in the calendar of today.")
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_rows >= _GROUP_ROWS or self._held_bytes >= _GROUP_BYTES:
            self._write_group()

    def close(self) -> None:
        self._write_group()
        self._writer.close()

    def abandon(self) -> None:
        self._held.clear()
        self._writer.close()

    def _write_group(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held, self._schema), _GROUP_ROWS)
            self._held.clear()
            self._held_rows = self._held_bytes = 0
