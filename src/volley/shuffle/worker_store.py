# SPDX-License-Identifier: Apache-2.0
"""The store of a worker: exchanged data in its memory and on its disks, served to others over Flight.

sink(attempt)  ->  sealed chunks, in memory until the budget is used up, then on disk
read(block)        a block of this process, or of another one on this host:  map or read its open files
                   any other, or if this host does not allow that:           fetch over Flight
serve(ticket)  ->  the blocks that another worker fetches
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from volley.errors import BlockDamaged, BlockMissing
from volley.events import Distance
from volley.fetch_counters import current_fetch_counters
from volley.ids import AttemptId, QueryId
from volley.rpc.codec import decode
from volley.shuffle.active_queries import ActiveQueries
from volley.shuffle.base import Block, BlockRequest
from volley.shuffle.budget import MemoryBudget
from volley.shuffle.chunk_builder import CHUNK_BYTES
from volley.shuffle.chunks import Index, Unsealer, check_totals
from volley.shuffle.config import ShuffleConfig
from volley.shuffle.fetch import Connect, Fetch
from volley.shuffle.frames import SCHEMA, Header, Kind, frame, split_chunk
from volley.shuffle.local_blocks import open_peer
from volley.shuffle.location import Location
from volley.shuffle.worker_sink import WorkerSink


@dataclass(frozen=True)
class Usage:
    """What a query uses now."""

    memory_bytes: int
    spilled_bytes: int


class WorkerStore:
    """The `ShuffleStore` of one worker: up to `memory_limit_bytes` in memory, the rest in `spill_directories`.

    `connect` returns a client of another worker.
    """

    is_blocking = True

    def __init__(
        self,
        location: Location,
        config: ShuffleConfig,
        *,
        memory_limit_bytes: int,
        spill_directories: Sequence[Path],
        connect: Connect[Location],
    ) -> None:
        self.location = location
        self._name = str(location)
        self._config = config
        self._budget = MemoryBudget(memory_limit_bytes)
        self._directories = tuple(spill_directories)
        self._connect = connect
        self._active: ActiveQueries[WorkerSink, Location] = ActiveQueries()

    def configured(self, config: ShuffleConfig) -> WorkerStore:
        """The same store, for those who write and read with other options."""
        view = copy.copy(self)
        view._config = config
        return view

    # -------------------------------------------------------------------------------------------------- writing

    def sink(self, attempt: AttemptId, partitions: int) -> WorkerSink:
        return self._active.open_sink(
            attempt,
            lambda: WorkerSink(
                attempt,
                partitions,
                location=self._name,
                budget=self._budget,
                directories=self._directories,
                disk_codec=self._config.codec,
                spill_threshold=self._config.spill_threshold,
                chunk_bytes=min(CHUNK_BYTES, self._config.max_message_bytes),
                on_abort=self._active.forget_sink,
            ),
        )

    def release(self, query: QueryId) -> None:
        for sink in self._active.end(query):
            sink.close()

    @property
    def held_bytes(self) -> int:
        return sum(sink.memory_bytes + sink.spilled_bytes for sink in self._active.sinks())

    @property
    def memory_bytes(self) -> int:
        """Bytes that count against the memory limit now."""
        return self._budget.held_bytes

    def usage(self, query: QueryId) -> Usage:
        mine = self._active.sinks(query)
        return Usage(sum(sink.memory_bytes for sink in mine), sum(sink.spilled_bytes for sink in mine))

    def close(self) -> None:
        """Free the data of all queries."""
        for query in self._active.queries:
            self.release(query)

    # -------------------------------------------------------------------------------------------------- reading

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        return self.read_many((block,))

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        return self._active.read(blocks, self._remote_holders, self._fetch, self._read_local)

    def _remote_holders(self, block: Block) -> Sequence[Location]:
        return () if self._is_local(block) else (_holder(block),)

    def _fetch(self, holders: Sequence[Location], blocks: Sequence[Block]) -> Fetch[Location]:
        return Fetch(
            holders,
            blocks,
            self._connect,
            codec=self.codec_from(holders[0]),
            budget_bytes=self._config.fetch_budget_bytes,
            retry_policy=self._config.retry,
            max_message_bytes=self._config.max_message_bytes,
        )

    def _is_local(self, block: Block) -> bool:
        """Whether this process can read the files of the block's holder."""
        if block.location == self._name:
            return True
        holder = _holder(block)
        if not (self._config.map_same_host and holder.on_this_host):
            return False
        try:
            _, files = open_peer(block, holder)
        except OSError:
            return False
        _close_all(files)
        return True

    def _read_local(self, block: Block) -> Iterator[pa.RecordBatch]:
        counters = current_fetch_counters()
        distance = Distance.LOCAL if block.location == self._name else Distance.HOST
        if block.location == self._name:
            _, index, files = self._open_own(block)
        else:
            index, files = self._open_peer(block)
        try:
            check_totals(block, index)
            unsealer = Unsealer(block, index)
            for number in range(len(index.chunks)):
                batch = unsealer.unseal(number, _bytes(block, index, number, files))
                counters.count_data(distance, batch.nbytes, index.chunks[number].size_bytes)
                yield batch
        finally:
            _close_all(files)

    def _open_own(self, block: Block) -> tuple[bytes, Index, list[pa.NativeFile]]:
        sink = self._active.sink(block.attempt)
        if sink is None:
            raise BlockMissing(f"{block} is not on {self._name}.", attempt=block.attempt)
        packed = sink.find_committed(block).index
        index = Index.unpack(packed, block)
        return packed, index, sink.open(index)

    def _open_peer(self, block: Block) -> tuple[Index, list[pa.NativeFile]]:
        holder = _holder(block)
        try:
            return open_peer(block, holder)
        except OSError as error:
            # This process may open the holder's files, so the block itself is gone.
            raise BlockMissing(
                f"{block} is not on {holder.address} any more: {error}.", attempt=block.attempt
            ) from error

    # -------------------------------------------------------------------------------------------------- serving

    def serve(self, ticket: bytes) -> tuple[pa.Schema, Iterator[tuple[pa.RecordBatch, bytes]]]:
        """Answer a `do_get` of another worker. QueryError if the ticket is not a `BlockRequest`."""
        return SCHEMA, self.frames(decode(ticket, BlockRequest))

    def frames(self, request: BlockRequest) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        """Yield the frames that `serve` sends. They are made on demand, so a slow reader costs no memory."""
        number = 0
        try:
            for number, block in enumerate(request.blocks):
                packed, index, files = self._open_own(block)
                try:
                    yield frame(Header(Kind.INDEX, block=number), pa.py_buffer(packed))
                    for chunk in range(0 if number else request.skip_chunks, len(index.chunks)):
                        name = index.files[index.chunks[chunk].file]
                        data = _bytes(block, index, chunk, files)
                        # Chunks on disk were compressed when they were written.
                        codec = request.codec if name.in_memory else "none"
                        limit_bytes = min(request.max_message_bytes, self._config.max_message_bytes)
                        yield from split_chunk(number, chunk, data, codec, limit_bytes)
                finally:
                    _close_all(files)
        except BlockMissing as error:
            kind = Kind.DAMAGED if isinstance(error, BlockDamaged) else Kind.MISSING
            yield frame(Header(kind, block=number), pa.py_buffer(error.message.encode()))

    # -------------------------------------------------------------------------------------------------- helpers

    def codec_from(self, holder: Location) -> str:
        return "none" if self._config.compression == "auto" and holder.on_this_host else self._config.codec


def _close_all(files: Sequence[pa.NativeFile]) -> None:
    """Close the files of a reader. Batches that refer to mapped memory stay valid."""
    for file in files:
        file.close()


def _bytes(block: Block, index: Index, number: int, files: Sequence[pa.NativeFile]) -> pa.Buffer:
    chunk = index.chunks[number]
    file = files[chunk.file]
    try:
        file.seek(chunk.start)
        return file.read_buffer(chunk.size_bytes)
    except (OSError, pa.ArrowException) as error:
        raise BlockDamaged(
            f"{block} on {block.location}: chunk {number} cannot be read: {error}.", attempt=block.attempt
        ) from error


def _holder(block: Block) -> Location:
    try:
        return Location.parse(block.location)
    except ValueError as error:
        raise BlockMissing(f"{block}: {error}.", attempt=block.attempt) from error
