# SPDX-License-Identifier: Apache-2.0
"""The client's end of a query: an iterator of batches that stops the query when it is dropped."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType

import pyarrow as pa

from volley.byte_semaphore import ByteSemaphore
from volley.cancellation import CancellationToken
from volley.coordinator.manifest import Manifest
from volley.coordinator.result_rows import PassedRows, ResultRows, ResumedRows
from volley.errors import DeadlineExceeded, QueryError
from volley.events import Event, EventLog
from volley.ids import AttemptId, QueryId
from volley.plan.expressions import Attribute
from volley.process.loop import LoopThread
from volley.stages.graph import result_schema

# How long after its deadline a query may take to stop before the client gives up on it.
GRACE_SECONDS = 30.0


@dataclass(frozen=True)
class _Rows:
    attempt: AttemptId
    batch: pa.RecordBatch


@dataclass(frozen=True)
class _Dropped:
    attempt: AttemptId


@dataclass(frozen=True)
class _Finished:
    attempt: AttemptId
    rows: int


@dataclass(frozen=True)
class _Committed:
    rows: Mapping[AttemptId, int]


@dataclass(frozen=True)
class _Resumable:
    pass


_Progress = _Rows | _Dropped | _Finished | _Committed | _Resumable


class ResultQueue:
    """Batches on their way from the event loop to the client's thread, bounded in bytes.

    `rows` decides in the client's thread which of them count. A client that materializes the result gets a manifest
    instead.
    """

    def __init__(self, loop: LoopThread, limit_bytes: int, rows: ResultRows | None = None) -> None:
        self._loop = loop
        self._gate = ByteSemaphore(limit_bytes)
        self._items: queue.SimpleQueue[_Progress | Manifest | QueryError | None] = queue.SimpleQueue()
        # Only the client's thread uses these.
        self._rows = rows or PassedRows()
        self._counted: deque[pa.RecordBatch] = deque()

    async def put(self, attempt: AttemptId, batch: pa.RecordBatch, admit: Callable[[], bool]) -> None:
        """Queue a batch. Waits on the loop while the client is behind.

        `admit` is called once there is room, in the same step: an attempt that was rolled back while it waited must
        not deliver rows that another attempt delivers too.
        """
        await self._gate.enter(batch.nbytes)
        if admit():
            self._items.put(_Rows(attempt, batch))
        else:
            self._gate.leave(batch.nbytes)

    def drop(self, attempt: AttemptId) -> None:
        """This attempt sends no more rows: it failed, or was cancelled."""
        self._items.put(_Dropped(attempt))

    def finish(self, attempt: AttemptId, rows: int) -> None:
        """This attempt ended well, and has sent so many rows."""
        self._items.put(_Finished(attempt, rows))

    def commit(self, rows: Mapping[AttemptId, int]) -> None:
        """The result consists of the rows of these attempts, so many of each."""
        self._items.put(_Committed(rows))

    def resume(self) -> None:
        """From now on, an attempt that runs again continues where the lost one stood. No row was sent yet."""
        self._items.put(_Resumable())

    def put_manifest(self, manifest: Manifest) -> None:
        """Queue the location of a materialized result."""
        self._items.put(manifest)

    def end(self, error: QueryError | None) -> None:
        """End the stream: all batches were delivered, or the query failed with `error`."""
        self._items.put(error)

    def get(self, timeout_seconds: float) -> pa.RecordBatch | Manifest | QueryError | None:
        """The next batch, the manifest, an error, or None at the end. Raises queue.Empty after the timeout."""
        deadline = time.monotonic() + timeout_seconds
        while not self._counted:
            item = self._items.get(timeout=max(0.0, deadline - time.monotonic()))
            if isinstance(item, _Rows):
                self._loop.call(self._gate.leave, item.batch.nbytes)
            if item is None or isinstance(item, Manifest | QueryError):
                return item
            try:
                self._counted.extend(self._count(item))
            except QueryError as error:
                return error
        return self._counted.popleft()

    def close(self) -> None:
        """Release what is kept of the rows; nobody gets more. For the client's thread, like `get`. Idempotent."""
        self._rows.close()

    def _count(self, item: _Progress) -> Sequence[pa.RecordBatch]:
        match item:
            case _Rows(attempt, batch):
                return self._rows.add(attempt, batch)
            case _Finished(attempt, sent):
                return self._rows.finish(attempt, sent)
            case _Committed(rows):
                return self._rows.commit(rows)
            case _Dropped(attempt):
                self._rows.drop(attempt)
            case _Resumable():
                self._rows = ResumedRows()
        return ()


class ResultStream(Iterator[pa.RecordBatch]):
    """The rows of a query in batches. Columns are positional: `schema` names them "0", "1", ...

    The query ends with the last row, on `close`, on leaving the `with` block, when the stream is dropped and on an
    interrupt. `close` returns once nothing of the query runs or holds memory. Use it from one thread at a time.
    """

    def __init__(
        self,
        query: QueryId,
        output: tuple[Attribute, ...],
        batches: ResultQueue,
        run: Future[None],
        token: CancellationToken,
        deadline: float,
        events: EventLog,
    ) -> None:
        self.query = query
        self.output = output
        self.schema = result_schema(output)
        self._batches = batches
        self._run = run
        self._token = token
        self._deadline = deadline
        self._events = events
        self._over = False
        weakref.finalize(self, token.finish)
        weakref.finalize(self, batches.close)

    def __next__(self) -> pa.RecordBatch:
        if self._over:
            raise StopIteration
        try:
            item = self._batches.get(self._deadline + GRACE_SECONDS - time.monotonic())
        except queue.Empty:
            self._token.cancel("its deadline passed")
            self._over = True
            self._batches.close()
            raise DeadlineExceeded(f"query {self.query} did not stop at its deadline.") from None
        except BaseException:
            self._token.cancel("interrupted")
            self.close()
            raise
        if isinstance(item, pa.RecordBatch):
            return item
        self.close()
        if isinstance(item, QueryError):
            raise item
        raise StopIteration

    def cancel(self, reason: str) -> None:
        """Cancel the query, from any thread. The reader of the stream gets `QueryCancelled`."""
        self._token.cancel(reason)

    def close(self) -> None:
        """End the query and wait until it has released everything. Idempotent."""
        self._over = True
        self._batches.close()
        self._token.finish()
        if threading.current_thread().name != "volley-loop":
            wait_until_stopped(self._run, self.query)

    @property
    def events(self) -> tuple[Event, ...]:
        """The events so far; complete after `close`."""
        return self._events.events

    def __enter__(self) -> ResultStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def wait_until_stopped(run: Future[None], query: QueryId) -> None:
    """Wait until a closed query has released everything."""
    try:
        run.result(timeout=GRACE_SECONDS)
    except futures.TimeoutError:
        raise DeadlineExceeded(
            f"query {query} did not stop within {GRACE_SECONDS:g} s of being closed."
        ) from None
