# SPDX-License-Identifier: Apache-2.0
"""The metrics of a shuffle server. They contain numbers only; docs/metrics.md lists them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from volley.process.metrics_server import Gauges, counter, gauge
from volley.shuffle.service.server_state import ShuffleServerState

# By the name of the count.
_COUNTERS = {
    "chunks_pushed": ("pushed_chunks", "Chunks received."),
    "chunks_repeated": ("repeated_chunks", "Chunks received again and discarded."),
    "bytes_pushed": ("pushed_bytes", "Bytes of chunks received."),
    "bytes_read": ("read_bytes", "Bytes of chunks sent to readers."),
    "blocks_read": ("read_blocks", "Blocks sent to readers."),
    "commits": ("commits", "Attempts committed."),
    "refusals": ("refusals", "Calls refused."),
    "reservations_deferred": ("deferred_reservations", "Reservations that had to wait for room."),
    "leases_expired": ("expired_leases", "Queries removed because their lease expired."),
}


def service_registry(server_state: ShuffleServerState) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_ServiceMetrics(server_state))
    return registry


class _ServiceMetrics(Gauges):
    def __init__(self, server_state: ShuffleServerState) -> None:
        self._state = server_state

    def values(self) -> Iterator[Metric]:
        for count, (name, meaning) in _COUNTERS.items():
            yield counter(f"volley_shuffle_{name}", meaning, self._state.counts[count])
        spilled = self._state.spilled_bytes
        yield counter("volley_shuffle_spilled_bytes", "Bytes moved from memory to files.", spilled)
        health = self._state.health()
        draining = int(health.status == "draining")
        yield gauge("volley_shuffle_draining", "1 while the server drains.", draining)
        yield gauge("volley_shuffle_applications", "Applications with queries here.", health.applications)
        yield gauge("volley_shuffle_queries", "Queries that have data here.", health.queries)
        yield gauge("volley_shuffle_held_bytes", "Bytes stored and reserved.", health.held_bytes)
        yield gauge(
            "volley_shuffle_memory_bytes", "Bytes stored and reserved in memory.", health.memory_bytes
        )
        yield gauge("volley_shuffle_memory_limit_bytes", "Memory limit.", health.memory_limit_bytes)
        yield gauge("volley_shuffle_disk_bytes", "Bytes in files.", health.disk_bytes)
        yield gauge("volley_shuffle_uptime_seconds", "Seconds since it started.", health.uptime_seconds)
