# SPDX-License-Identifier: Apache-2.0
"""The contract of a transport: the verbs of the wire, and nothing of what is sent.

    coordinator                                   worker
    workers()              ->  who is there
    reserve(worker, a)     ->  room for attempt a, or a refusal
    start(worker, spec)    ->  the attempt runs; its control channel is open
      .done()              <-  how it ended: TaskDone or TaskFailure
      .batches()           <-  its rows, for a task of the result stage
      .split_requests()             <-  it has room for splits of a feed: `SplitRequest`
      .give(splits)         ->  the answer to one `SplitRequest`
      .cancel()            ->  stop it
    release(query)         ->  the query is over: stop and forget all of it

    worker                                        worker
    fetch(block)           ->  the batches of a block that another worker holds

Every verb carries an attempt; a worker that is told of one twice refuses the second. All verbs of the coordinator are
awaited on one event loop; `fetch` is called by readers on threads of the engine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from volley.ids import AttemptId, QueryId
from volley.rpc.blocks import Block
from volley.rpc.messages import SplitBatch, SplitRequest, TaskDone, TaskFailure, TaskSpec, WorkerInfo


class RunningTask(Protocol):
    """The control channel and the result of one attempt."""

    @property
    def attempt(self) -> AttemptId: ...

    def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows of a result task as they are made. The worker waits when too many bytes are not yet taken.

        Ends when the task gave its last batch or failed; `done` says which.
        """

    async def done(self) -> TaskDone | TaskFailure:
        """How the attempt ended. A result task ends after its last batch was taken. Never raises for a failure."""

    def split_requests(self) -> AsyncIterator[SplitRequest]:
        """What the attempt asks for while it reads from feeds. Ends with the attempt."""

    async def give(self, splits: SplitBatch) -> None:
        """Answer a `SplitRequest`. Harmless when the attempt has ended; one whose worker is gone fails by itself."""

    async def cancel(self) -> None:
        """Stop the attempt and wait until it holds nothing any more. Harmless when it has ended."""


class Transport(Protocol):
    """How one query reaches its workers."""

    def workers(self) -> Sequence[WorkerInfo]:
        """Who is there now."""

    async def reserve(self, worker: str, attempt: AttemptId) -> bool:
        """Keep room for an attempt. False: the worker is full or going; ask another, or this one later."""

    async def start(self, worker: str, task: TaskSpec) -> RunningTask:
        """Run an attempt in the room that was reserved for it. Without a reservation it is refused."""

    def fetch(self, block: Block) -> Iterator[pa.RecordBatch]:
        """The batches of a block, wherever it is. Raises `BlockMissing` when it is not there."""

    async def release(self, query: QueryId) -> None:
        """End what still runs for the query and free everything that any worker holds for it."""
