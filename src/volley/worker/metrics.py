# SPDX-License-Identifier: Apache-2.0
"""The metrics of a worker daemon. They contain numbers and codes only; docs/metrics.md lists them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from volley.events import LATENCY_BOUNDS, Distance, FetchMetrics
from volley.process.allocator import resident_bytes
from volley.process.metrics_server import Gauges, gauge
from volley.rpc.control import Health
from volley.rpc.messages import Failure, TaskDone, TaskFailure
from volley.worker.budget import WorkerBudget

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


class WorkerMetrics:
    """Counts the attempts of one worker. `registry` is what Prometheus reads."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()

        def count(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"volley_worker_{name}", meaning, labels, registry=registry)

        self._attempts = count("attempts", "Attempts at tasks that ended.", "outcome")
        self._failures = count("attempt_failures", "Attempts that failed.", "code")
        self._seconds = Histogram(
            "volley_worker_attempt_seconds",
            "Seconds of attempts that finished.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._rows = count("output_rows", "Rows that finished attempts produced.")
        self._bytes = count("output_bytes", "Bytes that finished attempts produced.")
        self._fetched = count(
            "fetched_bytes", "Bytes that attempts read from other stages, by distance.", "distance"
        )
        for distance in Distance:
            self._fetched.labels(distance.value)
        self._transferred = count("transferred_bytes", "The same, as they were read: perhaps compressed.")
        self._fetch_retries = count("fetch_retries", "Requests for these bytes that were tried again.")
        self._latencies = _Latencies()
        registry.register(self._latencies)
        self._wait = count("fetch_wait_seconds", "Seconds that streams of attempts waited for these bytes.")
        self._spilled = count("spilled_bytes", "Bytes spilled to disk for lack of memory.", "what")

    def observe(self, outcome: TaskDone | TaskFailure) -> None:
        """An attempt has ended."""
        if isinstance(outcome, TaskFailure):
            is_cancelled = outcome.failure is Failure.CANCELLED
            self._attempts.labels("cancelled" if is_cancelled else "failed").inc()
            if not is_cancelled:
                self._failures.labels(outcome.code).inc()
            return
        metrics = outcome.metrics
        self._attempts.labels("finished").inc()
        self._seconds.observe(metrics.seconds)
        self._rows.inc(metrics.rows)
        self._bytes.inc(metrics.size_bytes)
        for fetch in metrics.fetches:
            self._fetched.labels(Distance.LOCAL.value).inc(fetch.local_bytes)
            self._fetched.labels(Distance.HOST.value).inc(fetch.host_bytes)
            self._fetched.labels(Distance.REMOTE.value).inc(fetch.remote_bytes)
            self._transferred.inc(fetch.transferred_bytes)
            self._fetch_retries.inc(fetch.retries)
            self._latencies.add(fetch)
        self._wait.inc(metrics.fetch_wait_seconds)
        self._spilled.labels("operators").inc(metrics.operator_spilled_bytes)
        self._spilled.labels("exchanges").inc(metrics.shuffle_spilled_bytes)

    def watch(self, health: Callable[[], Health], budget: WorkerBudget) -> None:
        """Add gauges that are read at each scrape."""
        self.registry.register(_State(health, budget))


class _Latencies(Collector):
    """The histogram of the first answers to requests, out of the buckets that tasks counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * (len(LATENCY_BOUNDS) + 1)

    def add(self, fetch: FetchMetrics) -> None:
        with self._lock:
            self._counts = [ours + theirs for ours, theirs in zip(self._counts, fetch.latencies, strict=True)]

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            totals = list(accumulate(self._counts))
        found = HistogramMetricFamily(
            "volley_worker_fetch_latency_seconds",
            "Seconds to the first answer to a request for exchanged data.",
        )
        bounds = [*map(str, LATENCY_BOUNDS), "+Inf"]
        found.add_metric([], list(zip(bounds, totals, strict=True)), sum_value=None)
        yield found


class _State(Gauges):
    def __init__(self, health: Callable[[], Health], budget: WorkerBudget) -> None:
        self._health = health
        self._budget = budget

    def values(self) -> Iterator[Metric]:
        health = self._health()
        yield gauge("volley_worker_draining", "1 while the worker drains.", int(health.status == "draining"))
        yield gauge("volley_worker_running_attempts", "Attempts that run.", health.running)
        yield gauge("volley_worker_reserved_slots", "Slots that wait for their attempt.", health.reserved)
        yield gauge("volley_worker_slots", "Attempts that it runs at a time.", health.slots)
        yield gauge("volley_worker_drivers", "Drivers that are connected.", health.drivers)
        yield gauge("volley_worker_held_bytes", "Bytes of exchanged data that it holds.", health.held_bytes)
        limits = GaugeMetricFamily("volley_worker_memory_limit_bytes", "Memory by pool.", labels=["pool"])
        limits.add_metric(["shuffle"], self._budget.shuffle_bytes)
        limits.add_metric(["operators"], self._budget.operators_bytes)
        limits.add_metric(["headroom"], self._budget.headroom_bytes)
        yield limits
        yield gauge("volley_worker_resident_bytes", "Resident memory of the process.", resident_bytes())
        yield gauge("volley_worker_uptime_seconds", "Seconds since it started.", health.uptime_seconds)
