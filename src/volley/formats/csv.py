# SPDX-License-Identifier: Apache-2.0
"""CSV files: records that have the plain form are cut by Arrow's parser, and their values converted by `text_values`.

Without `multiLine`, Spark parses every line for itself, so a block of lines can be read anywhere. With it, a record
ends at a line end outside of quotes (`records`). A record has the plain form if each quote opens a field at its start
or closes it at its end. What Spark's parser (univocity) does with others has no native form: such a record raises
DataError, and Spark runs the query. If every record and value is plain, none is malformed, and the three modes give the
same rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from volley.batches import batch_by_position
from volley.errors import DataError
from volley.formats import lines, records
from volley.formats.base import ReadOptions, ReadRequest
from volley.formats.text_values import TimeForms, convert_text
from volley.plan.expressions import Attribute
from volley.plan.nodes import DataFile
from volley.plan.read_rules import CORRUPT_RECORD

_LF, _CR = 10, 13
_WHITE_SPACE = lines.WHITE_SPACE.decode()
# Of Spark's parser, which refuses longer lines.
_MAX_COLUMNS = 20_480


@dataclass(frozen=True)
class Dialect:
    """The read options of a scan. An empty `quote`, `escape` or `comment` means that there is none."""

    separator: str
    quote: str
    escape: str
    comment: str
    header: bool
    null_value: str
    empty_value: str
    corrupt_column: str
    permissive: bool
    times: TimeForms
    trims_start: bool
    trims_end: bool
    multi_line: bool
    form: lines.TextForm

    @staticmethod
    def of(options: ReadOptions) -> Dialect:
        given = dict(options)
        # Spark takes `sep` if both are given.
        separator = given.get("sep", given.get("delimiter", ","))
        return Dialect(
            separator="\t" if separator == "\\t" else separator,
            quote=given.get("quote", '"'),
            escape=given.get("escape", "\\"),
            comment=given.get("comment", ""),
            header=given.get("header", "false").lower() == "true",
            null_value=given.get("nullvalue", ""),
            empty_value=given.get("emptyvalue", ""),
            corrupt_column=given.get("columnnameofcorruptrecord", given.get(CORRUPT_RECORD, "")),
            permissive=given.get("mode", "PERMISSIVE").upper() == "PERMISSIVE",
            times=TimeForms.of(given),
            trims_start=given.get("ignoreleadingwhitespace", "false").lower() == "true",
            trims_end=given.get("ignoretrailingwhitespace", "false").lower() == "true",
            multi_line=_is_multi_line(options),
            form=lines.TextForm.of(given),
        )

    @property
    def trims(self) -> bool:
        return self.trims_start or self.trims_end


class Csv:
    """See `StreamedFormat`."""

    name = "csv"

    def can_split(self, file: DataFile, options: ReadOptions) -> bool:
        return lines.can_split(file) and not _is_multi_line(options)

    def unreadable(self, file: DataFile) -> str | None:
        return lines.unreadable(file)

    def read(self, request: ReadRequest) -> Iterator[pa.RecordBatch]:
        parser = _Parser(request)
        try:
            for block in _read_blocks(request, parser.dialect):
                yield from parser.parse(block)
            parser.finish()
        except pa.ArrowException as error:
            raise DataError(f"{request.file.path} has a record without the plain form: {error}") from error


def _is_multi_line(options: ReadOptions) -> bool:
    return dict(options).get("multiline", "false").lower() == "true"


def _read_blocks(request: ReadRequest, dialect: Dialect) -> Iterator[bytes]:
    """The records of a part of a file, or of the whole file if they may have several lines."""
    if dialect.multi_line:
        return records.read_records(request.file, dialect.quote, dialect.form)
    return lines.read_blocks(request.file, request.part, request.parts, dialect.form)


class _Parser:
    """Parses the blocks of one part of a file."""

    def __init__(self, request: ReadRequest) -> None:
        self.dialect = Dialect.of(request.options)
        characters = [self.dialect.separator, self.dialect.quote, self.dialect.comment]
        used = [character for character in characters if character]
        if len(set(used)) < len(used):
            raise DataError("the separator, quote and comment characters of a CSV scan are not distinct.")
        if self.dialect.trims and (self.dialect.comment or self.dialect.separator <= " "):
            raise DataError("whether white space is trimmed depends on comments, or on the separator.")
        self._request = request
        names = [name for name in request.file_columns if name != self.dialect.corrupt_column]
        self._width = len(names)
        places = {name.lower(): place for place, name in enumerate(names)}
        self._places = [places.get(column.name.lower()) for column in request.columns]
        self._waits_for_header = self.dialect.header and request.part == 0

    def parse(self, block: bytes) -> Iterator[pa.RecordBatch]:
        if self.dialect.multi_line:
            yield from self._parse_records(block)
            return
        data = self._without_comments(block)
        if self._waits_for_header:
            data = self._without_header(data)
        if not self._request.columns and self.dialect.permissive:
            # Every line that is not blank is a row, whatever is in it.
            yield batch_by_position([], lines.count_filled(data))
            return
        if self.dialect.separator <= " " or self._width == 1:
            data = lines.without_blank_lines(data)
        if data[:1] <= b" " and not data.strip(lines.WHITE_SPACE):
            return
        try:
            table = self._cut(data)
        except pa.ArrowException:
            # Blank lines are rare, and looking for them takes time.
            if (filled := lines.without_blank_lines(data)) is data:
                raise
            table = self._cut(filled)
        yield self._columns(table)

    def _parse_records(self, block: bytes) -> Iterator[pa.RecordBatch]:
        """Empty lines are none, and other blank ones are records of one field."""
        if self._begins_comment(block):
            raise DataError("a CSV file with records of several lines has comments.")
        data = block.lstrip(b"\n")
        if self._waits_for_header and data:
            header, data = records.split_first(data, self.dialect.quote)
            if self.dialect.quote and self.dialect.quote.encode() in header:
                _check_quotes(header, self.dialect)
            self._waits_for_header = False
        if data.strip(b"\n"):
            yield self._columns(self._cut(data))

    def finish(self) -> None:
        if self._waits_for_header and self._request.parts > 1:
            # Which of Spark's tasks skips the header depends on its own splits.
            raise DataError("the first part of a CSV file has no header.")

    def _without_comments(self, data: bytes) -> bytes:
        if not self._begins_comment(data):
            return data
        return re.sub(rb"(?m)^" + re.escape(self.dialect.comment.encode()) + rb".*\n?", b"", data)

    def _begins_comment(self, data: bytes) -> bool:
        """Whether a line begins with the comment character."""
        comment = self.dialect.comment.encode()
        return bool(comment) and (data.startswith(comment) or b"\n" + comment in data)

    def _without_header(self, data: bytes) -> bytes:
        """Spark skips the first line that is not blank."""
        while self._waits_for_header and data:
            line, _, data = data.partition(b"\n")
            self._waits_for_header = not line.strip(lines.WHITE_SPACE)
        return data

    def _cut(self, data: bytes) -> pa.Table:
        """The requested columns as text, NULL where Spark's parser gives none."""
        lines.refuse_mark(data)
        dialect = self.dialect
        quoted = bool(dialect.quote) and dialect.quote.encode() in data
        if quoted:
            _check_quotes(data, dialect)
            if dialect.trims and _has_outer_space(data, dialect):
                raise DataError("a CSV file has quotes, and white space beside its separators or quotes.")
        if dialect.trims_end and not dialect.trims_start and _starts_blank(data, dialect):
            raise DataError("a CSV line begins with a blank field, on which Spark's parser fails.")
        width = _width(data, dialect)
        if width > _MAX_COLUMNS:
            raise DataError(f"a CSV line has {width} fields.")
        if width != self._width and not self._takes_other_widths():
            raise DataError(f"a CSV line has {width} fields instead of {self._width}.")
        if width == 1 and not dialect.multi_line:
            data = lines.without_blank_lines(data)
        wanted = sorted({place for place in self._places if place is not None and place < width})
        names = [str(place) for place in wanted or [0]]
        null_is_empty = dialect.null_value == dialect.empty_value
        if not data.endswith(b"\n"):
            # Arrow takes an empty field at the end of its input for a quoted one, if the field before it is.
            data += b"\n"
        return arrow_csv.read_csv(
            pa.BufferReader(data),
            arrow_csv.ReadOptions(
                use_threads=False,
                block_size=len(data) + 1,
                column_names=[str(place) for place in range(width)],
            ),
            arrow_csv.ParseOptions(
                delimiter=dialect.separator,
                quote_char=dialect.quote if quoted else False,
                double_quote=dialect.escape == dialect.quote,
                escape_char=False,
                newlines_in_values=dialect.multi_line,
            ),
            arrow_csv.ConvertOptions(
                include_columns=names,
                column_types=dict.fromkeys(names, pa.string()),
                strings_can_be_null=True,
                # An empty field without quotes is NULL, whatever the value that stands for NULL.
                null_values=["", dialect.null_value] if null_is_empty else [""],
                quoted_strings_can_be_null=null_is_empty,
            ),
        )

    def _takes_other_widths(self) -> bool:
        """Whether Spark fills up or cuts off the fields of a line without more ado: not if it must record the line."""
        return self.dialect.permissive and not any(map(self._is_corrupt_column, self._request.columns))

    def _is_corrupt_column(self, column: Attribute) -> bool:
        return column.name == self.dialect.corrupt_column

    def _columns(self, table: pa.Table) -> pa.RecordBatch:
        arrays = [
            self._column(table, place, column)
            for place, column in zip(self._places, self._request.columns, strict=True)
        ]
        return batch_by_position(arrays, table.num_rows)

    def _column(self, table: pa.Table, place: int | None, column: Attribute) -> pa.Array:
        dialect = self.dialect
        if place is None and not self._is_corrupt_column(column):
            raise DataError(f"the table has no column {column.name}.")
        if place is None or str(place) not in table.column_names:
            return convert_text(pa.nulls(table.num_rows, pa.string()), column.type)
        found = table.column(str(place))
        texts = found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()
        if dialect.trims:
            texts = _trimmed(texts, dialect)
        if dialect.null_value != dialect.empty_value or dialect.trims:
            if dialect.empty_value:
                texts = pc.if_else(pc.equal(texts, ""), dialect.empty_value, texts)
            texts = pc.if_else(pc.equal(texts, dialect.null_value), None, texts)
        return convert_text(texts, column.type, dialect.times)


