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
from typing import Protocol

import pyarrow as pa

from volley.ids import AttemptId, QueryId
from volley.rpc.blocks import Block, BlockRequest

__all__ = ["Block", "BlockRequest", "SharedStore", "ShuffleSink", "ShuffleStore"]


class ShuffleSink(Protocol):
    """The output of one attempt. Used by one thread at a time; only `abort` may come from another meanwhile."""

    def write(self, partition: int, batch: pa.RecordBatch) -> None:
        """Add a batch to a partition, after those that were written to it before."""

    def commit(self) -> tuple[Block, ...]:
        """Publish this attempt: one block for every partition, in order, also for empty ones.

        Nothing may be written afterwards.
        """

    def abort(self) -> None:
        """Forget what was written. After a commit it does nothing: that is undone by `release` alone.

        A write that waits for room ends, with an error.
        """


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
