# SPDX-License-Identifier: Apache-2.0
"""The client's end of a query: an iterator of batches that stops the query when it is dropped."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType

import pyarrow as pa

from volley.byte_semaphore import ByteSemaphore
from volley.cancellation import CancellationToken
from volley.coordinator.manifest import Manifest
from volley.errors import DeadlineExceeded, EngineError, QueryError
from volley.events import Event, EventLog
from volley.ids import AttemptId, QueryId
from volley.loop import LoopThread
from volley.plan.expressions import Attribute
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
class _Committed:
    rows: Mapping[AttemptId, int]


class ResultQueue:
    """Batches on their way from the event loop to the client's thread, bounded in bytes.

    With `holds`, the client's thread keeps the rows of every attempt apart until `commit` says which attempts count:
    an attempt may then fail after it has sent rows. Otherwise rows are passed on as they come.

    A client that materializes the result gets a manifest instead.
    """

    def __init__(self, loop: LoopThread, limit_bytes: int, *, holds: bool = False) -> None:
        self.holds = holds
        self._loop = loop
        self._gate = ByteSemaphore(limit_bytes)
        self._items: queue.SimpleQueue[_Rows | _Dropped | _Committed | Manifest | QueryError | None] = (
            queue.SimpleQueue()
        )
        # Only the client's thread uses these.
        self._held: dict[AttemptId, list[pa.RecordBatch]] = {}
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
        """The rows of this attempt do not count. Only rows that are held can be dropped."""
        if self.holds:
            self._items.put(_Dropped(attempt))

    def commit(self, rows: Mapping[AttemptId, int]) -> None:
        """Let go the rows that are held of these attempts, in this order. Each must have sent that many rows."""
        if self.holds:
            self._items.put(_Committed(rows))

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
            match item := self._items.get(timeout=max(0.0, deadline - time.monotonic())):
                case _Rows(attempt, batch):
                    self._loop.call(self._gate.leave, batch.nbytes)
                    if not self.holds:
                        return batch
                    self._held.setdefault(attempt, []).append(batch)
                case _Dropped(attempt):
                    self._held.pop(attempt, None)
                case _Committed(rows):
                    if (error := self._count(rows)) is not None:
                        return error
                case _:
                    return item
        return self._counted.popleft()

    def _count(self, rows: Mapping[AttemptId, int]) -> QueryError | None:
        for attempt, expected in rows.items():
            batches = self._held.pop(attempt, [])
            arrived = sum(batch.num_rows for batch in batches)
            if arrived != expected:
                return EngineError(f"{attempt}: {arrived} of its {expected} rows arrived.")
            self._counted.extend(batches)
        self._held.clear()
        return None


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

    def __next__(self) -> pa.RecordBatch:
        if self._over:
            raise StopIteration
        try:
            item = self._batches.get(self._deadline + GRACE_SECONDS - time.monotonic())
        except queue.Empty:
            self._token.cancel("its deadline passed")
            self._over = True
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
    except TimeoutError:
        raise DeadlineExceeded(
            f"query {query} did not stop within {GRACE_SECONDS:g} s of being closed."
        ) from None
