# SPDX-License-Identifier: Apache-2.0
"""Reports what moved between stages and how long that took: one report per stage with readers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from volley.events import LATENCY_BOUNDS, Event, FetchMetrics, TaskFinished


@dataclass(frozen=True)
class ExchangeReport:
    """The output of a stage, and how the stages in `read_by` got it, over all attempts that finished.

    Sizes are those of the rows in memory. `fetched_local_bytes` came from the task's own process,
    `fetched_host_bytes` from another one on the same host and `fetched_remote_bytes` from elsewhere; all of that was
    read as `transferred_bytes`, so `compression_ratio` is how many times smaller it was then. Streams waited
    `wait_seconds` in all. The latency of a request is the time to its first answer; percentiles are upper bounds.
    """

    read_by: tuple[int, ...] = ()
    written_bytes: int = 0
    spilled_bytes: int = 0
    fetched_local_bytes: int = 0
    fetched_host_bytes: int = 0
    fetched_remote_bytes: int = 0
    transferred_bytes: int = 0
    wait_seconds: float = 0.0
    requests: int = 0
    retries: int = 0
    latency_p50_seconds: float = 0.0
    latency_p95_seconds: float = 0.0
    latency_max_seconds: float = 0.0

    @property
    def fetched_bytes(self) -> int:
        return self.fetched_local_bytes + self.fetched_host_bytes + self.fetched_remote_bytes

    @property
    def compression_ratio(self) -> float:
        """1.0 if nothing was transferred."""
        return self.fetched_bytes / self.transferred_bytes if self.transferred_bytes else 1.0

    def __str__(self) -> str:
        return (
            f"exchange: {self.written_bytes:,} bytes written, {self.fetched_bytes:,} fetched "
            f"({self.fetched_local_bytes:,} local, {self.fetched_host_bytes:,} on this host, "
            f"{self.fetched_remote_bytes:,} remote), waited {self.wait_seconds:.3f} s"
            + (
                f", {self.requests} requests (p50 {self.latency_p50_seconds * 1000:.0f} ms, "
                f"p95 {self.latency_p95_seconds * 1000:.0f} ms, max {self.latency_max_seconds * 1000:.0f} ms)"
                if self.requests
                else ""
            )
            + (f", {self.retries} retries" if self.retries else "")
            + (
                f", compressed {self.compression_ratio:.1f} times"
                if self.transferred_bytes and self.compression_ratio > 1.05
                else ""
            )
        )


def exchange_reports(events: Iterable[Event]) -> dict[int, ExchangeReport]:
    """By the number of the stage that wrote it."""
    fetched: dict[int, list[FetchMetrics]] = {}
    readers: dict[int, set[int]] = {}
    written: dict[int, tuple[int, int]] = {}
    for event in events:
        if isinstance(event, TaskFinished):
            stage = event.attempt.task.stage.stage
            size_bytes, spilled_bytes = written.get(stage, (0, 0))
            written[stage] = (
                size_bytes + event.metrics.size_bytes,
                spilled_bytes + event.metrics.shuffle_spilled_bytes,
            )
            for fetch in event.metrics.fetches:
                fetched.setdefault(fetch.stage, []).append(fetch)
                readers.setdefault(fetch.stage, set()).add(stage)
    return {
        stage: replace(
            _sum(fetches),
            read_by=tuple(sorted(readers[stage])),
            written_bytes=written.get(stage, (0, 0))[0],
            spilled_bytes=written.get(stage, (0, 0))[1],
        )
        for stage, fetches in fetched.items()
    }


def _sum(fetches: Sequence[FetchMetrics]) -> ExchangeReport:
    latencies = [sum(counts) for counts in zip(*(fetch.latencies for fetch in fetches), strict=True)]
    longest = max(fetch.max_latency_seconds for fetch in fetches)
    return ExchangeReport(
        fetched_local_bytes=sum(fetch.local_bytes for fetch in fetches),
        fetched_host_bytes=sum(fetch.host_bytes for fetch in fetches),
        fetched_remote_bytes=sum(fetch.remote_bytes for fetch in fetches),
        transferred_bytes=sum(fetch.transferred_bytes for fetch in fetches),
        wait_seconds=sum(fetch.wait_seconds for fetch in fetches),
        requests=sum(latencies),
        retries=sum(fetch.retries for fetch in fetches),
        latency_p50_seconds=_percentile(latencies, 0.5, longest),
        latency_p95_seconds=_percentile(latencies, 0.95, longest),
        latency_max_seconds=longest,
    )


def _percentile(latencies: Sequence[int], share: float, longest: float) -> float:
    """The upper bound of the bucket in which this share of the requests is reached."""
    wanted, seen = share * sum(latencies), 0
    for bound, count in zip((*LATENCY_BOUNDS, longest), latencies, strict=True):
        seen += count
        if count and seen >= wanted:
            return min(bound, longest)
    return 0.0
