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
from volley.formats.base import (
    MERGES_SCHEMA,
    FilePlan,
    NotWritable,
    ReadOptions,
    WriteRequest,
    WriteRules,
    find_invalid_option,
)
from volley.formats.old_statistics import has_old_statistics
from volley.formats.old_times import CORRECTED, SPARK_VERSION, Calendar, find_old_times, holds_old_times
from volley.formats.parquet_types import column_types
from volley.formats.stored_columns import find_by_id, find_field, has_ids, is_mistakable, part_of
from volley.plan.nodes import DataFile, StoredColumn, WriteFiles
from volley.plan.read_rules import KEEPS_TYPES, NEEDS_IDS, REBASE, REBASE_INT96
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
        if problem := find_invalid_option(request):
            return problem
        stamps = request.settings[_TIMESTAMP_TYPE]
        int96 = stamps == "INT96"
        # Spark writes times without a zone as INT64, whatever the setting; Arrow has one form for all.
        local = any(contains_any(column.type, frozenset({TIMESTAMP_NTZ})) for column in request.columns)
        if stamps == "TIMESTAMP_MILLIS" or (int96 and local):
            return NotWritable("outputTimestampType", stamps)
        has_times = any(contains_any(column.type, _TIMES) for column in request.columns)
        modes = {key: request.settings[key].upper() for key in _REBASE_SETTINGS}
        for key, mode in modes.items():
            if has_times and mode not in (CORRECTED, _REFUSED):
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
    calendar: Calendar
    old_times: frozenset[str]
    """The columns with times on which the calendars may disagree, as paths; not asked for if Spark wrote the file."""
    column_bytes: Mapping[str, int]
    """Compressed, in the first row group."""
    has_old_statistics: bool
    has_ids: bool
    """Whether a column, or a field inside one, has a field id."""

    def column(
        self,
        name: str,
        data_type: DataType,
        options: ReadOptions = (),
        stored: StoredColumn | None = None,
    ) -> pa.Field | None:
        column = self._find(name, options, stored)
        if column is None:
            return None
        is_refused = KEEPS_TYPES in dict(options) and _is_widened(column.type, data_type, stored)
        if is_refused or not _readable(column.type, data_type, stored):
            raise DataError(
                f"{self.path}: column {column.name} is {column.type}, the plan expects {data_type}."
            )
        if (
            contains_any(data_type, _TIMES)
            and self.is_doubtful(column.name, options)
            and any(leaf == column.name or leaf.startswith(f"{column.name}.") for leaf in self.old_times)
        ):
            raise DataError(
                f"{self.path}: column {column.name} may have dates in the legacy calendar of Spark 2."
            )
        return column

    def is_doubtful(self, name: str, options: ReadOptions) -> bool:
        """Whether Spark would convert the times of a column, by its name in the file, or refuse old ones."""
        modes = dict(options)
        # A read option counts before the setting.
        mode = modes.get("datetimerebasemode", modes.get(REBASE, CORRECTED))
        mode_int96 = modes.get("int96rebasemode", modes.get(REBASE_INT96, CORRECTED))
        is_int96 = name in self.int96
        return self.calendar.is_doubtful(mode) or (is_int96 and self.calendar.is_doubtful_int96(mode_int96))

    def _find(self, name: str, options: ReadOptions, stored: StoredColumn | None) -> pa.Field | None:
        if stored is not None and stored.is_position:
            return None
        if not self.has_ids and NEEDS_IDS in dict(options):
            raise DataError(f"{self.path}: no column has a field id.")
        if stored is None or stored.id is None:
            candidates = self.columns.get(name.lower(), ())
            if len(candidates) > 1:
                raise DataError(f"{self.path}: several columns named {name} differ only in case.")
            return candidates[0] if candidates else None
        fields = [field for same in self.columns.values() for field in same]
        found = find_by_id(fields, stored)
        if stored.is_filtered and is_mistakable(fields, stored, found):
            raise DataError(
                f"{self.path}: Spark compares filters of {name} with another column of this name."
            )
        if found is not None and len(self.columns[found.name.lower()]) > 1:
            raise DataError(f"{self.path}: several columns named {found.name} differ only in case.")
        return found


