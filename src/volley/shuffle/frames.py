# SPDX-License-Identifier: Apache-2.0
"""The wire format of blocks on a Flight stream. The holder writes frames, the reader parses them.

    per block   INDEX   its bytes
                PART    a chunk or a part of one, compressed or not;  the last part of a chunk is marked
    on failure  MISSING, DAMAGED    the reason, as text; the stream ends

A frame is a record batch of one binary value, whose bytes are never copied, with a small header as its metadata. Block
failures travel in the stream so that they are not mistaken for connection failures.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import pyarrow as pa

from volley.batches import make_batch

SCHEMA = pa.schema([pa.field("data", pa.binary(), nullable=False)])
_HEADER = struct.Struct("<B?IIQ8s")


class Kind(IntEnum):
    INDEX = 0
    PART = 1
    MISSING = 2
    DAMAGED = 3


@dataclass(frozen=True)
class Header:
    """`size_bytes` is the uncompressed size of the whole chunk."""

    kind: Kind
    last: bool = True
    block: int = 0
    chunk: int = 0
    size_bytes: int = 0
    codec: str = "none"

    def pack(self) -> bytes:
        return _HEADER.pack(
            self.kind, self.last, self.block, self.chunk, self.size_bytes, self.codec.encode("ascii")
        )

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        kind, last, block, chunk, size_bytes, codec = _HEADER.unpack(data)
        return cls(Kind(kind), last, block, chunk, size_bytes, codec.rstrip(b"\0").decode("ascii"))


def frame(header: Header, data: pa.Buffer) -> tuple[pa.RecordBatch, bytes]:
    ends = pa.py_buffer(struct.pack("<ii", 0, data.size))
    value = pa.Array.from_buffers(pa.binary(), 1, [None, ends, data])
    return make_batch([value], SCHEMA, 1), header.pack()


def split_chunk(
    block: int, chunk: int, data: pa.Buffer, codec: str, limit_bytes: int
) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """Yield a chunk as frames of at most `limit_bytes`."""
    sent = data if codec == "none" else pa.Codec(codec).compress(data)
    for start in range(0, sent.size, limit_bytes):
        part = sent.slice(start, min(limit_bytes, sent.size - start))
        last = start + part.size == sent.size
        yield frame(Header(Kind.PART, last, block, chunk, data.size, codec), part)


def unframe(batch: pa.RecordBatch, header: pa.Buffer) -> tuple[Header, pa.Buffer]:
    return Header.unpack(header.to_pybytes()), batch.column(0)[0].as_buffer()
