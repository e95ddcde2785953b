# SPDX-License-Identifier: Apache-2.0
"""The contract of a shuffle store.

    writer (one attempt)      sink.write(partition, batch) ...  then commit() or abort()
    coordinator               publishes the blocks of the first attempt that commits in a manifest
    reader                    read(block) for the blocks in the manifest, and for no others

Several attempts at one task may write at the same time; they never see each other's data. The data of an attempt is
readable from the moment `commit` returns until `release` of its query. Before that, after that and after `abort`,
reading raises `BlockMissing`. A store never returns fewer rows than were committed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa

from volley.ids import AttemptId, QueryId
from volley.rpc.blocks import Block, BlockRequest
from volley.rpc.shuffle_messages import CheckpointInfo, FindStage, KeepStage
from volley.security import Security
from volley.shuffle.config import ShuffleConfig

__all__ = [
    "Block",
    "BlockRequest",
    "CheckpointStore",
    "SharedStore",
    "ShuffleSink",
    "ShuffleStore",
    "StoreFactory",
]


class ShuffleSink(Protocol):
    """The output of one attempt. One thread at a time uses it; only `abort` may be called from another thread."""

    def write(self, partition: int, batch: pa.RecordBatch) -> None:
        """Append a batch to a partition. May block until there is room for it."""

    def commit(self) -> tuple[Block, ...]:
        """Publish this attempt. Returns one block per partition, in order, including the empty ones.

        Later writes and commits are refused with `BlockMissing`.
        """

    def abort(self) -> None:
        """Discard what was written. Does nothing after `commit`: only `release` removes committed data.

        A `write` that is waiting for room fails.
        """


class ShuffleStore(Protocol):
    """The store that the tasks of a worker write to and read from. All methods may be called from any thread."""

    @property
    def is_blocking(self) -> bool:
        """Whether its sinks may block: they compress, write files or wait for other machines.

        Such sinks must not be created or used on an event loop.
        """

    def sink(self, attempt: AttemptId, partitions: int) -> ShuffleSink:
        """Begin the output of an attempt. An attempt has one sink; a second one raises ValueError.

        Raises `BlockMissing` if the query has been released.
        """

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a block in the order in which they were written.

        A block may be read any number of times, by several readers at once. Raises `BlockMissing` before the first
        batch if the store does not have exactly this block, and `BlockDamaged` instead of a batch whose bytes have
        changed since they were written.
        """

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of several blocks, block by block. Remote blocks are prefetched.

        Closing or dropping the iterator ends its fetches and frees what they hold.
        """

    def release(self, query: QueryId) -> None:
        """Remove all data of a query. From now on its sinks and reads are refused with `BlockMissing`."""

    @property
    def held_bytes(self) -> int:
        """Bytes in the store now, committed or not."""


class SharedStore(ShuffleStore, Protocol):
    """A store outside the workers, whose data survives them. Each driver and worker has its own object for it.

        driver      begin(query) ... release(query)       only the driver decides when the data is removed
        worker      sink, read ... leave(query)

    The driver holds a lease on each query that it began and renews it until `release`. If the lease expires, the data
    of the query is removed; later calls for it raise `BlockMissing`.
    """

    def begin(self, query: QueryId) -> None:
        """Register a query and start renewing its lease.

        Until then no attempt at it commits. Its sinks are refused with `BlockMissing`, or with `ShuffleRefused` by a
        store that lost track of a query which has begun: another attempt may succeed.
        """

    def leave(self, query: QueryId) -> None:
        """End this process's part in a query. Its data stays, but new sinks here are refused with `BlockMissing`."""

    def close(self) -> None:
        """Release the queries that this process began, and stop all its reads and writes."""


@runtime_checkable
class CheckpointStore(Protocol):
    """A `SharedStore` may also be one of these: it keeps outputs beyond the end of their query, for later drivers.

        first driver     keep_stage(stage) while its query runs
        second driver    find_stage(...) -> the record, and reads its blocks like those of any other query

    A kept stage is a query of its own, `KeepStage.kept`, without a driver. Nothing is added to it, and `release` of the
    query that made it leaves it alone. The store removes it when it was not asked for in `seconds`.
    """

    def keep_stage(self, stage: KeepStage, locations: Collection[str]) -> None:
        """Keep committed outputs, whose blocks have these locations. An error if not all of them are kept.

        From now on they are found, and not an earlier stage with the same key.
        """

    def find_stage(self, wanted: FindStage) -> bytes | None:
        """The newest record of a kept stage, for callers that know the secret of its checkpoint; None if there is
        none."""

    def checkpoints(self) -> tuple[CheckpointInfo, ...]:
        """All checkpoints, without their secrets. An error if the store cannot be reached."""

    def drop_checkpoint(self, checkpoint: str) -> bool:
        """Remove a checkpoint and all its stages. Returns whether there was one; an error if some may be left."""


class StoreFactory(Protocol):
    """Opens a shared store in this process. An entry point of the group `volley.shuffle_stores` names one.

    Its attribute `protocol_version` is the version of this contract that its stores keep (`volley.plugins`).
    """

    def __call__(self, config: ShuffleConfig, *, security: Security, memory_limit_bytes: int) -> SharedStore:
        """Open the store that `config.store` names; `config.plugin` has the options `spark.volley.plugin.*`.

        Called in the driver, in each worker and in Spark's tasks that read native rows. `memory_limit_bytes` is what
        its sinks may hold in this process; 0 for a process that only reads. Raises ConfigError for bad options.
        """
