# SPDX-License-Identifier: Apache-2.0
"""Reads several parts of a scan at a time, on threads, and gives their batches in order.

    part 0   ---- batches ---->  a queue for each part,   ---->  one stream, in the order of the parts
    part 1   ---- batches ---->  bounded by bytes
    part 2   waits for a place

Requests to an object store take long and overlap well, and the threads of the engine must not wait for them. Every part
has its own thread and its own queue: parts that wait for their turn are never in the way of the one whose turn it is.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from itertools import islice

import pyarrow as pa

Batches = Generator[pa.RecordBatch, None, None]

# Some operators let the engine's thread do other work when they get an empty batch.
_TURN_SECONDS = 0.01


def read_ahead(
    parts: Iterable[Callable[[], Batches]], count: int, queue_bytes: int, nothing: pa.RecordBatch
) -> Batches:
    """Yield the batches of all parts in order, with `nothing` after a while without any.

    Up to `count` parts are read at a time, each at most about `queue_bytes` ahead. Raises the error of a part when its
    turn has come.
    """
    remaining = iter(parts)
    reading: deque[_Part] = deque(_Part(read, queue_bytes) for read in islice(remaining, count))
    try:
        while reading:
            first = reading[0]
            while (batch := first.take(_TURN_SECONDS)) is not None:
                yield nothing if batch is _NOT_YET else batch
            reading.popleft()
            reading.extend(_Part(read, queue_bytes) for read in islice(remaining, 1))
    finally:
        for part in reading:
            part.stop()


_NOT_YET = pa.record_batch({"not yet": pa.nulls(0)})


class _Part:
    """A part that is being read, on a thread of its own. One thread takes its batches."""

    def __init__(self, read: Callable[[], Batches], queue_bytes: int) -> None:
        self._read = read
        self._queue_bytes = queue_bytes
        self._changed = threading.Condition()
        self._batches: deque[pa.RecordBatch] = deque()
        self._held_bytes = 0
        self._ended = self._stopped = False
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="volley-read-ahead", daemon=True).start()

    def take(self, seconds: float) -> pa.RecordBatch | None:
        """The next batch, `_NOT_YET` if there is none in time, or None at the end. Raises the error of the part."""
        with self._changed:
            if not self._batches and not self._ended:
                self._changed.wait(seconds)
            if self._batches:
                batch = self._batches.popleft()
                self._held_bytes -= batch.nbytes
                self._changed.notify_all()
                return batch
            if not self._ended:
                return _NOT_YET
            if self._error is not None:
                raise self._error
            return None

    def stop(self) -> None:
        """Stop reading. The thread ends at its next batch."""
        with self._changed:
            self._stopped = True
            self._batches.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            with closing(self._read()) as batches:
                for batch in batches:
                    if not self._put(batch):
                        break
        except BaseException as error:  # for the thread that takes the batches
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _put(self, batch: pa.RecordBatch) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._held_bytes < self._queue_bytes)
            if self._stopped:
                return False
            self._batches.append(batch)
            self._held_bytes += batch.nbytes
            self._changed.notify_all()
            return True
