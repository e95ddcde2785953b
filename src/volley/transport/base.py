# SPDX-License-Identifier: Apache-2.0
"""The contract of a transport: the verbs of the wire, and nothing of what is sent.

    coordinator                                   worker
    workers()              ->  who can run attempts
    holders()              ->  whose blocks can be read
    reserve(worker, a)     ->  room for attempt a, or a refusal
    start(worker, spec)    ->  the attempt runs; its control channel is open
      .done()              <-  how it ended: TaskDone or TaskFailure
      .batches()           <-  its rows, for a task of the result stage
      .split_requests()             <-  it has room for splits of a feed: `SplitRequest`
      .give(splits)         ->  the answer to one `SplitRequest`
      .cancel()            ->  stop it
    take_in(query)         ->  where others may put rows that the query reads
    release(query)         ->  the query is over: stop and forget all of it

    worker                                        worker
    fetch(block)           ->  the batches of a block that another worker holds

Every verb carries an attempt; a worker that is told of one twice refuses the second. All verbs of the coordinator are
awaited on one event loop; `fetch` is called by readers on threads of the engine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence, Set
from typing import Protocol

import pyarrow as pa

from volley.ids import AttemptId, QueryId
from volley.rpc.blocks import Block
from volley.rpc.messages import SplitBatch, SplitRequest, TaskDone, TaskFailure, TaskSpec, WorkerInfo
from volley.transport.ingest import IngestEndpoint


class RunningTask(Protocol):
    """The control channel and the result of one attempt."""

    @property
    def attempt(self) -> AttemptId: ...

    def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows of a result task as they are made. The worker waits when too many bytes are not yet taken.

        Ends when the task gave its last batch or failed; `done` says which. On the executors of Spark, which gives the
        results of its tasks when they have ended, rows come then.
        """

    async def done(self) -> TaskDone | TaskFailure:
        """How the attempt ended. A result task ends after its last batch was taken. Never raises for a failure."""

    def split_requests(self) -> AsyncIterator[SplitRequest]:
        """What the attempt asks for while it reads from feeds. Ends with the attempt.

        A transport that may run one attempt twice numbers these runs; `SplitRequest.attempt` says which one asks, and
        the answer names the same.
        """

    async def give(self, splits: SplitBatch) -> None:
        """Answer a `SplitRequest`. Harmless when the attempt has ended; one whose worker is gone fails by itself."""

    async def cancel(self) -> None:
        """Stop the attempt and wait until it holds nothing any more. Harmless when it has ended."""


class Transport(Protocol):
    """How one query reaches its workers."""

    def workers(self) -> Sequence[WorkerInfo]:
        """Who can run attempts now, each with at least one slot and one core."""

    def holders(self) -> Set[str]:
        """Whose blocks can be read now, by the names that `TaskDone.made_by`, or the worker it ran on, gives.

        What any other made is lost, unless it outlives its worker.
        """

    async def reserve(self, worker: str, attempt: AttemptId) -> bool:
        """Keep room for an attempt. False: the worker is full or going; ask another, or this one later."""

    async def start(self, worker: str, task: TaskSpec) -> RunningTask:
        """Run an attempt in the room that was reserved for it.

        A worker that does not take it, because it is gone or knows of no reservation (any more), makes it an attempt
        that failed there, and may be tried elsewhere: nothing is raised for that.
        """

    async def take_in(self, query: QueryId) -> IngestEndpoint | None:
        """Be ready to be given rows that somebody else computes, until `release` of the query.

        None: the workers are in this process, which puts such rows where it likes.
        """

    def fetch(self, block: Block) -> Iterator[pa.RecordBatch]:
        """The batches of a block, wherever it is. Raises `BlockMissing` when it is not there."""

    async def release(self, query: QueryId) -> None:
        """End what still runs for the query and free everything that any worker holds for it."""