def _trimmed(texts: pa.Array, dialect: Dialect) -> pa.Array:
    """The fields without white space at their ends. Quoted ones have none; of others nothing is left but NULL."""
    if not pc.any(pc.match_substring_regex(texts, r"^[\x01-\x20]|[\x01-\x20]$")).as_py():
        return texts
    if dialect.trims_start:
        texts = pc.ascii_ltrim(texts, _WHITE_SPACE)
    if dialect.trims_end:
        texts = pc.ascii_rtrim(texts, _WHITE_SPACE)
    return pc.if_else(pc.equal(texts, ""), None, texts)


def _starts_blank(data: bytes, dialect: Dialect) -> bool:
    """Whether the first field of a line is nothing but white space. A blank line is no field."""
    separator = re.escape(dialect.separator.encode())
    return re.search(rb"(?m)^[\x01-\x09\x0b-\x20]+" + separator, data) is not None


def _has_outer_space(data: bytes, dialect: Dialect) -> bool:
    """Whether white space stands beside a separator, a quote or a line end."""
    characters = np.frombuffer(data, np.uint8)
    ends = np.isin(characters, [ord(dialect.separator), ord(dialect.quote), _LF, _CR])
    space = (characters <= ord(" ")) & ~ends
    beside = np.zeros(len(characters), np.bool_)
    beside[:-1] |= ends[1:]
    beside[1:] |= ends[:-1]
    beside[[0, -1]] = True
    return bool(np.any(space & beside))


