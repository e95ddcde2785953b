# SPDX-License-Identifier: Apache-2.0
"""Reads the header of an Avro file, and the blocks of a part of it, as Avro's own reader for Hadoop cuts it.

    header marker | block marker | block marker | block marker
               part 0 of 2      |      part 1 of 2

A block belongs to the part in which the marker before it begins. The marker is random bytes that each file has its own
of. A file in which it is anywhere else, or with anything that its reader would stop at, is refused, and Spark runs the
query: a part of a part would be read by none of two tasks, or by both.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from volley.errors import DataError
from volley.formats.file_source import Source

_MAGIC = b"Obj\x01"
_MARKER_BYTES = 16
_WINDOW_BYTES = 4 * 2**20
_HEADER_BYTES = 64 * 2**10
_LONGEST_NUMBER_BYTES = 10
# More than Snappy's format can make of a byte.
_MOST_TIMES = 128


@dataclass(frozen=True)
class Header:
    """What is before the first block, which begins at `size_bytes`."""

    metadata: Mapping[str, bytes]
    marker: bytes
    size_bytes: int


@dataclass(frozen=True)
class Block:
    """The bytes of `count` rows."""

    count: int
    data: bytes


def read_header(opened: Source) -> Header:
    """The header of a file. Raises DataError if it is none."""
    wanted = _HEADER_BYTES
    while True:
        data = opened.read(0, min(wanted, opened.size_bytes))
        try:
            return _parse_header(data)
        except _Incomplete:
            if len(data) >= opened.size_bytes:
                raise DataError("an Avro file ends within its header.") from None
        wanted *= 16


def read_blocks(opened: Source, header: Header, start: int, end: int) -> Iterator[Block]:
    """Yield the blocks of the part [`start`, `end`) of a file, decompressed."""
    codec = header.metadata.get("avro.codec", b"null").decode("latin-1")
    if codec not in _CODECS:
        raise DataError(f"an Avro file is compressed as {codec}.")
    position = _find_marker(opened, header, start, end)
    if position is None:
        return
    # Where the marker before a block begins.
    held, held_at = b"", position
    while position < end:
        while True:
            try:
                block, after = _cut_block(held, position - held_at, header.marker)
                break
            except _Incomplete:
                held = held[position - held_at :]
                held_at = position
                if position + _MARKER_BYTES == opened.size_bytes:
                    return
                if held_at + len(held) >= opened.size_bytes:
                    raise DataError("an Avro file ends within a block.") from None
                more = opened.read(held_at + len(held), max(_WINDOW_BYTES, len(held)))
                if not more:
                    raise DataError("an Avro file ends before its end.") from None
                held += more
        yield Block(block.count, _CODECS[codec](block.data))
        position = held_at + after


class _Incomplete(Exception):
    """The bytes that were read end within what is parsed."""


def _find_marker(opened: Source, header: Header, start: int, end: int) -> int | None:
    """Where the first marker of a part begins; None if there is none."""
    first = header.size_bytes - _MARKER_BYTES
    if start <= first:
        return first if first < end else None
    for at in range(start, end, _WINDOW_BYTES):
        size_bytes = min(_WINDOW_BYTES, end - at) + _MARKER_BYTES - 1
        place = opened.read(at, size_bytes).find(header.marker)
        if place >= 0:
            return at + place
    return None


def _cut_block(data: bytes, marker_at: int, marker: bytes) -> tuple[Block, int]:
    """The block after a marker, as it is in the file, and where the marker after it begins."""
    count, place = _read_long(data, marker_at + _MARKER_BYTES)
    size_bytes, place = _read_long(data, place)
    # Avro's reader takes an empty block for the end of the file, in some cases.
    if count <= 0 or not 0 <= size_bytes < 2**31:
        raise DataError(f"an Avro file has a block of {count} rows in {size_bytes} bytes.")
    after = place + size_bytes
    if len(data) < after + _MARKER_BYTES:
        raise _Incomplete
    if data.find(marker, marker_at + 1, after + _MARKER_BYTES) != after:
        raise DataError("the marker of an Avro file is not where it should be.")
    return Block(count, data[place:after]), after


def _read_long(data: bytes, place: int) -> tuple[int, int]:
    """A number, and where it ends."""
    number = shift = 0
    for end in range(place, place + _LONGEST_NUMBER_BYTES):
        if end >= len(data):
            raise _Incomplete
        number |= (data[end] & 0x7F) << shift
        shift += 7
        if data[end] < 0x80:
            if number >= 2**64:
                break
            return (number >> 1) ^ -(number & 1), end + 1
    raise DataError("an Avro file has a number that is none.")


def _parse_header(data: bytes) -> Header:
    if not data.startswith(_MAGIC):
        raise DataError("a file is not an Avro file.")
    metadata: dict[str, bytes] = {}
    place = len(_MAGIC)
    while True:
        count, place = _read_long(data, place)
        if count < 0:
            # Followed by their size.
            _, place = _read_long(data, place)
        if not count:
            break
        for _ in range(abs(count)):
            key, place = _read_bytes(data, place)
            value, place = _read_bytes(data, place)
            metadata[key.decode("utf-8", "replace")] = value
    end = place + _MARKER_BYTES
    if len(data) < end:
        raise _Incomplete
    marker = data[place:end]
    if data.find(marker) != place or "avro.sync" in metadata:
        raise DataError("an Avro file has its marker twice in its header.")
    return Header(metadata, marker, end)


def _read_bytes(data: bytes, place: int) -> tuple[bytes, int]:
    size_bytes, place = _read_long(data, place)
    if size_bytes < 0:
        raise DataError("an Avro file has a text of negative length.")
    if len(data) < place + size_bytes:
        raise _Incomplete
    return data[place : place + size_bytes], place + size_bytes


# ------------------------------------------------------------------------------------------------------- compression


def encode_long(number: int) -> bytes:
    """A number as Avro writes it."""
    rest = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while rest >= 0x80:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _inflate(data: bytes) -> bytes:
    return _all_of(zlib.decompressobj(-zlib.MAX_WBITS), data)


def _bunzip(data: bytes) -> bytes:
    return _all_of(bz2.BZ2Decompressor(), data)


def _unxz(data: bytes) -> bytes:
    return _all_of(lzma.LZMADecompressor(lzma.FORMAT_XZ), data)


def _all_of(
    decompressor: zlib._Decompress | bz2.BZ2Decompressor | lzma.LZMADecompressor, data: bytes
) -> bytes:
    """What one stream holds. What follows it, readers ignore or refuse."""
    try:
        found = decompressor.decompress(data)
    except (zlib.error, lzma.LZMAError, OSError, EOFError) as error:
        raise DataError(f"a block of an Avro file cannot be decompressed: {error}") from error
    if not decompressor.eof or decompressor.unused_data:
        raise DataError("a block of an Avro file is not one compressed stream.")
    return found


def _unsnap(data: bytes) -> bytes:
    """Snappy's raw format, followed by a checksum of what it holds."""
    size_bytes = shift = 0
    for byte in data[:5]:
        size_bytes |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if len(data) < 5 or size_bytes > _MOST_TIMES * len(data):
        raise DataError("a block of an Avro file is not compressed by Snappy.")
    found = pa.Codec("snappy").decompress(data[:-4], size_bytes, asbytes=True)
    if zlib.crc32(found).to_bytes(4, "big") != data[-4:]:
        raise DataError("a block of an Avro file does not have its checksum.")
    return bytes(found)


def _unzstd(data: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        return bytes(stream.read())


_CODECS: Mapping[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _inflate,
    "snappy": _unsnap,
    "bzip2": _bunzip,
    "xz": _unxz,
    "zstandard": _unzstd,
}
