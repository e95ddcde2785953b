# SPDX-License-Identifier: Apache-2.0
"""Reads a part of a text file in blocks of whole lines, as Hadoop's readers of lines cut it.

    part 0 of 2       part 1 of 2      A line belongs to the part in which it begins, so the reader of a part skips to
    a,1  b,2  c,|3    d,4  e,5         the first line end, and reads past the end of its part.

A line ends with LF or CR LF. Hadoop also ends one at a lone CR: a block that has such is refused, and Spark runs the
query. So is one with a NUL, which the parsers of Spark treat in their own ways.
"""

from __future__ import annotations

import bz2
import gzip
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from volley.errors import DataError
from volley.formats.file_source import ConfirmedStream, check_size, open_source
from volley.plan.nodes import DataFile
from volley.spark_versions.registry import current

BLOCK_BYTES = 4 * 2**20

WHITE_SPACE = bytes(range(33))
"""What Java's String.trim removes."""

_LF, _SPACE = 10, 32
_BOM = b"\xef\xbb\xbf"
# By suffix, as Hadoop chooses its codecs.
_OPENERS: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".zst": lambda source: pa.input_stream(source, compression="zstd"),
}
_ONLY_SPARK = (".deflate", ".snappy", ".lz4", ".passthrough")
# Lines of nothing but characters that Java's String.trim removes.
_BLANK_LINE = re.compile(rb"^[\x01-\x09\x0b\x0c\x0e-\x20]+\r?(?:\n|\Z)", re.MULTILINE)


def can_split(file: DataFile) -> bool:
    return Path(file.path).suffix not in _OPENERS


def unreadable(file: DataFile) -> str | None:
    """Why only Spark reads the file, by its suffix."""
    suffix = Path(file.path).suffix
    if suffix == ".zst" and not current().reads_zstd_text:
        return "files compressed as zstd, which depend on libraries of the system"
    known = suffix.lower() in _ONLY_SPARK or (suffix.lower() in _OPENERS and suffix not in _OPENERS)
    return f"files compressed as {suffix}" if known else None


@dataclass(frozen=True)
class TextForm:
    """How lines end, and how characters are encoded.

    `cr_ends_lines` is false if the user set LF as the only line end. `encoding` is Python's name of one that has a byte
    for each character; empty for UTF-8.
    """

    cr_ends_lines: bool = True
    encoding: str = ""

    @staticmethod
    def of(options: Mapping[str, str]) -> TextForm:
        """The form that read options name, whose keys are in lower case."""
        encoding = options.get("encoding", options.get("charset", "UTF-8")).lower()
        return TextForm("linesep" not in options, "" if encoding == "utf-8" else encoding)


def read_blocks(
    file: DataFile,
    part: int,
    parts: int,
    form: TextForm,
    *,
    skips_mark: bool = True,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[bytes]:
    """Yield the lines of a part in order, as UTF-8. `skips_mark`: its mark at the start of a file is no text."""
    try:
        with _open(file) as opened:
            start, end = (file.size_bytes * number // parts for number in (part, part + 1))
            if not can_split(file):
                start, end = 0, sys.maxsize
            for block in _cut(opened, start, end, block_bytes, _BOM if skips_mark else b""):
                _refuse_doubtful(file, block, form.cr_ends_lines)
                yield block.decode(form.encoding).encode() if form.encoding else block
    except UnicodeDecodeError as error:
        raise DataError(f"{file.path} has characters that are not {form.encoding}.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file.path} cannot be read: {error}") from error


@contextmanager
def _open(file: DataFile) -> Iterator[Any]:
    opener = _OPENERS.get(Path(file.path).suffix)
    if file.store:
        with open_source(file) as source:
            stream = ConfirmedStream(source)
            yield opener(stream) if opener else stream
        return
    check_size(file)
    with opener(file.path) if opener else Path(file.path).open("rb", buffering=0) as opened:
        yield opened


def _cut(opened: Any, start: int, end: int, block_bytes: int, mark: bytes) -> Iterator[bytes]:
    """The lines that begin in [start, end), without the mark at the start of the file."""
    is_first = start == 0
    position = start
    held = b""
    if start:
        # The line that starts here, if one does, is found by the line end before it.
        opened.seek(start - 1)
        position = start - 1
        while (cut := held.find(b"\n")) < 0:
            position += len(held)
            held = opened.read(block_bytes)
            if not held:
                return
        position += cut + 1
        held = held[cut + 1 :]
    # `held` begins at `position`, where a line begins.
    pieces = [held]
    held_bytes = len(held)
    while position < end:
        data = opened.read(block_bytes)
        pieces.append(data)
        held_bytes += len(data)
        last = position + held_bytes >= end or not data
        if not last and b"\n" not in data:
            # A line longer than a block.
            continue
        held = b"".join(pieces)
        # Up to the last line end, or to the end of the line that reaches beyond the part.
        cut = (held.find(b"\n", max(0, end - position - 1)) if last else held.rfind(b"\n")) + 1
        if not cut and data:
            # That line end is yet to be read.
            pieces, held_bytes = [held], len(held)
            continue
        cut = cut or len(held)
        block = held[:cut].removeprefix(mark) if is_first else held[:cut]
        if block:
            yield block
        is_first = False
        position += cut
        pieces, held_bytes = [held[cut:]], len(held) - cut
        if not data:
            return


def _refuse_doubtful(file: DataFile, data: bytes, cr_ends_lines: bool) -> None:
    if b"\0" in data:
        raise DataError(f"{file.path} has a NUL character.")
    if b"\r" in data and (not cr_ends_lines or data.count(b"\r") != data.count(b"\r\n")):
        raise DataError(f"{file.path} has a carriage return inside of a line.")


def refuse_mark(data: bytes) -> None:
    """Raise DataError if the text begins with a byte order mark: Arrow would drop it, wherever in a file that is."""
    if data.startswith(_BOM):
        raise DataError("a line begins with a byte order mark.")


def count_filled(data: bytes) -> int:
    """The number of lines that have more than white space."""
    characters = np.frombuffer(data, np.uint8)
    starts = np.concatenate(([0], np.flatnonzero(characters == _LF) + 1))
    starts = starts[starts < len(data)]
    certain = characters[starts] > _SPACE
    doubtful = (data[start : data.find(b"\n", start) % (len(data) + 1)] for start in starts[~certain])
    return int(certain.sum()) + sum(bool(line.strip(WHITE_SPACE)) for line in doubtful)


def without_blank_lines(data: bytes) -> bytes:
    """The block without lines of white space, which Spark skips. Parsers skip empty lines: those may stay."""
    return _BLANK_LINE.sub(b"", data) if _BLANK_LINE.search(data) else data
