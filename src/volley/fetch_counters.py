# SPDX-License-Identifier: Apache-2.0
"""Counts what one task fetches from one exchange: bytes by distance, latencies of requests, retries.

A store reads on threads of its own. It takes `current_fetch_counters()` when a read begins and reports to that.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from volley.events import LATENCY_BOUNDS, Distance, FetchMetrics


class FetchCounters:
    """May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fetched_bytes: Counter[Distance] = Counter()
        self._transferred_bytes = 0
        self._wait_seconds = 0.0
        self._total_bytes = 0
        self._retries = 0
        self._latencies = [0] * (len(LATENCY_BOUNDS) + 1)
        self._max_latency_seconds = 0.0

    def count_batch(self, size_bytes: int, wait_seconds: float) -> None:
        """A stream of the task got a batch after waiting for it."""
        with self._lock:
            self._total_bytes += size_bytes
            self._wait_seconds += wait_seconds

    def count_data(self, distance: Distance, size_bytes: int, transferred_bytes: int) -> None:
        """A store has read rows of this size, as so many bytes."""
        with self._lock:
            self._fetched_bytes[distance] += size_bytes
            self._transferred_bytes += transferred_bytes

    def count_request(self, seconds: float) -> None:
        """A request got its first answer after so long."""
        with self._lock:
            self._latencies[bisect_left(LATENCY_BOUNDS, seconds)] += 1
            self._max_latency_seconds = max(self._max_latency_seconds, seconds)

    def count_retry(self) -> None:
        with self._lock:
            self._retries += 1

    def metrics(self, stage: int) -> FetchMetrics:
        """What was read of the output of `stage`."""
        with self._lock:
            known = sum(self._fetched_bytes.values())
            return FetchMetrics(
                stage,
                local_bytes=self._fetched_bytes[Distance.LOCAL],
                host_bytes=self._fetched_bytes[Distance.HOST],
                # Stores of other packages do not say how far their rows came.
                remote_bytes=self._fetched_bytes[Distance.REMOTE] + max(0, self._total_bytes - known),
                transferred_bytes=self._transferred_bytes,
                wait_seconds=self._wait_seconds,
                retries=self._retries,
                latencies=tuple(self._latencies),
                max_latency_seconds=self._max_latency_seconds,
            )


_reading = threading.local()


def current_fetch_counters() -> FetchCounters:
    """The counters of the task for which this thread reads. If there is none, they are counted for nobody."""
    return getattr(_reading, "counters", None) or FetchCounters()


@contextmanager
def counting_into(counters: FetchCounters) -> Iterator[None]:
    """What this thread reads counts for `counters`."""
    before = getattr(_reading, "counters", None)
    _reading.counters = counters
    try:
        yield
    finally:
        _reading.counters = before
