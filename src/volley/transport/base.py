# SPDX-License-Identifier: Apache-2.0
"""The contract of a transport, which connects the coordinator of one query with its workers.

    workers()                     the workers that can run attempts
    holders()                     the workers whose blocks can be read
    reserve(worker, attempt)      reserve a slot
    start(worker, spec)           run the attempt in that slot; returns a RunningTask:
      .split_requests()             yields its requests for splits
      .give(splits)                 answers one of them
      .batches()                    yields its rows, for a task of the result stage
      .done()                       waits for TaskDone or TaskFailure
      .cancel()                     stops it
    open_ingest(query)            where others may push rows that the query reads; returns an IngestEndpoint:
      .push(attempt, batches)       sends them, from another process
    fetch(block)                  the batches of a block, wherever it is
    release(query)                stop everything of the query and free what it holds

The coordinator reserves and starts each attempt once; a worker refuses an attempt that it already knows. It releases
every query, however it ended. All methods except `fetch` are called on one event loop and must not block it; `fetch`
blocks and may be called from any thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from volley.errors import NoWorkers
from volley.events import TaskProgress
from volley.ids import AttemptId, QueryId
from volley.rpc.blocks import Block
from volley.rpc.control import Pushed
from volley.rpc.messages import SplitBatch, SplitRequest, TaskDone, TaskFailure, TaskSpec, WorkerInfo
from volley.security import Security
from volley.shuffle.base import SharedStore


class NoRoom(Exception):
    """A worker has no slot for an attempt after all."""


class RunningTask(Protocol):
    """A started attempt: its control channel, its rows and its outcome."""

    @property
    def attempt(self) -> AttemptId: ...

    def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows of a result task, as they are produced. The task waits while too many bytes are unread.

        Ends after the last batch or when the task fails; `done` tells which. Inside Spark's executors the rows arrive
        only when the task has ended, because Spark returns task results then.
        """

    async def done(self) -> TaskDone | TaskFailure:
        """Wait for the end of the attempt. A failure is returned, never raised.

        A result task is done only after its last batch was consumed: read `batches` first.
        """

    def split_requests(self) -> AsyncIterator[SplitRequest]:
        """The requests of an attempt that reads from feeds. Ends with the attempt.

        A transport that may run one attempt several times gives each run its own number. `SplitRequest.attempt` names
        the run, and the answer must name the same one.
        """

    async def give(self, splits: SplitBatch) -> None:
        """Answer a `SplitRequest`. Never raises: an ended attempt ignores it, a lost worker shows up in `done`."""

    async def cancel(self) -> None:
        """Stop the attempt and wait until its resources are released. Does nothing if it has ended."""


@runtime_checkable
class ReportsProgress(Protocol):
    """A `RunningTask` may also be one of these. Attempts in other processes tell what they read once a second."""

    def progress(self) -> TaskProgress | None:
        """What the attempt has read so far, without waiting; None if that is not known yet."""


@runtime_checkable
class ExplainsAbsence(Protocol):
    """A `Transport` may also be one of these, if it knows why workers are missing."""

    def absence(self) -> NoWorkers:
        """The error for a query that waited in vain for a worker."""


class IngestEndpoint(Protocol):
    """Where rows that are computed elsewhere enter the stores of the workers. Pickled and sent to Spark's tasks."""

    def push(
        self, attempt: AttemptId, partitions: int, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> Pushed:
        """Hand over the whole output of an attempt, spread over `partitions`. Returns once a store has committed it.

        Called in another process, and blocks. Each attempt is pushed once. Raises a VolleyError or OSError if the rows
        may not have arrived; nobody reads them then.
        """


class Transport(Protocol):
    """Connects one query with its workers."""

    def workers(self) -> Sequence[WorkerInfo]:
        """The workers that accept attempts now, each with at least one slot and one core. The set may change."""

    def holders(self) -> Set[str]:
        """The workers whose blocks can be read now, by `TaskDone.made_by` or, if that is empty, by worker name.

        Blocks of any other worker are lost, unless they outlive their worker.
        """

    async def reserve(self, worker: str, attempt: AttemptId) -> bool:
        """Reserve a slot for an attempt. False if the worker is full, draining or lost: try another, or try later.

        It may count free slots without asking the worker, if `start` notices that another driver was faster. A slot is
        free again when `done` of its attempt has returned.
        """

    async def start(self, worker: str, task: TaskSpec) -> RunningTask:
        """Run an attempt in its reserved slot.

        Never raises for a worker that is lost or no longer has the reservation. The returned task has then failed with
        a failure that allows a retry on another worker. Raises `NoRoom` if another driver has taken the slot: the
        attempt has not begun, and may be reserved again.
        """

    async def open_ingest(self, query: QueryId) -> IngestEndpoint | None:
        """Accept rows that are computed elsewhere, until `release(query)`. Returns where to push them.

        None if the workers run in this process, which can write to their stores directly.
        """

    def fetch(self, block: Block) -> Iterator[pa.RecordBatch]:
        """The batches of a block. Raises `BlockMissing` if it cannot be read any more."""

    async def release(self, query: QueryId) -> None:
        """Cancel what still runs for the query and free everything that any worker holds for it."""


@dataclass(frozen=True)
class TransportContext:
    """What a `TransportFactory` gets from a session.

    `settings` are its options `spark.volley.plugin.*`, without that prefix. `shared` is the store beside the workers
    that the session uses; None if each worker keeps what it wrote. `worker_settings` are the session's options for
    workers: every `TaskSpec` has them, and every `Push` needs them.
    """

    settings: Mapping[str, str]
    workers: tuple[str, ...]
    timeout_seconds: float
    security: Security
    shared: SharedStore | None
    worker_settings: tuple[tuple[str, str], ...] = ()


class TransportFactory(Protocol):
    """Opens a transport. An entry point of the group `volley.transports` names one.

    Its attribute `protocol_version` is the version of this contract that its transports keep (`volley.plugins`).
    """

    def __call__(self, context: TransportContext) -> Transport:
        """The way to the workers, for one query. Raises NoWorkers if none answers and ConfigError for bad options.

        A query may open several, and drop one unused without `release`. So a transport starts nothing before the first
        call; connections that are worth keeping belong to the process (`volley.process.runtime`).
        """
