# SPDX-License-Identifier: Apache-2.0
"""The store of a worker: exchanged data in its memory and on its disks, served to others over Flight.

sink(attempt)  ->  sealed chunks in memory while the budget lasts, then on disk
read(block)        own block, or of another process on this host:  its open files, mapped or read
                   any other, or where this host does not allow that:  fetched over Flight
serve(ticket)  ->  what another worker fetches
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from volley.errors import BlockDamaged, BlockMissing
from volley.ids import AttemptId, QueryId
from volley.rpc.codec import decode
from volley.shuffle.base import Block, BlockRequest
from volley.shuffle.budget import MemoryBudget
from volley.shuffle.chunk_builder import CHUNK_BYTES
from volley.shuffle.chunks import Index, Unsealer, check_totals
from volley.shuffle.fetch import Connect, Fetch, RetryPolicy
from volley.shuffle.frames import SCHEMA, Header, Kind, frame, parts
from volley.shuffle.local_blocks import open_peer
from volley.shuffle.location import Location
from volley.shuffle.released import Released
from volley.shuffle.worker_sink import WorkerSink

# Read ahead per stream. Enough to keep a link busy while a batch is used, and a few streams cost little.
_BUDGET_BYTES = 16 * 2**20
_STALL_SECONDS = 20.0


@dataclass(frozen=True)
class Usage:
    """What a query holds now."""

    memory_bytes: int
    spilled_bytes: int


class WorkerStore:
    """A `ShuffleStore` of one worker.

    `compression` is none, lz4, zstd or auto: how data is packed on disk and on its way to another host. Memory is
    never packed; auto packs with lz4. With `map_same_host` off, other processes of this host are asked as if they were
    on another.
    """

    is_blocking = True

    def __init__(
        self,
        location: Location,
        *,
        memory_limit_bytes: int,
        spill_threshold: float,
        spill_directories: Sequence[Path],
        compression: str,
        max_message_bytes: int,
        retry_attempts: int,
        retry_delay_seconds: float,
        connect: Connect[Location],
        stall_seconds: float = _STALL_SECONDS,
        fetch_budget_bytes: int = _BUDGET_BYTES,
        map_same_host: bool = True,
    ) -> None:
        self.location = location
        self._name = str(location)
        self._budget = MemoryBudget(memory_limit_bytes, spill_threshold)
        self._directories = tuple(spill_directories)
        self._compression = compression
        self._max_message_bytes = max_message_bytes
        self._retry_policy = RetryPolicy(retry_attempts, retry_delay_seconds, stall_seconds)
        self._connect = connect
        self._fetch_budget_bytes = fetch_budget_bytes
        self._map_same_host = map_same_host
        # An abandoned reader may be cleaned up on any thread, in the middle of anything.
        self._lock = threading.RLock()
        self._sinks: dict[AttemptId, WorkerSink] = {}
        self._fetches: dict[Fetch[Location], frozenset[QueryId]] = {}
        self._released = Released()

    # -------------------------------------------------------------------------------------------------- writing

    def sink(self, attempt: AttemptId, partitions: int) -> WorkerSink:
        with self._lock:
            if attempt.query in self._released:
                raise BlockMissing(f"{attempt}: its query is over.", attempt=attempt)
            if attempt in self._sinks:
                raise ValueError(f"{attempt} has begun its output already")
            sink = self._sinks[attempt] = WorkerSink(
                attempt,
                partitions,
                location=self._name,
                budget=self._budget,
                directories=self._directories,
                disk_codec=self._packed_codec,
                chunk_bytes=min(CHUNK_BYTES, self._max_message_bytes),
                on_abort=self._forget,
            )
            return sink

    def release(self, query: QueryId) -> None:
        with self._lock:
            self._released.add(query)
            mine = [attempt for attempt in self._sinks if attempt.query == query]
            sinks = [self._sinks.pop(attempt) for attempt in mine]
            fetches = [fetch for fetch, queries in list(self._fetches.items()) if query in queries]
        for sink in sinks:
            sink.close()
        for fetch in fetches:
            fetch.fail(BlockMissing(f"query {query} is over."))

    @property
    def held_bytes(self) -> int:
        with self._lock:
            return sum(sink.memory_bytes + sink.spilled_bytes for sink in self._sinks.values())

    @property
    def memory_bytes(self) -> int:
        """What counts against the memory limit now."""
        return self._budget.held_bytes

    def usage(self, query: QueryId) -> Usage:
        with self._lock:
            mine = [sink for attempt, sink in self._sinks.items() if attempt.query == query]
            return Usage(sum(sink.memory_bytes for sink in mine), sum(sink.spilled_bytes for sink in mine))

    def close(self) -> None:
        """Let go of everything of every query."""
        with self._lock:
            queries = {attempt.query for attempt in self._sinks}
            queries.update(*self._fetches.values())
        for query in queries:
            self.release(query)

    # -------------------------------------------------------------------------------------------------- reading

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        return self.read_many((block,))

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        with ExitStack() as under_way:
            fetches = self._start_fetches(blocks, under_way)
            taken = dict.fromkeys(fetches, 0)
            for block in blocks:
                if block.location in fetches:
                    yield from fetches[block.location].batches(taken[block.location])
                    taken[block.location] += 1
                else:
                    yield from self._read_near(block)

    def _start_fetches(self, blocks: Sequence[Block], under_way: ExitStack) -> dict[str, Fetch[Location]]:
        """One stream for each worker that has to be asked, with its blocks in the order of `blocks`."""
        wanted: dict[str, list[Block]] = {}
        for block in blocks:
            wanted.setdefault(block.location, []).append(block)
        return {
            location: under_way.enter_context(self._fetching(of_location))
            for location, of_location in wanted.items()
            if not self._is_near(of_location[0])
        }

    @contextmanager
    def _fetching(self, blocks: Sequence[Block]) -> Iterator[Fetch[Location]]:
        holder = _holder(blocks[0])
        queries = frozenset(block.attempt.query for block in blocks)
        with self._lock:
            for query in filter(self._released.__contains__, queries):
                raise BlockMissing(f"query {query} is over.")
            fetch = Fetch(
                (holder,),
                blocks,
                self._connect,
                codec=self.codec_from(holder),
                budget_bytes=self._fetch_budget_bytes,
                retry_policy=self._retry_policy,
            )
            self._fetches[fetch] = queries
        try:
            yield fetch
        finally:
            fetch.close()
            with self._lock:
                del self._fetches[fetch]

    def _is_near(self, block: Block) -> bool:
        """Whether the files of who holds the block can be read from here."""
        if block.location == self._name:
            return True
        holder = _holder(block)
        if not (self._map_same_host and holder.on_this_host):
            return False
        try:
            open_peer(block, holder)
        except OSError:
            return False
        return True

    def _read_near(self, block: Block) -> Iterator[pa.RecordBatch]:
        if block.location == self._name:
            _, index, files = self._open_own(block)
        else:
            index, files = self._open_peer(block)
        check_totals(block, index)
        unsealer = Unsealer(block, index)
        for number in range(len(index.chunks)):
            yield unsealer.unseal(number, _bytes(block, index, number, files))

    def _open_own(self, block: Block) -> tuple[bytes, Index, list[pa.NativeFile]]:
        with self._lock:
            sink = self._sinks.get(block.attempt)
        if sink is None:
            raise BlockMissing(f"{block} is not on {self._name}.", attempt=block.attempt)
        packed = sink.committed(block).index
        index = Index.unpack(packed, block)
        return packed, index, sink.open(index)

    def _open_peer(self, block: Block) -> tuple[Index, list[pa.NativeFile]]:
        holder = _holder(block)
        try:
            return open_peer(block, holder)
        except OSError as error:
            # Its files could be opened a moment ago, so this one is no longer there.
            raise BlockMissing(
                f"{block} is not on {holder.address} any more: {error}.", attempt=block.attempt
            ) from error

    # -------------------------------------------------------------------------------------------------- serving

    def serve(self, ticket: bytes) -> tuple[pa.Schema, Iterator[tuple[pa.RecordBatch, bytes]]]:
        """What `do_get` answers to another worker. QueryError for a ticket that is none of a store."""
        return SCHEMA, self.frames(decode(ticket, BlockRequest))

    def frames(self, request: BlockRequest) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        """What `serve` sends; made as it is taken, so that a slow reader costs nothing."""
        number = 0
        try:
            for number, block in enumerate(request.blocks):
                packed, index, files = self._open_own(block)
                yield frame(Header(Kind.INDEX, block=number), pa.py_buffer(packed))
                for chunk in range(0 if number else request.skip_chunks, len(index.chunks)):
                    name = index.files[index.chunks[chunk].file]
                    data = _bytes(block, index, chunk, files)
                    # What lies on disk was packed when it was written there.
                    codec = request.codec if name.in_memory else "none"
                    yield from parts(number, chunk, data, codec, self._max_message_bytes)
        except BlockMissing as error:
            kind = Kind.DAMAGED if isinstance(error, BlockDamaged) else Kind.MISSING
            yield frame(Header(kind, block=number), pa.py_buffer(error.message.encode()))

    # -------------------------------------------------------------------------------------------------- helpers

    @property
    def _packed_codec(self) -> str:
        return "lz4" if self._compression == "auto" else self._compression

    def codec_from(self, holder: Location) -> str:
        return "none" if self._compression == "auto" and holder.on_this_host else self._packed_codec

    def _forget(self, attempt: AttemptId) -> None:
        with self._lock:
            self._sinks.pop(attempt, None)


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