@lru_cache(maxsize=16_384)
def _footer(path: str, size_bytes: int, modified_ns: int) -> ParquetFooter:
    # Size and time are only part of the cache key: a rewritten file gets a new entry.
    return describe(path, pq.read_metadata(path))


def describe(path: str, metadata: pq.FileMetaData) -> ParquetFooter:
    """What a scan needs to know of a footer."""
    fields, int96 = column_types(metadata.schema)
    tags = metadata.metadata or {}
    columns: dict[str, list[pa.Field]] = {}
    for column in fields:
        columns.setdefault(column.name.lower(), []).append(column)
    calendar = Calendar.of(tags)
    return ParquetFooter(
        path=path,
        columns=columns,
        int96=int96,
        calendar=calendar,
        old_times=frozenset() if calendar.is_corrected else find_old_times(metadata),
        column_bytes=_column_bytes(metadata),
        has_old_statistics=has_old_statistics(metadata),
        has_ids=has_ids(fields),
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


def _readable(found: pa.DataType, wanted: DataType, stored: StoredColumn | None = None) -> bool:
    if pa.types.is_dictionary(found):
        found = found.value_type
    if wanted == TIMESTAMP:
        # An INT64 is an instant only if annotated as adjusted to UTC.
        return pa.types.is_timestamp(found) and found.tz is not None and found.unit in ("us", "ms")
    match wanted:
        case StructType(fields):
            return pa.types.is_struct(found) and _has_fields(found, fields, stored)
        case ArrayType(element, _):
            is_list = pa.types.is_list(found) or (stored is not None and pa.types.is_large_list(found))
            return is_list and _readable(found.value_type, element, part_of(stored, 0))
        case MapType(key, value, _):
            if not pa.types.is_map(found):
                return False
            keys, items = part_of(stored, 0), part_of(stored, 1)
            return _readable(found.key_type, key, keys) and _readable(found.item_type, value, items)
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


def _is_widened(found: pa.DataType, wanted: DataType, stored: StoredColumn | None = None) -> bool:
    """Whether a column, or one inside it, is read in a wider type than it has in the file."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    match wanted:
        case StructType(fields) if pa.types.is_struct(found):
            parts = [(field, stored.part(field.name) if stored is not None else None) for field in fields]
            there = [(find_field(list(found), field.name, part)[0], field, part) for field, part in parts]
            return any(_is_widened(one.type, field.type, part) for one, field, part in there if one)
        case ArrayType(element, _) if pa.types.is_list(found) or pa.types.is_large_list(found):
            return _is_widened(found.value_type, element, part_of(stored, 0))
        case MapType(key, value, _) if pa.types.is_map(found):
            return _is_widened(found.key_type, key, part_of(stored, 0)) or _is_widened(
                found.item_type, value, part_of(stored, 1)
            )
        case DecimalType(precision, scale) if pa.types.is_decimal(found):
            return bool((found.precision, found.scale) != (precision, scale))
        case DecimalType():
            return bool(found != pa.uint64())
        case _:
            return found in _WIDENED.get(wanted, ())


def _has_fields(found: pa.StructType, wanted: tuple[StructField, ...], stored: StoredColumn | None) -> bool:
    """Whether a struct has each of the fields once. Spark reads only those that a query needs.

    Those with an id may be missing, but not all of them: a struct would have to be told from NULL by another field.
    """
    if stored is not None and len({field.name for field in found}) < found.num_fields:
        return False
    missing, seen = 0, set()
    for field in wanted:
        part = stored.part(field.name) if stored is not None else None
        there, is_certain = find_field(list(found), field.name, part)
        if not is_certain:
            return False
        if there is None:
            missing += 1
        elif there.name in seen or not _readable(there.type, field.type, part):
            return False
        else:
            seen.add(there.name)
    return missing < len(wanted)


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
    options=frozenset({*_CODEC_OPTIONS, MERGES_SCHEMA}),
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
