# SPDX-License-Identifier: Apache-2.0
"""Reads a CSV file in blocks of whole records, in which quoted fields may contain line ends.

    a,"1          A line end ends a record if an even number of quotes is before it. So a file is read from its start,
    2",b          by one task. That quotes open and close whole fields is for the parser to check, block by block.
    c,3,d

Spark's parser finds out from the start of a file how its lines end, and gives a line end in a field as LF if it is one
of these. A file in which lines end in several ways is refused, and Spark runs the query.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from volley.errors import DataError
from volley.formats import lines
from volley.plan.nodes import DataFile

# A quote that is never closed would make one record of the rest of the file.
_LONGEST_RECORD_BYTES = 64 * 2**20
# As they are in ISO-8859-1. Spark's parser then reads the file in the encoding of the mark.
_MARKS = tuple(mark.decode("latin-1").encode() for mark in (b"\xef\xbb\xbf", b"\xfe\xff", b"\xff\xfe"))
_LF = 10


def read_records(
    file: DataFile, quote: str, form: lines.TextForm, *, block_bytes: int = lines.BLOCK_BYTES
) -> Iterator[bytes]:
    """Yield the records of a file in order, as UTF-8, with LF as line end. No field is quoted if `quote` is empty."""
    blocks = lines.read_blocks(file, 0, 1, form, skips_mark=not form.encoding, block_bytes=block_bytes)
    held = b""
    for block in _with_equal_ends(file, blocks):
        held += block
        ends = _record_ends(held, quote)
        if len(ends):
            yield held[: ends[-1]]
            held = held[ends[-1] :]
        elif len(held) > _LONGEST_RECORD_BYTES:
            raise DataError(f"{file.path} has a record of more than {_LONGEST_RECORD_BYTES} bytes.")
    if held:
        yield held


def split_first(data: bytes, quote: str) -> tuple[bytes, bytes]:
    """The first record, with its line end, and what follows it."""
    ends = _record_ends(data, quote)
    cut = int(ends[0]) if len(ends) else len(data)
    return data[:cut], data[cut:]


def _with_equal_ends(file: DataFile, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks with LF in place of CR LF. DataError if not all lines of the file end in the same way."""
    ends_in_cr: bool | None = None
    for number, block in enumerate(blocks):
        if number == 0 and block.startswith(_MARKS):
            raise DataError(f"{file.path} begins with a byte order mark, which is not that of its encoding.")
        line_ends, with_cr = block.count(b"\n"), block.count(b"\r\n")
        if line_ends:
            if with_cr not in (0, line_ends) or ends_in_cr not in (None, with_cr > 0):
                raise DataError(f"{file.path} has line ends of several kinds.")
            ends_in_cr = with_cr > 0
        yield block.replace(b"\r\n", b"\n") if with_cr else block


def _record_ends(data: bytes, quote: str) -> np.ndarray:
    """Where records end: after each line end that is not within quotes."""
    characters = np.frombuffer(data, np.uint8)
    line_ends = np.flatnonzero(characters == _LF)
    if quote and quote.encode() in data:
        quotes = np.flatnonzero(characters == ord(quote))
        line_ends = line_ends[np.searchsorted(quotes, line_ends) % 2 == 0]
    return line_ends + 1
