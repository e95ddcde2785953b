# SPDX-License-Identifier: Apache-2.0
"""How much a task reads from other stages, and how long it waits for that."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from volley.rpc.messages import TaskDone
from volley.shuffle.base import Block
from volley.tracing import start_span


class Readable(Protocol):
    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]: ...


class Fetched:
    """Counts over all streams of one task, which read on threads of their own."""

    def __init__(self) -> None:
        self.traceparent = ""
        """The parent of the spans of its streams."""
        self._lock = threading.Lock()
        self._size_bytes = 0
        self._wait_seconds = 0.0

    def measure(self, store: Readable) -> Readable:
        """The store, with what is read from it counted here."""
        return _Measured(store, self)

    def add_to(self, done: TaskDone) -> TaskDone:
        with self._lock:
            metrics = replace(
                done.metrics, fetched_bytes=self._size_bytes, fetch_wait_seconds=self._wait_seconds
            )
        return replace(done, metrics=metrics)

    def count(self, size_bytes: int, wait_seconds: float) -> None:
        with self._lock:
            self._size_bytes += size_bytes
            self._wait_seconds += wait_seconds


class _Measured:
    def __init__(self, store: Readable, fetched: Fetched) -> None:
        self._store = store
        self._fetched = fetched

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        size_bytes, wait_seconds = 0, 0.0
        with start_span("volley.fetch", parent=self._fetched.traceparent) as span:
            batches = iter(self._store.read_many(blocks))
            while True:
                asked = time.perf_counter()
                batch = next(batches, None)
                waited = time.perf_counter() - asked
                if batch is None:
                    break
                self._fetched.count(batch.nbytes, waited)
                size_bytes, wait_seconds = size_bytes + batch.nbytes, wait_seconds + waited
                yield batch
            span.set(blocks=len(blocks), size_bytes=size_bytes, wait_seconds=wait_seconds)
