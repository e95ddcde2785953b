# SPDX-License-Identifier: Apache-2.0
"""The contract of a shuffle store.

    writer (one attempt)      sink.write(partition, batch) ...  then commit() or abort()
    coordinator               takes the blocks of the first attempt that committed, publishes them in a manifest
    reader                    read(block) for the blocks that the manifest names, and for no others

Attempts of one task may write at the same time and never see each other. Data of an attempt is readable after `commit`
returned and until `release` of its query; after that, or after `abort`, reading it raises `BlockMissing`, never an
empty answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from volley.ids import AttemptId, QueryId


@dataclass(frozen=True, order=True)
class Block:
    """One partition of one attempt's output: its name, where it is, and what a reader must find there.

    `location` and `handle` mean something to the store that made the block and to no one else. `size_bytes` is what the
    rows take in memory; `checksum` covers all that the store keeps of them; `spilled_bytes` is what the store wrote of
    them to disk because there was no room in memory. One that `outlives_worker` is still there when the worker that
    wrote it has gone.
    """

    attempt: AttemptId
    partition: int
    location: str
    rows: int
    size_bytes: int
    checksum: int = 0
    handle: str = ""
    spilled_bytes: int = 0
    outlives_worker: bool = False

    def __str__(self) -> str:
        return f"partition {self.partition} of {self.attempt}"


@dataclass(frozen=True)
class BlockRequest:
    """What one worker asks of another: these blocks, one after the other in one stream.

    `skip_chunks` of the first are not wanted any more: the reader has them from a stream that broke. `codec`
    (none, lz4, zstd) is how to pack on the way what is not packed yet.
    """

    blocks: tuple[Block, ...]
    skip_chunks: int = 0
    codec: str = "none"


class ShuffleSink(Protocol):
    """The output of one attempt. Used by one thread at a time."""

    def write(self, partition: int, batch: pa.RecordBatch) -> None:
        """Add a batch to a partition, after those that were written to it before."""

    def commit(self) -> tuple[Block, ...]:
        """Publish this attempt: one block for every partition, in order, also for empty ones.

        Nothing may be written afterwards.
        """

    def abort(self) -> None:
        """Forget what was written. After a commit it does nothing: that is undone by `release` alone."""


class ShuffleStore(Protocol):
    """Where a worker writes and reads. All methods may be called from any thread."""

    @property
    def is_blocking(self) -> bool:
        """Whether its sinks take their time: they pack and write, or wait for other machines. Then nobody makes or
        uses them on an event loop."""

    def sink(self, attempt: AttemptId, partitions: int) -> ShuffleSink:
        """Begin the output of an attempt. A second sink of the same attempt is refused with ValueError."""

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        """The batches of a block in the order in which they were written.

        It may be read many times and by many readers. Raises `BlockMissing` before the first batch when the block is
        not there or is not what its name says, and `BlockDamaged` in place of a batch that is not what was written.
        """

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        """The batches of the blocks, one block after the other, fetched ahead where they come from elsewhere.

        An iterator that is closed or dropped lets go of everything it had under way.
        """

    def release(self, query: QueryId) -> None:
        """Forget everything of a query. Late sinks of the query are refused with `BlockMissing` from now on."""

    @property
    def held_bytes(self) -> int:
        """How much the store holds now, committed or not."""


class SharedStore(ShuffleStore, Protocol):
    """A store beside the workers. Drivers and workers have an object each for the same data.

        driver      begin(query) ... release(query)       it alone says when the data of a query may go
        worker      sink, read ... leave(query)

    What a driver began is kept for as long as the driver shows that it lives. When it has not for too long, everything
    of it goes, and whoever still asks for it gets `BlockMissing`.
    """

    def begin(self, query: QueryId) -> None:
        """Make room for a query and keep it alive. Before that its sinks are refused with `BlockMissing`."""

    def leave(self, query: QueryId) -> None:
        """This process has nothing more to do with the query. Its data stays; sinks here are refused from now on."""

    def close(self) -> None:
        """Release what this process began, and end all that it has under way."""
