# SPDX-License-Identifier: Apache-2.0
"""JSON lines: each line that is one plain object is a row.

Arrow's parser is stricter than Spark's (Jackson): it refuses single quotes, comments, numbers for texts, values of
another kind, and keys that repeat. What it takes has one meaning, except for the few things that are checked here.
Anything else raises DataError, and Spark runs the query. If all lines are plain, the three modes give the same rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.json as arrow_json

from volley.batches import batch_by_position
from volley.errors import DataError
from volley.formats import lines
from volley.formats.base import ReadOptions, ReadRequest
from volley.formats.decimals import check_precision
from volley.formats.plain_json import PlainLines
from volley.formats.text_values import TimeForms, convert_text
from volley.plan.expressions import Attribute
from volley.plan.nodes import DataFile
from volley.plan.read_rules import CORRUPT_RECORD
from volley.plan.types import DATE, DOUBLE, TIMESTAMP, TIMESTAMP_NTZ, DecimalType, contains_any, to_arrow

# A whole number for Jackson, which gives 0.0; Arrow gives -0.0.
_NEGATIVE_ZERO = re.compile(rb"[:\[,]\s*-0\s*[,\]}]")
# Jackson accepts other spellings of these numbers than Arrow does.
_NOT_FINITE = re.compile(rb"[:\[,]\s*-?(?:NaN|Inf)")
# A value after the object: Arrow would take it for a row, and crashes at a `null`. Text may look like this, too.
_TRAILING = re.compile(rb"\}[ \t\r]*[^ \t\r\n,\]}\"]")
# What may follow an object with no blank between.
_AFTER_OBJECT = np.isin(np.arange(256), list(b'\n,]}"'))
# Whatever stands in a number as 0, except for the E of exponents.
_SHAPES = bytes(
    ord("0") if code in b"0123456789.+" else ord("e") if code in b"eE" else ord(" ") for code in range(256)
)
_LF, _CR, _OPEN, _CLOSE = 10, 13, ord("{"), ord("}")
# Jackson refuses numbers of 1000 digits, names of 50,000 characters and deep nesting.
_LONG_LINE = 1_000
_LONGEST_LINE = 50_000
_LONG_NUMBER = re.compile(rb"[0-9.eE+-]{1000}")
_DEEPEST = 100
_TEXTS = frozenset({DATE, TIMESTAMP, TIMESTAMP_NTZ})
"""Types that a JSON string holds."""
_DOUBLES = frozenset({DOUBLE})


class Json:
    """See `StreamedFormat`."""

    name = "json"

    def can_split(self, file: DataFile, options: ReadOptions) -> bool:
        return lines.can_split(file)

    def unreadable(self, file: DataFile) -> str | None:
        return lines.unreadable(file)

    def read(self, request: ReadRequest) -> Iterator[pa.RecordBatch]:
        options = dict(request.options)
        corrupt = options.get("columnnameofcorruptrecord", options.get(CORRUPT_RECORD, ""))
        times = TimeForms.of(options)
        columns = [column for column in request.columns if column.name != corrupt]
        digits = _safe_digits(columns)
        doubles = any(contains_any(column.type, _DOUBLES) for column in columns)
        form = lines.TextForm.of(options)
        plain = PlainLines(digits, _FRACTION_DIGITS)
        for block in lines.read_blocks(request.file, request.part, request.parts, form):
            rows, are_plain = _check_lines(block, plain)
            if not rows:
                continue
            if are_plain and not request.columns:
                yield batch_by_position([], rows)
                continue
            if not are_plain:
                _check_numbers(block, digits, doubles)
            table = _parse(block, columns)
            if table.num_rows != rows:
                raise DataError(f"{request.file.path} has lines that are not one object each.")
            arrays = [
                convert_text(_whole(table, column), column.type, times)
                if column.type in _TEXTS
                else _whole(table, column)
                if column.name != corrupt
                else pa.nulls(rows, to_arrow(column.type))
                for column in request.columns
            ]
            for column, values in zip(request.columns, arrays, strict=True):
                if isinstance(column.type, DecimalType):
                    check_precision(values, column.type)
            yield batch_by_position(arrays, rows)


_FRACTION_DIGITS = 18


def _check_numbers(block: bytes, digits: int | None, doubles: bool) -> None:
    if digits is not None and has_long_numbers(block, digits):
        raise DataError("a file has numbers with more digits than Arrow's decimals take.")
    if doubles and b"-0" in block and _NEGATIVE_ZERO.search(block):
        raise DataError("a file has a negative zero without a point.")


def _safe_digits(columns: list[Attribute]) -> int | None:
    """The digits with which a number surely fits all requested decimals; None if there are none."""
    scales = [column.type.scale for column in columns if isinstance(column.type, DecimalType)]
    # With so many digits, an exponent of one digit and this scale, a number is less than 10 ** 38.
    return max(0, min(19, 29 - max(scales))) if scales else None


def has_long_numbers(block: bytes, digits: int) -> bool:
    """Whether a number may have more digits than `digits` before its point, or an exponent of two: Arrow might overflow
    silently. Spark writes all digits of a scale after the point, which Arrow reads, if there are not too many."""
    # Expressions are slow, and text seldom looks like this.
    shapes = block.translate(_SHAPES)
    if b"0" * (digits + 1) not in shapes and b"0e00" not in shapes:
        return False
    long = rb"(?<![.0-9])[0-9]{%d}|\.[0-9]{%d}|[:\[,]\s*-?[0-9.]+[eE]\+?[0-9]{2}"
    return re.search(long % (digits + 1, _FRACTION_DIGITS + 1), block) is not None


def has_doubtful_values(block: bytes, characters: np.ndarray) -> bool:
    """Whether there may be numbers that are not finite, or a value after an object."""
    if (b"NaN" in block or b"Inf" in block) and _NOT_FINITE.search(block):
        return True
    after = np.flatnonzero(characters == _CLOSE) + 1
    if len(after) and after[-1] == len(block):
        after = after[:-1]
    return not _AFTER_OBJECT[characters[after]].all() and _TRAILING.search(block) is not None


def _parse(block: bytes, columns: list[Attribute]) -> pa.Table:
    fields = [
        pa.field(column.name, pa.string() if column.type in _TEXTS else to_arrow(column.type))
        for column in columns
    ]
    # Without a column Arrow would not count the rows.
    schema = pa.schema(fields or [pa.field("\x01", pa.null())])
    try:
        return arrow_json.read_json(
            pa.BufferReader(block),
            arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowException as error:
        raise DataError(f"a line is not plain JSON: {error}") from error


def _whole(table: pa.Table, column: Attribute) -> pa.Array:
    found = table.column(column.name)
    return found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()


def _check_lines(block: bytes, plain: PlainLines) -> tuple[int, bool]:
    """The number of lines that are not empty, and whether all are plain.

    Raises DataError unless each begins and ends as an object does.
    """
    if not block.isascii():
        try:
            block.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"a line is not valid UTF-8: {error}") from error
    characters = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(characters == _LF)
    if not block.endswith(b"\n"):
        ends = np.append(ends, len(block))
    starts = np.concatenate(([0], ends[:-1] + 1))
    are_plain = plain.are_plain(block, starts)
    if not are_plain and has_doubtful_values(block, characters):
        raise DataError("a line has values that only Spark's parser can tell.")
    last = ends - 1
    last -= characters[np.maximum(last, 0)] == _CR
    filled = last >= starts
    starts, last = starts[filled], last[filled]
    if not ((characters[starts] == _OPEN) & (characters[last] == _CLOSE)).all():
        raise DataError("a line is not one JSON object.")
    longest = int((last - starts).max(initial=0))
    if longest >= _LONGEST_LINE:
        raise DataError("a line is very long.")
    if longest >= _LONG_LINE:
        _check_long_lines(block, characters)
    return len(starts), are_plain


def _check_long_lines(block: bytes, characters: np.ndarray) -> None:
    opening = (characters == _OPEN) | (characters == ord("["))
    closing = (characters == _CLOSE) | (characters == ord("]"))
    depths = np.cumsum(opening.astype(np.int32) - closing.astype(np.int32))
    if _LONG_NUMBER.search(block) or int(depths.max(initial=0)) > _DEEPEST:
        raise DataError("a line has a very long number, or is nested deeply.")
