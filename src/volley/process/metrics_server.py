# SPDX-License-Identifier: Apache-2.0
"""Serves the metrics of a process to Prometheus: numbers and codes only, without a token, over plain HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from volley.errors import ConfigError


class MetricsServer:
    """Answers `GET /metrics` from construction until `close`."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port} for metrics: {error}.") from error
        self.port: int = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Gauges(Collector):
    """Values that are read at each scrape. Subclasses yield them from `values`."""

    def values(self) -> Iterable[Metric]:
        raise NotImplementedError

    def collect(self) -> Iterator[Metric]:
        yield from self.values()

    def describe(self) -> Iterator[Metric]:
        """Nothing: Prometheus calls it at registration, before there are values to read."""
        return iter(())


def gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(name, meaning, value=value)


def counter(name: str, meaning: str, value: float) -> Metric:
    return CounterMetricFamily(name, meaning, value=value)
