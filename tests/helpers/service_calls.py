# SPDX-License-Identifier: Apache-2.0
"""Calls to a shuffle server, and what they are to find, as the tests of the service need them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.rpc.shuffle_messages import CommitAttempt, CommittedBlock, KeepAlive, PushChunks, PushedChunk
from volley.shuffle.base import Block, BlockRequest
from volley.shuffle.chunks import Chunk, Index, checksum_of, seal
from volley.shuffle.frames import Kind, unframe
from volley.shuffle.service.ledger import Refusal
from volley.shuffle.service.location import ServiceLocation
from volley.shuffle.service.server_state import ShuffleServerSettings, ShuffleServerState
from volley.shuffle.service.store import ServiceStore
from volley.testing.contracts import attempt_id, batch_of
from volley.testing.services import Served

# Several chunks, which lz4 cannot make much smaller.
MANY = 1_500_000
QUERY = QueryId("q")


def numbers(count: int = MANY) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.arange(0, count)})


def written(store: ServiceStore, batch: pa.RecordBatch, task: int = 0, attempt: int = 0) -> Block:
    sink = store.sink(attempt_id(task, attempt), 1)
    sink.write(0, batch)
    (block,) = sink.commit()
    return block


def values(store: ServiceStore, *blocks: Block) -> list[int]:
    return [value for batch in store.read_many(blocks) for value in batch.column(0).to_pylist()]


def holders(block: Block) -> tuple[str, ...]:
    return ServiceLocation.parse(block.location).addresses


class Calls:
    """Every call of an attempt, made directly to a keeper."""

    def __init__(
        self, server_state: ShuffleServerState, attempt: AttemptId, value: int = 1, rows: int = 1
    ) -> None:
        self.server_state = server_state
        self.attempt = attempt
        batch = batch_of(*[value] * rows)
        self.data = seal(batch, "none")
        chunk = Chunk(0, 0, self.data.data.size, rows, self.data.checksum)
        self.index = Index((), (chunk,), batch.schema).pack()
        self.block = Block(attempt, 0, "", rows, 8 * rows, checksum_of(self.index))
        self._commit = CommitAttempt(attempt, (CommittedBlock(0, self.index),))

    def reserve(self) -> None:
        assert self.server_state.reserve(self.attempt, self.data.data.size)

    def push(self, sequence: int = 0) -> None:
        chunk = PushedChunk(0, sequence, self.data.data.size, self.data.checksum)
        self.server_state.push(PushChunks(self.attempt, (chunk,)), self.data.data)

    def commit(self) -> None:
        self.server_state.commit(self._commit)

    def all(self) -> None:
        self.reserve()
        self.push()
        self.commit()

    def read(self) -> str:
        """The kind of the first frame, and what it says when it is an error."""
        batch, header = next(self.server_state.frames(BlockRequest((self.block,))))
        kind, data = unframe(batch, pa.py_buffer(header))
        return "" if kind.kind is Kind.INDEX else data.to_pybytes().decode()


@contextmanager
def open_keeper(directory: Path) -> Iterator[ShuffleServerState]:
    """In which the query has begun."""
    found = ShuffleServerState("keeper", ShuffleServerSettings((directory,), 2**26))
    found.keep_alive(KeepAlive("application", (QUERY,)))
    try:
        yield found
    finally:
        found.close()


def of_epoch(epoch: int, attempt: int = 0) -> AttemptId:
    return AttemptId(TaskId(StageId(QUERY, 0, epoch), 0), attempt)


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(Refusal) as caught:
        call()
    return caught.value.code


def kept_value(server_state: ShuffleServerState, calls: Calls) -> int:
    frames = list(server_state.frames(BlockRequest((calls.block,))))
    (_, index), (_, data) = (unframe(batch, pa.py_buffer(header)) for batch, header in frames)
    schema = Index.unpack(index, calls.block).schema
    return int(pa.ipc.read_record_batch(data, schema).column(0)[0].as_py())


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def logs(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.log"))


def drop_memory(server: Served) -> None:
    """As under pressure: what is in a file is no longer in memory."""
    pressing = AttemptId(TaskId(StageId(QUERY, 1000), 0), 0)
    assert server.server_state.reserve(pressing, server.server_state.health().memory_limit_bytes)
    server.server_state.abort(pressing)
