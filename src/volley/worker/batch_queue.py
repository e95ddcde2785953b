# SPDX-License-Identifier: Apache-2.0
"""The queues through which threads of a task give batches to DataFusion's streams."""

from __future__ import annotations

import threading
from collections import deque

import pyarrow as pa

from volley.batches import empty_batch
from volley.worker.split_queue import Stopped

NOTHING = empty_batch(pa.schema([]))
"""What a queue returns if no batch came in time."""


class BatchQueue:
    """A queue between reader threads and streams, bounded in bytes. A batch over the limit is queued alone."""

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
        """The next batch, `NOTHING` if none came in time, None at the end."""
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
            return NOTHING if self._readers and not self._closed else None

    def fail(self, error: Exception) -> None:
        with self._changed:
            self._error = self._error or error
            self._closed = True
            self._changed.notify_all()

    def end_reader(self) -> None:
        with self._changed:
            self._readers -= 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class PartitionQueue:
    """Queues of partitions, which are filled `width` at a time and read one after the other.

    Threads take the partitions in their order, so the one that is read is always being filled.
    """

    def __init__(self, limit_bytes: int, partitions: int, width: int) -> None:
        self._queues = [BatchQueue(limit_bytes // width, 1) for _ in range(partitions)]
        self._width = width
        self._read = 0
        self._closed = False
        self._changed = threading.Condition()

    def of(self, number: int) -> BatchQueue:
        """The queue of a partition, when it is near enough to those that are read."""
        with self._changed:
            while not self._closed and number >= self._read + self._width:
                self._changed.wait()
        return self._queues[number]

    def get(self, timeout_seconds: float) -> pa.RecordBatch | None:
        """As of a `BatchQueue`."""
        while self._read < len(self._queues):
            batch = self._queues[self._read].get(timeout_seconds)
            if batch is not None:
                return batch
            with self._changed:
                self._read += 1
                self._changed.notify_all()
        return None

    def fail(self, error: Exception) -> None:
        for queue in self._queues:
            queue.fail(error)
        self._end_waiting()

    def close(self) -> None:
        for queue in self._queues:
            queue.close()
        self._end_waiting()

    def _end_waiting(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
