# SPDX-License-Identifier: Apache-2.0
"""Measures how much a task reads from other stages, and how long it waits for that."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from volley.fetch_counters import FetchCounters, counting_into
from volley.process.tracing import start_span
from volley.rpc.messages import TaskDone
from volley.shuffle.base import Block


class Readable(Protocol):
    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]: ...


class FetchMeter:
    """What one task reads, by stage. Its streams read on threads of their own."""

    def __init__(self) -> None:
        self.traceparent = ""
        """The parent of the spans of its streams."""
        self._lock = threading.Lock()
        self._counters: dict[int, FetchCounters] = {}

    def measure(self, store: Readable, stage: int) -> Readable:
        """The store, for the output of `stage`, with what is read from it counted here."""
        with self._lock:
            counters = self._counters.setdefault(stage, FetchCounters())
        return _MeteredStore(store, self, counters)

    def add_to(self, done: TaskDone) -> TaskDone:
        with self._lock:
            fetches = tuple(self._counters[stage].metrics(stage) for stage in sorted(self._counters))
        return replace(done, metrics=replace(done.metrics, fetches=fetches))


class _MeteredStore:
    def __init__(self, store: Readable, fetched: FetchMeter, counters: FetchCounters) -> None:
        self._store = store
        self._fetched = fetched
        self._counters = counters

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        size_bytes, wait_seconds = 0, 0.0
        with start_span("volley.fetch", parent=self._fetched.traceparent) as span:
            batches = iter(self._store.read_many(blocks))
            while True:
                asked = time.perf_counter()
                with counting_into(self._counters):
                    batch = next(batches, None)
                waited = time.perf_counter() - asked
                if batch is None:
                    break
                self._counters.count_batch(batch.nbytes, waited)
                size_bytes, wait_seconds = size_bytes + batch.nbytes, wait_seconds + waited
                yield batch
            span.set(blocks=len(blocks), size_bytes=size_bytes, wait_seconds=wait_seconds)
