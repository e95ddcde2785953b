# SPDX-License-Identifier: Apache-2.0
"""Random Parquet files, read with random schemas, settings and filters: Volley's rows or errors are Spark's.

Arrow writes them in all its ways: pages, encodings, compressions, statistics, names of nested columns, row groups.
"""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from helpers.sampling import draw_files
from volley.testing.session import conf


@dataclass(frozen=True)
class Kind:
    """An Arrow type with values of it, and types that a reader may ask for."""

    stored: pa.DataType
    values: Sequence[Any]
    asked: Sequence[str]
    literals: Sequence[str] = ()
    encodings: Sequence[str] = ("PLAIN",)


_DAYS = [
    datetime.date(2024, 2, 29),
    datetime.date(1970, 1, 1),
    datetime.date(1, 1, 1),
    datetime.date(9999, 12, 31),
]
_TIMES = [
    datetime.datetime(2024, 2, 29, 12, 0, 0, 123456),
    datetime.datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime.datetime(1582, 10, 4),
    datetime.datetime(2200, 1, 1),
]
_INTEGER_ENCODINGS = ("PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT")
_TEXT_ENCODINGS = ("PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY")
_FLOAT_ENCODINGS = ("PLAIN", "BYTE_STREAM_SPLIT")


def _integers(stored: pa.DataType, *asked: str) -> Kind:
    signed = str(stored).startswith("int")
    low, high = (
        (-(2 ** (stored.bit_width - 1)), 2 ** (stored.bit_width - 1) - 1)
        if signed
        else (0, 2**stored.bit_width - 1)
    )
    return Kind(
        stored, [0, 1, low, high, high // 2 + 1], asked, ("0", "1", str(high), str(low)), _INTEGER_ENCODINGS
    )


def _times(unit: str, zone: str | None) -> Kind:
    values = _TIMES if unit != "s" else [time.replace(microsecond=0) for time in _TIMES]
    if unit == "ns":
        values = [time for time in _TIMES if time.year > 1900]
    if unit == "ms":
        values = [time.replace(microsecond=time.microsecond // 1000 * 1000) for time in _TIMES]
    asked = "timestamp" if zone else "timestamp_ntz"
    other = "timestamp_ntz" if zone else "timestamp"
    literal = f"{asked}'2024-02-29 12:00:00.123456'"
    return Kind(
        pa.timestamp(unit, zone),
        values,
        (asked, asked, other, "bigint"),
        (literal, f"{asked}'1969-12-31 00:00:00'"),
    )


def _decimals(precision: int, scale: int, *asked: str) -> Kind:
    top = Decimal((0, (9,) * precision, -scale))
    return Kind(
        pa.decimal128(precision, scale),
        [Decimal(0), top, top.copy_negate(), Decimal((0, (1,), -scale))],
        (f"decimal({precision},{scale})",) * 2 + asked,
        ("0", "1", "0.01"),
    )


KINDS: dict[str, Kind] = {
    "int8": _integers(pa.int8(), "tinyint", "tinyint", "int", "bigint", "smallint"),
    "int16": _integers(pa.int16(), "smallint", "smallint", "int", "tinyint", "double"),
    "int32": _integers(pa.int32(), "int", "int", "bigint", "double", "decimal(12,2)", "smallint", "string"),
    "int64": _integers(pa.int64(), "bigint", "bigint", "int", "decimal(20,0)", "double", "timestamp"),
    "uint8": _integers(pa.uint8(), "smallint", "int", "tinyint"),
    "uint16": _integers(pa.uint16(), "int", "bigint"),
    "uint32": _integers(pa.uint32(), "bigint", "int"),
    "uint64": _integers(pa.uint64(), "decimal(20,0)", "bigint"),
    "float16": Kind(pa.float16(), [0.0, 1.5, -2.0], ("float", "double", "binary")),
    "float": Kind(
        pa.float32(),
        [0.0, -0.0, 1.5, float("nan"), float("inf")],
        ("float", "float", "double"),
        ("0.0", "1.5"),
        _FLOAT_ENCODINGS,
    ),
    "double": Kind(
        pa.float64(),
        [0.0, -0.0, 0.1, float("nan"), float("-inf")],
        ("double", "double", "float"),
        ("0.0D", "double('nan')", "0.1D"),
        _FLOAT_ENCODINGS,
    ),
    "bool": Kind(
        pa.bool_(), [True, False], ("boolean", "boolean", "int"), ("true", "false"), ("PLAIN", "RLE")
    ),
    "text": Kind(
        pa.string(),
        ["", "a", "é", "😀", "\uffff", "x" * 100, "a\0b"],
        ("string", "string", "binary", "int"),
        ("'a'", "'é'", "''", "'xx'"),
        _TEXT_ENCODINGS,
    ),
    "large_text": Kind(pa.large_string(), ["", "b"], ("string",), ("'b'",), _TEXT_ENCODINGS),
    "dictionary": Kind(pa.dictionary(pa.int8(), pa.string()), ["", "a", "b"], ("string", "binary"), ("'a'",)),
    "binary": Kind(
        pa.binary(), [b"", b"a", b"\xff\xfe"], ("binary", "binary", "string"), ("X'61'",), _TEXT_ENCODINGS
    ),
    "fixed": Kind(
        pa.binary(4), [b"abcd", b"\xff\xff\xff\xff"], ("binary", "binary", "string"), ("X'61626364'",)
    ),
    "date": Kind(
        pa.date32(), _DAYS, ("date", "date", "timestamp_ntz", "int"), ("date'2024-02-29'", "date'1970-01-01'")
    ),
    "date64": Kind(pa.date64(), _DAYS, ("date", "timestamp")),
    "time32": Kind(pa.time32("ms"), [datetime.time(1, 2, 3)], ("int", "time(3)")),
    "time64": Kind(pa.time64("us"), [datetime.time(1, 2, 3)], ("bigint", "time(6)")),
    "duration": Kind(
        pa.duration("us"), [datetime.timedelta(seconds=-1)], ("bigint", "interval day to second")
    ),
    "null": Kind(pa.null(), [None], ("int", "string", "bigint")),
    "decimal_5_2": _decimals(5, 2, "decimal(10,2)", "decimal(7,4)", "decimal(4,2)", "decimal(5,1)", "double"),
    "decimal_9_0": _decimals(9, 0, "decimal(18,0)", "int", "bigint"),
    "decimal_18_6": _decimals(18, 6, "decimal(38,6)", "decimal(20,8)", "decimal(18,8)", "bigint"),
    # Where an exponent is written, PySpark reads 1E-10 as 1.00E-10, which is equal.
    "decimal_38_6": _decimals(38, 6, "decimal(38,5)", "decimal(38,7)"),
    **{f"time_{unit}": _times(unit, None) for unit in ("s", "ms", "us", "ns")},
    **{f"instant_{unit}": _times(unit, "UTC") for unit in ("s", "ms", "us", "ns")},
    "zoned": _times("us", "America/New_York"),
}
FIELDS = sorted(KINDS)


@dataclass(frozen=True)
class Column:
    """A column of a file, and the type in which it is read."""

    name: str
    kind: str
    asked: str
    shape: str

    @property
    def stored(self) -> pa.DataType:
        inner = KINDS[self.kind].stored
        match self.shape:
            case "list":
                return pa.list_(inner)
            case "lists":
                return pa.list_(pa.list_(inner))
            case "struct":
                return pa.struct([("x", inner), ("y", pa.int32())])
            case "structs":
                return pa.list_(pa.struct([("x", inner), ("y", pa.int32())]))
            case "map":
                return pa.map_(pa.string(), inner)
            case "inner":
                return pa.struct(
                    [("s", pa.struct([("x", inner), ("m", pa.map_(pa.int32(), pa.list_(inner)))]))]
                )
            case _:
                return inner

    def value(self, inner: Any) -> Any:
        """A value of the column that has this one inside."""
        if inner == "missing":
            return None
        match self.shape:
            case "list":
                return [inner, None]
            case "lists":
                return [[inner], [], None, [None, inner]]
            case "struct":
                return {"x": inner, "y": 1}
            case "structs":
                return [{"x": inner, "y": None}, None]
            case "map":
                return [("k", inner), ("l", None)]
            case "inner":
                return {"s": {"x": inner, "m": [(1, [inner])]}}
            case _:
                return inner

    @property
    def declared(self) -> str:
        kind = {
            "list": "array<{}>",
            "lists": "array<array<{}>>",
            "struct": "struct<x: {}, y: int>",
            "structs": "array<struct<y: int, x: {}>>",
            "map": "map<string, {}>",
            "inner": "struct<s: struct<m: map<int, array<{0}>>, x: {0}>>",
            "": "{}",
        }[self.shape]
        return f"{self.name} {kind.format(self.asked)}"


@dataclass(frozen=True)
class Case:
    """Tables as files with the options of their writer, what is asked for, and a query."""

    files: Sequence[tuple[pa.Table, dict[str, Any]]]
    schema: str
    settings: dict[str, str]
    columns: str
    condition: str

    def frame(self, spark: SparkSession, directory: Path) -> DataFrame:
        reader = spark.read.schema(self.schema) if self.schema else spark.read
        return reader.parquet(str(directory)).where(self.condition).selectExpr(*self.columns.split("; "))


SHAPES = ("", "", "", "", "list", "lists", "struct", "structs", "map", "inner")
SETTINGS = {
    "spark.sql.session.timeZone": ["America/New_York"],
    "spark.sql.parquet.mergeSchema": ["true"],
    "spark.sql.parquet.binaryAsString": ["true"],
    "spark.sql.parquet.inferTimestampNTZ.enabled": ["false"],
    "spark.sql.legacy.parquet.nanosAsLong": ["true"],
    "spark.sql.parquet.int96AsTimestamp": ["false"],
    "spark.sql.parquet.enableVectorizedReader": ["false"],
    "spark.sql.parquet.datetimeRebaseModeInRead": ["LEGACY", "EXCEPTION"],
    "spark.sql.parquet.int96RebaseModeInRead": ["LEGACY", "EXCEPTION"],
    "spark.sql.parquet.int96TimestampConversion": ["true"],
    "spark.sql.parquet.fieldId.read.enabled": ["true"],
    "spark.sql.caseSensitive": ["true"],
    "spark.sql.sources.useV1SourceList": [""],
}


@st.composite
def writers(draw: st.DrawFn, columns: Sequence[Column]) -> dict[str, Any]:
    options: dict[str, Any] = {
        "version": draw(st.sampled_from(["1.0", "2.4", "2.6"])),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "compression": draw(st.sampled_from(["snappy", "none", "gzip", "zstd", "lz4"])),
        "row_group_size": draw(st.sampled_from([1, 2, 3, 1000])),
        "data_page_size": draw(st.sampled_from([1, 1 << 20])),
        "write_batch_size": draw(st.sampled_from([1, 1024])),
        "write_statistics": draw(st.booleans()),
        "write_page_index": draw(st.booleans()),
        "write_page_checksum": draw(st.booleans()),
        "store_schema": draw(st.booleans()),
        "use_compliant_nested_type": draw(st.booleans()),
        "store_decimal_as_integer": draw(st.booleans()),
        "use_deprecated_int96_timestamps": draw(st.sampled_from([False, False, True])),
        "use_dictionary": True,
    }
    if draw(st.booleans()):
        options["use_dictionary"] = False
        flat = [column for column in columns if not column.shape]
        options["column_encoding"] = {
            column.name: draw(st.sampled_from(KINDS[column.kind].encodings)) for column in flat
        } or None
    blooms = [
        column.name
        for column in columns
        if not column.shape and column.kind in ("int32", "int64", "text", "binary")
    ]
    if draw(st.booleans()) and blooms:
        options["bloom_filter_options"] = dict.fromkeys(blooms, True)
    return options


@st.composite
def parquet_cases(draw: st.DrawFn, kinds: Sequence[str] = FIELDS) -> Case:
    columns = []
    for place in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(kinds))
        columns.append(
            Column(f"c{place}", kind, draw(st.sampled_from(KINDS[kind].asked)), draw(st.sampled_from(SHAPES)))
        )
    files = []
    for _ in range(draw(st.integers(1, 2))):
        kept = draw(st.permutations(columns)) if draw(st.booleans()) else columns
        kept = kept[: draw(st.integers(1, len(kept)))] if draw(st.integers(0, 3)) == 0 else kept
        count = draw(st.integers(0, 6))
        arrays, names = [], []
        for column in kept:
            pool = KINDS[column.kind].values
            values = [column.value(draw(st.sampled_from([*pool, *pool, "missing"]))) for _ in range(count)]
            arrays.append(pa.array(values, column.stored))
            names.append(column.name.upper() if draw(st.integers(0, 9)) == 0 else column.name)
        table = pa.table(arrays, names)
        written = [
            Column(name, column.kind, column.asked, column.shape)
            for name, column in zip(names, kept, strict=True)
        ]
        files.append((table, draw(writers(written))))
    declared = [column.declared for column in draw(st.permutations(columns))]
    if draw(st.integers(0, 4)) == 0:
        declared.append(
            draw(st.sampled_from(["missing int", "missing struct<x: int>", "missing array<string>"]))
        )
    conditions = ["true"]
    for column in columns:
        conditions.append(f"{column.name} is not null")
        if not column.shape:
            operator = draw(st.sampled_from(["=", "<", ">=", "<=>", "!=", ">"]))
            conditions += [f"{column.name} {operator} {literal}" for literal in KINDS[column.kind].literals]
        elif column.shape == "struct":
            conditions.append(f"{column.name}.y > 0")
            conditions += [f"{column.name}.x = {literal}" for literal in KINDS[column.kind].literals]
    selected = ["*", "*", "count(*)"] + [
        {"struct": "{}.x", "structs": "{}.y", "inner": "{}.s.m"}.get(column.shape, "{}").format(column.name)
        for column in columns
    ]
    pair = st.sampled_from([(key, value) for key, values in SETTINGS.items() for value in values])
    return Case(
        files,
        ", ".join(declared) if draw(st.integers(0, 3)) else "",
        dict(draw(st.lists(pair, max_size=1))),
        draw(st.sampled_from(selected)),
        draw(st.sampled_from(conditions)),
    )


FEW = draw_files(5)
MANY = draw_files(400, shrink=True)


def check(spark: SparkSession, home: Path, case: Case) -> None:
    directory = home / "table"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for number, (table, options) in enumerate(case.files):
        try:
            pq.write_table(table, directory / f"{number}.parquet", **options)
        except (pa.ArrowException, OSError):
            # Some types do not go with some settings.
            pq.write_table(table, directory / f"{number}.parquet")
    # Spark's own filters lose NaN and -0.0.
    with conf(spark, {"spark.sql.parquet.filterPushdown": "false", **case.settings}):
        with conf(spark, {"spark.volley.enabled": "false"}):
            expected = outcome(spark, case, directory)
        found = outcome(spark, case, directory)
        assert found == expected, (found, expected, case)


def outcome(spark: SparkSession, case: Case, directory: Path) -> list[str] | str:
    """The rows as text, or the class of the error."""
    try:
        return sorted(map(str, case.frame(spark, directory).collect()))
    except Exception as error:
        return type(error).__name__


@FEW
@given(parquet_cases())
def test_parquet_files(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    check(spark, tmp_path, case)


@pytest.mark.slow
@MANY
@given(parquet_cases())
def test_more_parquet_files(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    check(spark, tmp_path, case)
