# SPDX-License-Identifier: Apache-2.0
"""Batches as sealed bytes, and the index that a block's checksum stands for.

    block.checksum  ->  index  ->  chunk, chunk, chunk       each arrow is an xxh3 of the bytes it points to

A chunk is one Arrow IPC record batch; it is stored, mapped and sent as the same bytes. The index lists the chunks of
a block, the files they lie in and their schema. Whoever has the block's name can therefore tell for every single
batch, before it is used, whether it is what was written.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import xxhash

from volley.batches import make_batch
from volley.errors import BlockDamaged
from volley.shuffle.base import Block
from volley.shuffle.segments import SegmentName

_HEADER = struct.Struct("<4sIII")
_FILE = struct.Struct("<QQQ?")
_CHUNK = struct.Struct("<IQQQQ")
_MAGIC = b"VIX1"
_END_MARK_BYTES = 8
# Not worth a copy.
_SMALL_BYTES = 4096


@dataclass(frozen=True)
class Chunk:
    """One sealed batch: the bytes from `start` in file number `file` of its block."""

    file: int
    start: int
    size_bytes: int
    rows: int
    checksum: int


@dataclass(frozen=True)
class Index:
    """All of one block, in order. `schema` is None when nothing was ever written."""

    files: tuple[SegmentName, ...]
    chunks: tuple[Chunk, ...]
    schema: pa.Schema | None

    def pack(self) -> bytes:
        schema = self.schema.serialize().to_pybytes() if self.schema is not None else b""
        header = _HEADER.pack(_MAGIC, len(self.files), len(self.chunks), len(schema))
        files = (_FILE.pack(name.descriptor, name.device, name.inode, name.in_memory) for name in self.files)
        chunks = (
            _CHUNK.pack(chunk.file, chunk.start, chunk.size_bytes, chunk.rows, chunk.checksum)
            for chunk in self.chunks
        )
        return b"".join(chain([header], files, chunks, [schema]))

    @classmethod
    def unpack(cls, data: pa.Buffer | bytes, block: Block) -> Index:
        """The index of `block`, which is damaged when these bytes are not what its checksum says."""
        if checksum_of(data) != block.checksum:
            raise BlockDamaged(
                f"the index of {block} on {block.location} is not what was written.", attempt=block.attempt
            )
        view = memoryview(data)
        _, files, chunks, _ = _HEADER.unpack_from(view)
        chunks_at = _HEADER.size + files * _FILE.size
        schema_at = chunks_at + chunks * _CHUNK.size
        schema = view[schema_at:]
        return cls(
            tuple(SegmentName(*fields) for fields in _FILE.iter_unpack(view[_HEADER.size : chunks_at])),
            tuple(Chunk(*fields) for fields in _CHUNK.iter_unpack(view[chunks_at:schema_at])),
            pa.ipc.read_schema(pa.py_buffer(schema)) if schema else None,
        )


def checksum_of(data: pa.Buffer | bytes) -> int:
    return xxhash.xxh3_64_intdigest(data)


@dataclass(frozen=True)
class Sealed:
    """A batch as bytes. Byte `body_at` wants to lie on an aligned address: its buffers begin there."""

    data: pa.Buffer
    body_at: int
    checksum: int


def seal(batch: pa.RecordBatch, codec: str) -> Sealed:
    order = _stored_order(batch.schema)
    stored = batch if order is None else batch.select(order)
    data = stored.serialize() if codec == "none" else _packed(stored, codec)
    return Sealed(data, _metadata_end(data), checksum_of(data))


def _packed(batch: pa.RecordBatch, codec: str) -> pa.Buffer:
    """As `serialize`, which cannot pack: a stream of schema, batch and end mark, without the first and the last."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue()
    start = _metadata_end(stream)
    return stream.slice(start, stream.size - start - _END_MARK_BYTES)


def _metadata_end(message: pa.Buffer) -> int:
    """Where the body of the first message begins: after a mark, a length, and that much metadata."""
    (metadata_bytes,) = struct.unpack_from("<i", message, 4)
    return 8 + int(metadata_bytes)


class Unsealer:
    """Makes batches of a block's chunks again."""

    def __init__(self, block: Block, index: Index) -> None:
        self._block = block
        self._index = index
        self._schema = schema = index.schema or pa.schema([])
        order = _stored_order(schema)
        self._stored = schema if order is None else pa.schema([schema.field(i) for i in order])
        self._back = None if order is None else [order.index(i) for i in range(len(order))]

    def unseal(self, number: int, data: pa.Buffer) -> pa.RecordBatch:
        """Chunk `number`, out of its bytes; BlockDamaged when they are not what was written."""
        chunk = self._index.chunks[number]
        if data.size != chunk.size_bytes or checksum_of(data) != chunk.checksum:
            raise BlockDamaged(
                f"{self._block} on {self._block.location}: chunk {number} of {len(self._index.chunks)} is not what was"
                " written.",
                attempt=self._block.attempt,
            )
        batch = pa.ipc.read_record_batch(data, self._stored)
        if self._back is None:
            return batch
        return make_batch([batch.column(i) for i in self._back], self._schema, batch.num_rows)


def check_totals(block: Block, index: Index) -> None:
    rows = sum(chunk.rows for chunk in index.chunks)
    if rows != block.rows:
        raise BlockDamaged(f"{block} has {rows} rows instead of {block.rows}.", attempt=block.attempt)


def compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch without what its buffers hold of other rows; itself when that is little."""
    batch = without_views(batch)
    if batch.get_total_buffer_size() <= 2 * batch.nbytes + _SMALL_BYTES:
        return batch
    return pa.concat_batches([batch])


_PLAIN = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Views that point to nothing but their own bytes: Arrow copies them with all that they could point to."""
    if not any(column.type in _PLAIN for column in batch.columns):
        return batch
    columns = [
        column.cast(_PLAIN[column.type]).cast(column.type) if column.type in _PLAIN else column
        for column in batch.columns
    ]
    return make_batch(columns, batch.schema, batch.num_rows)


def _stored_order(schema: pa.Schema) -> list[int] | None:
    """Columns of 16-byte values first, when there are others before them.

    IPC aligns buffers to 8 bytes only. Behind columns of the same width these fall on multiples of 16, which the
    engine needs to use them where they are; it copies any other.
    """
    order = sorted(range(len(schema)), key=lambda i: not _is_wide(schema.field(i).type))
    return None if order == list(range(len(schema))) else order


def _is_wide(type_: pa.DataType) -> bool:
    return bool(pa.types.is_decimal128(type_))
