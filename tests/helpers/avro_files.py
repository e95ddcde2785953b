# SPDX-License-Identifier: Apache-2.0
"""Writes Avro files of any schema, also such as no writer makes."""

from __future__ import annotations

import bz2
import json
import lzma
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

MARKER = bytes(range(100, 116))
CODECS = ("null", "deflate", "snappy", "bzip2", "xz", "zstandard")


def avro_file(
    schema: Any,
    blocks: Iterable[Sequence[Any]],
    codec: str = "null",
    metadata: Mapping[str, bytes] | None = None,
) -> bytes:
    """A file with a block for each of `blocks`, which are lists of values."""
    pairs = ((len(block), b"".join(encode(schema, value) for value in block)) for block in blocks)
    return raw_file(schema, pairs, codec, metadata)


def raw_file(
    schema: Any,
    blocks: Iterable[tuple[int, bytes]],
    codec: str = "null",
    metadata: Mapping[str, bytes] | None = None,
) -> bytes:
    """A file of blocks, each with the number of its rows and their bytes."""
    tags = {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec.encode(), **(metadata or {})}
    header = b"Obj\x01" + _map_of(tags) + MARKER
    return header + b"".join(raw_block(count, compress(codec, data)) for count, data in blocks)


def raw_block(count: int, data: bytes, marker: bytes = MARKER) -> bytes:
    return encode_long(count) + encode_bytes(data) + marker


def record(**fields: Any) -> dict[str, Any]:
    """The schema of records with these fields."""
    return {"type": "record", "name": "row", "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def encode_long(number: int) -> bytes:
    rest = ((number << 1) ^ (number >> 63)) % 2**64
    found = b""
    while rest >= 0x80:
        found += bytes([rest & 0x7F | 0x80])
        rest >>= 7
    return found + bytes([rest])


def encode_bytes(data: bytes) -> bytes:
    return encode_long(len(data)) + data


def encode(schema: Any, value: Any) -> bytes:
    """A value in Avro's binary form. Of a union it is a pair: the number of the branch and the value."""
    if isinstance(schema, list):
        return encode_long(value[0]) + encode(schema[value[0]], value[1])
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "record":
            return b"".join(encode(field["type"], value[field["name"]]) for field in schema["fields"])
        case "array":
            items = b"".join(encode(schema["items"], item) for item in value)
            return (encode_long(len(value)) + items if value else b"") + encode_long(0)
        case "map":
            entries = b"".join(
                encode("string", key) + encode(schema["values"], item) for key, item in value.items()
            )
            # With its size, as some writers give it.
            size = encode_long(-len(value)) + encode_long(len(entries)) if value else b""
            return size + entries + encode_long(0)
        case "fixed":
            return bytes(value)
        case _:
            return _SIMPLE[kind](value)


_SIMPLE: dict[str, Callable[[Any], bytes]] = {
    "null": lambda value: b"",
    "boolean": lambda value: bytes([value]),
    "int": encode_long,
    "long": encode_long,
    "enum": encode_long,
    "float": lambda value: struct.pack("<f", value),
    "double": lambda value: struct.pack("<d", value),
    "bytes": encode_bytes,
    "string": lambda value: encode_bytes(value if isinstance(value, bytes) else value.encode()),
}


def compress(codec: str, data: bytes) -> bytes:
    match codec:
        case "deflate":
            packer = zlib.compressobj(wbits=-15)
            return packer.compress(data) + packer.flush()
        case "snappy":
            packed = pa.Codec("snappy").compress(data, asbytes=True)
            return bytes(packed) + zlib.crc32(data).to_bytes(4, "big")
        case "bzip2":
            return bz2.compress(data)
        case "xz":
            return lzma.compress(data)
        case "zstandard":
            return bytes(pa.Codec("zstd").compress(data, asbytes=True))
        case _:
            return data


def _map_of(tags: Mapping[str, bytes]) -> bytes:
    entries = b"".join(encode_bytes(key.encode()) + encode_bytes(value) for key, value in tags.items())
    return encode_long(len(tags)) + entries + encode_long(0)