def _check_quotes(data: bytes, dialect: Dialect) -> None:
    """Raise DataError unless every quote opens or closes a whole field on its line."""
    if not dialect.escape:
        raise DataError("quotes without an escape character mean what Spark's parser makes of them.")
    characters = np.frombuffer(data, np.uint8)
    quote, separator = ord(dialect.quote), ord(dialect.separator)
    quotes = np.flatnonzero(characters == quote)
    opening, closing = quotes[0::2], quotes[1::2]
    if len(opening) > len(closing):
        raise DataError("a CSV file has a quote that is never closed.")
    before = np.where(opening > 0, characters[opening - 1], _LF)
    after = np.where(closing + 1 < len(data), characters[np.minimum(closing + 1, len(data) - 1)], _LF)
    starts_field = (before == separator) | (before == _LF)
    ends_field = (after == separator) | (after == _LF) | (after == _CR)
    if dialect.escape == dialect.quote:
        # A doubled quote closes the field and opens it again.
        starts_field |= before == quote
        ends_field |= after == quote
    elif dialect.escape.encode() in data and _any_inside(ord(dialect.escape), characters, quotes):
        raise DataError("a CSV file has an escape character inside of quotes.")
    if not (starts_field & ends_field).all():
        raise DataError("a CSV file has a quote inside of a field.")
    # Whether white space is trimmed would depend on the quotes around it.
    if (dialect.trims or not dialect.multi_line) and _any_inside(_LF, characters, quotes):
        raise DataError("a CSV file has a line end inside of quotes.")


def _any_inside(character: int, characters: np.ndarray, quotes: np.ndarray) -> bool:
    """Whether the character occurs after an odd number of quotes."""
    return bool((np.searchsorted(quotes, np.flatnonzero(characters == character)) % 2).any())


def _width(data: bytes, dialect: Dialect) -> int:
    """The number of fields of the first record that is not an empty line."""
    data = data.lstrip(b"\r\n")
    record = records.split_first(data, dialect.quote)[0] if dialect.multi_line else data.partition(b"\n")[0]
    if dialect.quote:
        quote = re.escape(dialect.quote.encode())
        record = re.sub(quote + b"[^" + quote + b"]*" + quote, b"", record)
    return record.count(dialect.separator.encode()) + 1
