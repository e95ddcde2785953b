# SPDX-License-Identifier: Apache-2.0
"""The scans of a running task: threads that read splits, and tables in which DataFusion finds their rows.

    SplitQueue  --split-->  reader thread --batches-->  queue  -->  stream of DataFusion
            --split-->  reader thread --batches-->  (bytes)  -->  stream of DataFusion

Reading waits for disks, networks and the coordinator, which a thread of DataFusion must not: it may be the one that
other tasks of this process need. So splits are read on threads of the task's own, and a stream that finds nothing gives
an empty batch after a moment, which lets DataFusion's thread look after somebody else.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence

import pyarrow as pa

from volley.batches import empty_batch, make_batch
from volley.errors import QueryError
from volley.lower.scope import arrow_schema, distinct, read_schema
from volley.lower.streams import StreamTable
from volley.plan.expressions import Attribute, Expression
from volley.plan.nodes import FeedInput, SourceScan
from volley.splits.readers import reader_of
from volley.splits.source import SplitReader
from volley.worker.split_queue import SplitQueue, SplitQueues, Stopped

_QUEUE_BYTES = 32 * 2**20
# DataFusion asks a stream some hundred times before it lets another have the thread, so this must be short. But every
# empty batch costs, so it is longer while files are read: their rows are about to come.
_TURN_SECONDS = 0.001
_READING_SECONDS = 0.01
_END_SECONDS = 2.0
_LOOK_AGAIN_SECONDS = 0.002


class Scans:
    """All scans of one run of an attempt that are fed. `errors` fills with what went wrong in reading."""

    def __init__(self, split_queues: SplitQueues | None, cores: int, errors: list[Exception]) -> None:
        self._split_queues = split_queues
        self._cores = cores
        self._errors = errors
        self._scans: list[_Scan] = []

    def table(self, node: FeedInput) -> StreamTable:
        scan = _Scan(node, self._opened(node), self._cores, self._errors)
        self._scans.append(scan)
        return StreamTable(scan.schema, [scan.batches] * self._cores)

    def _opened(self, node: FeedInput) -> SplitQueue:
        if self._split_queues is None:
            raise QueryError(f"nobody feeds scan {node.feed} of this task.")
        return self._split_queues.open(node.feed)

    async def micro_batches(self, node: FeedInput) -> AsyncIterator[list[pa.RecordBatch]]:
        """The rows of a scan without a table: again and again all that was read since the last time."""
        scan = _Scan(node, self._opened(node), self._cores, self._errors)
        self._scans.append(scan)
        scan.start()
        while (micro_batch := scan.micro_batch()) is not None:
            if micro_batch:
                yield micro_batch
            else:
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    def close(self) -> None:
        """Let the threads end: each does when it has its next batch."""
        for scan in self._scans:
            scan.close()

    async def ended(self) -> None:
        """Wait until they have, for a while: one may be in the middle of a call that nobody can stop."""
        deadline = time.monotonic() + _END_SECONDS
        while any(scan.busy for scan in self._scans) and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)


class _Scan:
    """Started by the first stream that is read, so that a scan that DataFusion finds needless costs nothing."""

    def __init__(
        self, node: FeedInput, split_queue: SplitQueue, readers: int, errors: list[Exception]
    ) -> None:
        self._attributes = distinct(node.output)
        self._reader: SplitReader = reader_of(node.plan)
        self._columns = [attribute.name for attribute in self._attributes]
        self.schema = read_schema(node.output)
        # Those of files are in the plan of a split.
        self._filters: Sequence[Expression] = ()
        if isinstance(node.plan, SourceScan):
            names = dict(zip((a.id for a in node.output), node.plan.columns, strict=True))
            self._columns = [names[attribute.id] for attribute in self._attributes]
            self.schema = arrow_schema(node.output)
            self._filters = node.plan.filters
        self._split_queue = split_queue
        self._errors = errors
        self._queue = _BatchQueue(_QUEUE_BYTES, readers)
        self._threads = [
            threading.Thread(target=self._read, name=f"volley-read-{node.feed}-{number}", daemon=True)
            for number in range(readers)
        ]
        self._lock = threading.Lock()
        self._streams = 0
        self._reads_files = not isinstance(node.plan, SourceScan)
        self._reading = False
        """A hint, and no more: with several readers it is that of the last that said."""

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def micro_batch(self) -> list[pa.RecordBatch] | None:
        """What has been read and not been taken, without waiting; None when there is no more."""
        found: list[pa.RecordBatch] = []
        while (batch := self._queue.get(0)) is not None and batch is not _NOTHING:
            found.append(batch)
        return None if batch is None and not found else found

    def batches(self) -> Iterator[pa.RecordBatch]:
        with self._lock:
            self._streams += 1
            if self._streams == 1:
                self.start()
            elif self._streams > len(self._threads):
                raise QueryError("a scan was read a second time, but its rows are gone with the first.")
        nothing = empty_batch(self.schema)
        while True:
            item = self._queue.get(_READING_SECONDS if self._reading else _TURN_SECONDS)
            if item is None:
                return
            yield nothing if item is _NOTHING else item

    def close(self) -> None:
        self._split_queue.close()
        self._queue.close()

    @property
    def busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _read(self) -> None:
        try:
            while (split := self._split_queue.take()) is not None:
                self._reading = self._reads_files
                for batch in self._reader.read(split, self._columns, self._filters):
                    self._queue.put(as_planned(batch, self._attributes, self.schema))
                self._reading = False
                self._split_queue.has_read()
        except Stopped:
            pass
        except Exception as error:
            self._errors.append(error)
            self._queue.fail(error)
        finally:
            self._queue.reader_ended()


def as_planned(batch: pa.RecordBatch, attributes: Sequence[Attribute], schema: pa.Schema) -> pa.RecordBatch:
    """The batch of a reader under the names by which the plan knows its columns."""
    if not isinstance(batch, pa.RecordBatch):
        raise TypeError(f"a reader gave {type(batch).__name__} where a record batch was expected")
    if batch.num_columns != len(attributes):
        raise TypeError(f"a reader gave {batch.num_columns} columns where {len(attributes)} were asked for")
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return make_batch(columns, schema, batch.num_rows)


_NOTHING = empty_batch(pa.schema([]))


class _BatchQueue:
    """Batches between reader threads and streams, bounded in bytes; a batch larger than that passes alone."""

    def __init__(self, limit_bytes: int, readers: int) -> None:
        self._limit_bytes = limit_bytes
        self._readers = readers
        self._batches: deque[pa.RecordBatch] = deque()
        self._held_bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self._error: Exception | None = None

    def put(self, batch: pa.RecordBatch) -> None:
        with self._changed:
            while not self._closed and self._batches and self._held_bytes + batch.nbytes > self._limit_bytes:
                self._changed.wait()
            if self._closed:
                raise Stopped
            self._batches.append(batch)
            self._held_bytes += batch.nbytes
            self._changed.notify_all()

    def get(self, timeout_seconds: float) -> pa.RecordBatch | None:
        """A batch, `_NOTHING` when none came in time, None when there are no more."""
        with self._changed:
            if not self._batches and self._readers and not self._error and not self._closed:
                self._changed.wait(timeout_seconds)
            if self._error:
                raise self._error
            if self._batches:
                batch = self._batches.popleft()
                self._held_bytes -= batch.nbytes
                self._changed.notify_all()
                return batch
            return _NOTHING if self._readers and not self._closed else None

    def fail(self, error: Exception) -> None:
        with self._changed:
            self._error = self._error or error
            self._closed = True
            self._changed.notify_all()

    def reader_ended(self) -> None:
        with self._changed:
            self._readers -= 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
