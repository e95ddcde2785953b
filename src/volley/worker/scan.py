# SPDX-License-Identifier: Apache-2.0
"""The fed scans of a running task: threads that read splits, and tables that give their rows to DataFusion.

    SplitQueue  --split-->  reader thread  --batches-->  queue,    -->  DataFusion stream
                --split-->  reader thread  --batches-->  bounded   -->  DataFusion stream

Reading waits for disks, networks and the coordinator. A DataFusion thread must not wait for those, because other tasks
of this process may need it. So the task has its own threads to read splits. A stream without rows yields an empty batch
after a moment: some operators then let the thread do other work. `engine_threads.py` is for the others.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence

import pyarrow as pa

from volley.batches import empty_batch, make_batch
from volley.errors import QueryError
from volley.lower.scope import arrow_schema, distinct, read_schema
from volley.lower.streams import StreamTable
from volley.plan.expressions import Attribute, Expression
from volley.plan.nodes import FeedInput, SourceScan
from volley.splits.factory import reader_of
from volley.splits.source import SplitReader
from volley.worker.batch_queue import NOTHING, BatchQueue
from volley.worker.engine_threads import EngineThreads, engine_threads
from volley.worker.split_queue import SplitQueue, SplitQueues, Stopped

_QUEUE_BYTES = 32 * 2**20
# DataFusion polls a stream about a hundred times before it yields the thread, which others may need, so this must
# be short. But every empty batch has a cost, so it is longer once a file is being read: its rows arrive soon.
_TURN_SECONDS = 0.001
_READING_SECONDS = 0.01
_END_SECONDS = 2.0
_POLL_SECONDS = 0.002


class Scans:
    """All fed scans of one run of an attempt. `errors` collects the errors of their readers."""

    def __init__(self, split_queues: SplitQueues | None, cores: int, errors: list[Exception]) -> None:
        self._split_queues = split_queues
        self._cores = cores
        self._errors = errors
        self._scans: list[_Scan] = []
        self._threads = engine_threads()
        self._admitted = 0

    def table(self, node: FeedInput) -> StreamTable:
        scan = _Scan(node, self._open_queue(node), self._cores, self._errors, self._threads)
        self._scans.append(scan)
        return StreamTable(scan.schema, [scan.batches] * self._cores)

    async def admit(self, others: int = 0) -> None:
        """Wait until the tables may be read, with as many others that wait for rows in the same way.

        `wait_closed` makes room for those of other tasks.
        """
        scans = len(self._scans) + others
        await self._threads.admit(scans)
        self._admitted = scans

    def _open_queue(self, node: FeedInput) -> SplitQueue:
        if self._split_queues is None:
            raise QueryError(f"scan {node.feed} of this task has no feed.")
        return self._split_queues.open(node.feed)

    async def micro_batches(self, node: FeedInput) -> AsyncIterator[list[pa.RecordBatch]]:
        """The rows of a scan without a table. Each item is everything that was read since the last one."""
        scan = _Scan(node, self._open_queue(node), self._cores, self._errors, self._threads)
        self._scans.append(scan)
        scan.start()
        while (micro_batch := scan.micro_batch()) is not None:
            if micro_batch:
                yield micro_batch
            else:
                await asyncio.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Tell the threads to stop. Each does so at its next batch."""
        for scan in self._scans:
            scan.close()

    async def wait_closed(self) -> None:
        """Wait for the threads to stop, but not long: one may be in a call that cannot be interrupted."""
        deadline = time.monotonic() + _END_SECONDS
        try:
            while any(scan.busy for scan in self._scans) and time.monotonic() < deadline:
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            self._threads.leave(self._admitted)
            self._admitted = 0


class _Scan:
    """One fed scan. The first stream that is read starts it, so a scan that DataFusion skips costs nothing."""

    def __init__(
        self,
        node: FeedInput,
        split_queue: SplitQueue,
        readers: int,
        errors: list[Exception],
        engine_threads: EngineThreads,
    ) -> None:
        self._attributes = distinct(node.output)
        self._reader: SplitReader = reader_of(node.plan)
        self._columns = [attribute.name for attribute in self._attributes]
        self.schema = read_schema(node.output)
        # The filters of file scans are part of the plan of a split.
        self._filters: Sequence[Expression] = ()
        if isinstance(node.plan, SourceScan):
            names = dict(zip((a.id for a in node.output), node.plan.columns, strict=True))
            self._columns = [names[attribute.id] for attribute in self._attributes]
            self.schema = arrow_schema(node.output)
            self._filters = node.plan.filters
        self._split_queue = split_queue
        self._errors = errors
        self._queue = BatchQueue(_QUEUE_BYTES, readers)
        self._threads = [
            threading.Thread(target=self._read, name=f"volley-read-{node.feed}-{number}", daemon=True)
            for number in range(readers)
        ]
        self._engine_threads = engine_threads
        self._lock = threading.Lock()
        self._streams = 0
        self._reads_files = not isinstance(node.plan, SourceScan)
        self._reading = False
        """Only a hint: with several readers, the last one that sets it wins."""

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def micro_batch(self) -> list[pa.RecordBatch] | None:
        """All batches that are ready, without waiting. None at the end."""
        found: list[pa.RecordBatch] = []
        while (batch := self._queue.get(0)) is not None and batch is not NOTHING:
            found.append(batch)
        return None if batch is None and not found else found

    def batches(self) -> Iterator[pa.RecordBatch]:
        with self._lock:
            self._streams += 1
            if self._streams == 1:
                self._engine_threads.hold()
                self.start()
            elif self._streams > len(self._threads):
                raise QueryError("a scan was read twice, but its rows were consumed by the first read.")
            elif not self._engine_threads.try_hold():
                return
        nothing = empty_batch(self.schema)
        try:
            while True:
                item = self._queue.get(_READING_SECONDS if self._reading else _TURN_SECONDS)
                if item is None:
                    return
                yield nothing if item is NOTHING else item
        finally:
            self._engine_threads.release()

    def close(self) -> None:
        self._split_queue.close()
        self._queue.close()

    @property
    def busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _read(self) -> None:
        try:
            while (split := self._split_queue.take()) is not None:
                for batch in self._reader.read(split, self._columns, self._filters):
                    self._reading = self._reads_files
                    self._queue.put(conform(batch, self._attributes, self.schema))
                self._reading = False
                self._split_queue.mark_read()
        except Stopped:
            pass
        except Exception as error:
            self._errors.append(error)
            self._queue.fail(error)
        finally:
            self._queue.end_reader()


def conform(batch: pa.RecordBatch, attributes: Sequence[Attribute], schema: pa.Schema) -> pa.RecordBatch:
    """Give a reader's batch the column names and types of the plan."""
    if not isinstance(batch, pa.RecordBatch):
        raise TypeError(f"a reader returned {type(batch).__name__} instead of a record batch")
    if batch.num_columns != len(attributes):
        raise TypeError(f"a reader returned {batch.num_columns} columns instead of {len(attributes)}")
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return make_batch(columns, schema, batch.num_rows)
