# SPDX-License-Identifier: Apache-2.0
"""The output of one attempt: chunks of rows by partition, and the marker that makes them readable."""

from __future__ import annotations

import json
import secrets
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
import xxhash

from volley.errors import BlockDamaged, BlockMissing, QueryError, ShuffleRefused
from volley.ids import AttemptId
from volley.shuffle import Block
from volley_valkey.server import Server

_CHECKSUM = struct.Struct("<Q")
_CHUNK_BYTES = 2**20
_WAITING_BYTES = 32 * 2**20


@dataclass
class _Partition:
    rows: int = 0
    size_bytes: int = 0
    chunks: int = 0
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0


class ValkeySink:
    """A `ShuffleSink`. Rows wait until they are worth a call, but at most `waiting_bytes` of them."""

    def __init__(
        self,
        attempt: AttemptId,
        partitions: int,
        server: Server,
        codec: str,
        waiting_bytes: int,
        on_abort: Callable[[AttemptId], None],
    ) -> None:
        self._attempt = attempt
        self._server = server
        self._options = pa.ipc.IpcWriteOptions(compression=None if codec == "none" else codec)
        self._waiting_limit_bytes = min(_WAITING_BYTES, max(_CHUNK_BYTES, waiting_bytes))
        self._on_abort = on_abort
        # Rivals may write the same attempt: a worker that is only thought to be lost, and its successor.
        self._name = secrets.token_hex(8)
        self._partitions = [_Partition() for _ in range(partitions)]
        self._written: list[str] = []
        self._lock = threading.Lock()
        self._is_open = True
        self._is_committed = False
        self.held_bytes = 0

    def write(self, partition: int, batch: pa.RecordBatch) -> None:
        with self._lock:
            self._check_open()
            mine = self._partitions[partition]
            mine.waiting.append(batch)
            mine.rows += batch.num_rows
            mine.size_bytes += batch.nbytes
            mine.waiting_bytes += batch.nbytes
            self.held_bytes += batch.nbytes
            if mine.waiting_bytes >= _CHUNK_BYTES:
                self._flush(partition)
            elif sum(other.waiting_bytes for other in self._partitions) >= self._waiting_limit_bytes:
                for number in range(len(self._partitions)):
                    self._flush(number)

    def commit(self) -> tuple[Block, ...]:
        with self._lock:
            self._check_open()
            for number in range(len(self._partitions)):
                self._flush(number)
            marker = json.dumps([self._name, [[part.rows, part.chunks] for part in self._partitions]])
            if not self._server.put_once(self._attempt.query, str(self._attempt), marker.encode()):
                raise ShuffleRefused(
                    "SHUFFLE_COMMIT_LOST", f"{self._attempt} was committed by another process."
                )
            self._is_open, self._is_committed = False, True
            return tuple(
                Block(
                    self._attempt,
                    number,
                    self._server.url,
                    part.rows,
                    part.size_bytes,
                    handle=self._name,
                    outlives_worker=True,
                )
                for number, part in enumerate(self._partitions)
            )

    def abort(self) -> None:
        with self._lock:
            if not self._is_open:
                return
            self.stop()
            self.held_bytes = 0
            # The release of the query removes the rest.
            with suppress(QueryError):
                self._server.remove(self._attempt.query, self._written)
        self._on_abort(self._attempt)

    def stop(self) -> None:
        """Refuse further writes: the query is over. May be called while another thread writes."""
        self._is_open = False

    def _check_open(self) -> None:
        if not self._is_open:
            raise BlockMissing(f"{self._attempt}: its output is closed.", attempt=self._attempt)

    def _flush(self, number: int) -> None:
        mine = self._partitions[number]
        if not mine.waiting:
            return
        field = chunk_field(self._attempt, self._name, number, mine.chunks)
        self._server.put(self._attempt.query, field, _seal(mine.waiting, self._options))
        self._written.append(field)
        mine.chunks += 1
        mine.waiting, mine.waiting_bytes = [], 0


def chunk_field(attempt: AttemptId, name: str, partition: int, chunk: int) -> str:
    return f"{attempt}/{name}/{partition}/{chunk}"


def read_marker(value: bytes | None, block: Block) -> int:
    """The number of chunks of a block. Raises BlockMissing unless exactly this block was committed."""
    name, partitions = json.loads(value) if value else ("", [])
    if name != block.handle or block.partition >= len(partitions):
        raise BlockMissing(f"{block} is not on {block.location}.", attempt=block.attempt)
    rows, chunks = partitions[block.partition]
    if rows != block.rows:
        raise BlockMissing(f"{block} has {rows} rows instead of {block.rows}.", attempt=block.attempt)
    return int(chunks)


def unseal(value: bytes | None, block: Block) -> list[pa.RecordBatch]:
    """The batches of a chunk. Raises BlockMissing if it is gone, and BlockDamaged if its bytes have changed."""
    if value is None:
        raise BlockMissing(f"{block} is not on {block.location} any more.", attempt=block.attempt)
    body = memoryview(value)[_CHECKSUM.size :]
    if len(value) < _CHECKSUM.size or _CHECKSUM.unpack_from(value)[0] != xxhash.xxh3_64_intdigest(body):
        raise BlockDamaged(f"{block} on {block.location} is not what was written.", attempt=block.attempt)
    return list(pa.ipc.open_stream(pa.py_buffer(body)))


def _seal(batches: list[pa.RecordBatch], options: pa.ipc.IpcWriteOptions) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    body: bytes = sink.getvalue().to_pybytes()
    return _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)) + body
