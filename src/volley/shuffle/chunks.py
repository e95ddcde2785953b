# SPDX-License-Identifier: Apache-2.0
"""The binary format of blocks: chunks of sealed bytes, and the index that lists them.

    block.checksum  ->  index  ->  chunk, chunk, chunk       each arrow is an xxh3 of the bytes it points to

A chunk is one Arrow IPC record batch; it is stored, mapped and sent as the same bytes. The index lists the chunks of
a block, the files that hold them and their schema. A reader therefore needs only the name of a block to verify every
batch before using it.
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
# Waste below this is not worth a copy.
_SMALL_BYTES = 4096


@dataclass(frozen=True)
class Chunk:
    """One sealed batch: `size_bytes` from `start` on, in file number `file` of its block."""

    file: int
    start: int
    size_bytes: int
    rows: int
    checksum: int


@dataclass(frozen=True)
class Index:
    """The files and chunks of one block, in order. `schema` is None if nothing was written."""

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
        """Parse the index of `block`. Raises BlockDamaged if the bytes do not match the block's checksum."""
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
    """A batch as bytes. Its buffers begin at `body_at`, which should be placed at an aligned address."""

    data: pa.Buffer
    body_at: int
    checksum: int


def seal(batch: pa.RecordBatch, codec: str) -> Sealed:
    order = _stored_order(batch.schema)
    stored = batch if order is None else batch.select(order)
    data = stored.serialize() if codec == "none" else _compress(stored, codec)
    return Sealed(data, _metadata_end(data), checksum_of(data))


def _compress(batch: pa.RecordBatch, codec: str) -> pa.Buffer:
    """Serialize with compression, which `serialize` does not offer: write a stream, cut off its schema and end mark."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue()
    start = _metadata_end(stream)
    return stream.slice(start, stream.size - start - _END_MARK_BYTES)


def _metadata_end(message: pa.Buffer) -> int:
    """The offset of the body of the first message. It follows a marker, a length and that much metadata."""
    (metadata_bytes,) = struct.unpack_from("<i", message, 4)
    return 8 + int(metadata_bytes)


class Unsealer:
    """Turns the chunks of a block back into batches."""

    def __init__(self, block: Block, index: Index) -> None:
        self._block = block
        self._index = index
        self._schema = schema = index.schema or pa.schema([])
        order = _stored_order(schema)
        self._stored = schema if order is None else pa.schema([schema.field(i) for i in order])
        self._back = None if order is None else [order.index(i) for i in range(len(order))]

    def unseal(self, number: int, data: pa.Buffer) -> pa.RecordBatch:
        """Read chunk `number` from its bytes. Raises BlockDamaged if they do not match its checksum."""
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
    """Copy a batch if its buffers hold many bytes of other rows; otherwise return it as it is."""
    batch = compact_views(batch)
    if batch.get_total_buffer_size() <= 2 * batch.nbytes + _SMALL_BYTES:
        return batch
    return pa.concat_batches([batch])


_PLAIN = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def compact_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy view columns so that they refer to their own bytes only. IPC writes all the bytes they refer to."""
    if not any(column.type in _PLAIN for column in batch.columns):
        return batch
    columns = [
        column.cast(_PLAIN[column.type]).cast(column.type) if column.type in _PLAIN else column
        for column in batch.columns
    ]
    return make_batch(columns, batch.schema, batch.num_rows)


def _stored_order(schema: pa.Schema) -> list[int] | None:
    """The order of columns that puts 16-byte values first; None if they are first already.

    IPC aligns buffers to 8 bytes only, but the engine copies 16-byte values that are not aligned to 16. Stored before
    all other columns they are.
    """
    order = sorted(range(len(schema)), key=lambda i: not _is_wide(schema.field(i).type))
    return None if order == list(range(len(schema))) else order


def _is_wide(type_: pa.DataType) -> bool:
    return bool(pa.types.is_decimal128(type_))
