# SPDX-License-Identifier: Apache-2.0
"""Writers of CSV and JSON lines: the text that Spark's own writers give.

Lines are joined by Arrow, column by column. The texts of floating-point numbers and timestamps are made by Spark's own
code before. A text that Spark would trim or escape in its own way raises DataError: nothing has been committed then,
and Spark writes all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from volley.errors import DataError
from volley.formats.base import FilePlan, NotWritable, WriteRequest, WriteRules
from volley.formats.lines import WHITE_SPACE
from volley.formats.text_values import bytes_of
from volley.plan.nodes import WriteFiles
from volley.plan.types import (
    BOOLEAN,
    DATE,
    FRACTIONAL,
    INTEGRAL,
    STRING,
    TIMESTAMP,
    DataType,
    DecimalType,
)

# Spark's names of codecs, and Arrow's.
_CODECS = {"none": "", "uncompressed": "", "gzip": "gzip"}
_SUFFIXES = {"": "", "gzip": ".gz"}
# Java writes smaller decimals with an exponent.
_MAX_SCALE = 6
# Of Spark's writers, for timestamps.
_TIME_PATTERN = "yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]"
_PARSER_POLICY = "spark.sql.legacy.timeParserPolicy"
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31


def _is_written(kind: DataType) -> bool:
    simple = kind in (BOOLEAN, STRING, DATE, TIMESTAMP) or kind in INTEGRAL or kind in FRACTIONAL
    return simple or (isinstance(kind, DecimalType) and 0 <= kind.scale <= _MAX_SCALE)


# What Spark takes off the ends of CSV fields.
_TRIMMED = WHITE_SPACE.decode()
# How Jackson writes control characters in JSON; it numbers others.
_CONTROLS = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
# Not an option of Spark's: the places of columns that are texts of floating-point numbers.
_NUMBERS = "numbers"


class _TextWriter:
    """What the writers of both formats share; see `WritableFormat`."""

    name: str
    suffix: str
    write_rules: WriteRules

    def plan_write(self, request: WriteRequest) -> FilePlan | NotWritable:
        for column in request.columns:
            if not _is_written(column.type):
                return NotWritable(f"column {column.name}", str(column.type))
        policy = request.settings[_PARSER_POLICY]
        if policy.upper() == "LEGACY" and any(column.type in (DATE, TIMESTAMP) for column in request.columns):
            return NotWritable(_PARSER_POLICY, policy)
        # The first that is given counts.
        codec = next(
            (request.options[key] for key in ("compression", "codec") if key in request.options), "none"
        ).lower()
        if codec not in _CODECS:
            return NotWritable("compression", codec)
        compression = _CODECS[codec]
        options = {key: request.options[key] for key in self.write_rules.options if key in request.options}
        options["compression"] = compression
        pattern = request.options.get("timestampformat", _TIME_PATTERN)
        texts = {
            place: pattern if column.type == TIMESTAMP else None
            for place, column in enumerate(request.columns)
            if column.type in (TIMESTAMP, *FRACTIONAL)
        }
        return FilePlan(self.suffix + _SUFFIXES[compression], tuple(sorted(options.items())), (), texts)


class CsvWriter(_TextWriter):
    name = "csv"
    suffix = ".csv"
    write_rules = WriteRules(
        settings={"spark.sql.legacy.nullValueWrittenAsQuotedEmptyStringCsv": "false", _PARSER_POLICY: None},
        options=frozenset(
            {"header", "sep", "delimiter", "nullvalue", "compression", "codec", "timestampformat"}
        ),
        hadoop=frozenset(),
    )

    def plan_write(self, request: WriteRequest) -> FilePlan | NotWritable:
        separator = request.options.get("sep", request.options.get("delimiter", ","))
        if not (
            len(separator) == 1 and (" " < separator <= "~" or separator == "\t") and separator not in '"\\#'
        ):
            return NotWritable("sep", separator)
        if len(request.columns) < 2:
            # A line of one NULL would be an empty line, which readers skip.
            return NotWritable("columns", str(len(request.columns)))
        null = request.options.get("nullvalue", "")
        if any(character in null for character in f'{separator}"\\\r\n#') or null.strip() != null:
            return NotWritable("nullValue", null)
        return super().plan_write(request)

    def open_writer(self, path: Path, schema: pa.Schema, node: WriteFiles) -> LineFile:
        options = dict(node.options)
        separator = options.get("sep", options.get("delimiter", ","))
        null = options.get("nullvalue", "")

        def lines(batch: pa.RecordBatch) -> pa.Array:
            texts = [_csv_text(column, separator, first=not n) for n, column in enumerate(batch.columns)]
            return pc.binary_join_element_wise(
                *texts, separator, null_handling="replace", null_replacement=null
            )

        header = b""
        if options.get("header", "false").lower() == "true":
            names = pa.array(schema.names)
            header = separator.join(_csv_text(names, separator, first=True).to_pylist()).encode() + b"\n"
        return LineFile(path, options["compression"], lines, header)


def _csv_text(values: pa.Array, separator: str, *, first: bool) -> pa.Array:
    if not pa.types.is_string(values.type):
        texts = _text(values)
        if not (separator.isalnum() or separator in "-."):
            return texts
        return _quoted(texts, pc.match_substring(texts, separator))
    usual = pc.or_(pc.match_substring(values, separator), pc.equal(values, ""))
    # Spark trims and escapes these, and quotes a line that starts as a comment would.
    unusual = r'["\\\r\n\x00]|^[\x00-\x20]|[\x00-\x20]$' + ("|^#" if first else "")
    if not pc.any(pc.match_substring_regex(values, unusual)).as_py():
        return _quoted(values, usual)
    if pc.any(pc.match_substring_regex(values, r"[\r\n\x00]")).as_py():
        raise DataError("a text has a line end, or a NUL.")
    texts = pc.ascii_trim(values, _TRIMMED)
    if separator in _TRIMMED and texts != values:
        raise DataError("a text has white space at an end, where the separator is white space.")
    which = pc.or_(pc.match_substring_regex(texts, '"|^$'), pc.match_substring(texts, separator))
    if first:
        which = pc.or_(which, pc.starts_with(values, "#"))
    return _quoted(pc.if_else(which, _escaped(texts), texts), which)


def _escaped(texts: pa.Array) -> pa.Array:
    """The texts with a backslash before quotes and backslashes."""
    return pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')


def _quoted(texts: pa.Array, which: pa.Array) -> pa.Array:
    return pc.if_else(which, pc.binary_join_element_wise(pa.scalar('"'), texts, pa.scalar('"'), ""), texts)


class JsonWriter(_TextWriter):
    name = "json"
    suffix = ".json"
    write_rules = WriteRules(
        settings={"spark.sql.jsonGenerator.ignoreNullFields": "true", _PARSER_POLICY: None},
        options=frozenset({"compression", "codec", "timestampformat"}),
        hadoop=frozenset(),
    )

    def plan_write(self, request: WriteRequest) -> FilePlan | NotWritable:
        plan = super().plan_write(request)
        if isinstance(plan, NotWritable):
            return plan
        numbers = (str(place) for place, column in enumerate(request.columns) if column.type in FRACTIONAL)
        return replace(plan, options=(*plan.options, (_NUMBERS, ",".join(numbers))))

    def open_writer(self, path: Path, schema: pa.Schema, node: WriteFiles) -> LineFile:
        keys = [_json_text(pa.array([name]))[0].as_py() + ":" for name in schema.names]
        options = dict(node.options)
        numbers = options[_NUMBERS].split(",")
        text_of = [_json_number if str(place) in numbers else _json_text for place in range(len(keys))]

        def lines(batch: pa.RecordBatch) -> pa.Array:
            fields = [
                pc.binary_join_element_wise(pa.scalar(key), text(column), "")
                for key, text, column in zip(keys, text_of, batch.columns, strict=True)
            ]
            # NULLs are left out.
            members = pc.binary_join_element_wise(*fields, ",", null_handling="skip")
            return pc.binary_join_element_wise(pa.scalar("{"), members, pa.scalar("}"), "")

        return LineFile(path, options["compression"], lines, b"")


def _json_text(values: pa.Array) -> pa.Array:
    if pa.types.is_date32(values.type):
        return pc.binary_join_element_wise(pa.scalar('"'), _text(values), pa.scalar('"'), "")
    if not pa.types.is_string(values.type):
        return _text(values)
    texts = _escaped(values)
    if pc.any(pc.match_substring_regex(texts, r"[\x00-\x1f]")).as_py():
        for code in {byte for byte in bytes_of(texts) if byte < ord(" ")}:
            texts = pc.replace_substring(texts, chr(code), _CONTROLS.get(chr(code), f"\\u{code:04X}"))
    return _quoted(texts, values.is_valid())


def _json_number(texts: pa.Array) -> pa.Array:
    """Numbers; NaN and infinities are texts."""
    return _quoted(texts, pc.match_substring_regex(texts, "N|I"))


def _text(values: pa.Array) -> pa.Array:
    if pa.types.is_date32(values.type):
        bounds = pc.min_max(values.cast(pa.int32()))
        first, last = bounds["min"].as_py(), bounds["max"].as_py()
        if first is not None and not _FIRST_DAY <= first <= last <= _LAST_DAY:
            raise DataError("a date is beyond the years 1 to 9999.")
    return values.cast(pa.string())


class LineFile:
    """A `FormatWriter` of lines. `lines` makes them out of a batch."""

    def __init__(
        self, path: Path, compression: str, lines: Callable[[pa.RecordBatch], pa.Array], header: bytes
    ) -> None:
        self._lines = lines
        self._out = pa.output_stream(str(path), compression=compression or None)
        self._out.write(header)

    def write(self, batch: pa.RecordBatch) -> None:
        try:
            lines = pc.binary_join_element_wise(self._lines(batch), pa.scalar(""), "\n")
        except pa.ArrowException as error:
            raise DataError(f"rows cannot be written as text: {error}") from error
        self._out.write(bytes_of(lines))

    def close(self) -> None:
        self._out.close()

    def abandon(self) -> None:
        self._out.close()
