# SPDX-License-Identifier: Apache-2.0
"""The store of a worker: its own blocks in memory, those of other workers through their sockets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from volley.errors import BlockMissing
from volley.ids import AttemptId, QueryId
from volley.shuffle import Block, ShuffleSink
from volley.shuffle.memory import MemoryStore
from volley.transport import encode
from volley_unix.wire import Kind, connect, read_batch, read_schema

STALL_SECONDS = 60.0


class SocketStore:
    """A `ShuffleStore` of the worker that listens at `path`."""

    is_blocking = False

    def __init__(self, path: str) -> None:
        self._path = path
        self._own = MemoryStore(path)

    def sink(self, attempt: AttemptId, partitions: int) -> ShuffleSink:
        return self._own.sink(attempt, partitions)

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        return self._own.read(block) if block.location == self._path else fetch(block)

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        for block in blocks:
            yield from self.read(block)

    def release(self, query: QueryId) -> None:
        self._own.release(query)

    @property
    def held_bytes(self) -> int:
        return self._own.held_bytes


def fetch(block: Block) -> Iterator[pa.RecordBatch]:
    """The batches of a block, from the worker that holds it. Raises BlockMissing if it cannot be read."""
    rows = 0
    try:
        with connect(block.location, STALL_SECONDS) as channel:
            channel.send(Kind.READ, encode(block))
            schema = pa.schema([])
            while True:
                match channel.receive():
                    case Kind.SCHEMA, body:
                        schema = read_schema(body)
                    case Kind.BATCH, body:
                        batch = read_batch(body, schema)
                        rows += batch.num_rows
                        yield batch
                    case Kind.REFUSED, body:
                        raise BlockMissing(body.decode(), attempt=block.attempt)
                    case _:
                        break
    except OSError as error:
        raise BlockMissing(f"{block} on {block.location}: {error}.", attempt=block.attempt) from error
    if rows != block.rows:
        raise BlockMissing(f"{block} has {rows} rows instead of {block.rows}.", attempt=block.attempt)
