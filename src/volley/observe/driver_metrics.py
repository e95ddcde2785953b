# SPDX-License-Identifier: Apache-2.0
"""The metrics of a driver, if `spark.volley.metrics.port` is set: what its queries did. docs/metrics.md lists them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from volley.config import Config
from volley.errors import ConfigError
from volley.observe.report import QueryReport
from volley.process.metrics_server import MetricsServer
from volley.process.runtime import Phase, Shared
from volley.rpc.message_counts import messages_by_action

_log = logging.getLogger(__name__)

_SECONDS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)


class DriverMetrics:
    """Counts the queries of this process, and serves the counts."""

    def __init__(self, host: str, port: int) -> None:
        registry = CollectorRegistry()

        def count(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"volley_{name}", meaning, labels, registry=registry)

        self._queries = count("queries", "Actions that ended.", "engine", "outcome")
        self._reasons = count("fallback_reasons", "Queries that were not all native, by reason.", "reason")
        self._errors = count("query_errors", "Actions without an answer, by code.", "code")
        self._seconds = Histogram(
            "volley_query_seconds", "Seconds of actions.", ["engine"], buckets=_SECONDS, registry=registry
        )
        self._parts = count("query_part_seconds", "Seconds by part: planning, capture, execution.", "part")
        self._stages = count("stage_seconds", "Seconds of native stages.")
        self._rows = count("result_rows", "Rows of answers.")
        self._attempts = count("native_attempts", "Attempts at native tasks.")
        self._retries = count("native_retries", "Attempts beyond the first at a task.")
        self._exchanged = count("exchanged_bytes", "Bytes that stages passed on.")
        self._spilled = count("query_spilled_bytes", "Bytes spilled to disk for lack of memory.", "what")
        registry.register(_Messages())
        self._server: MetricsServer | None = None
        try:
            self._server = MetricsServer(host, port, registry)
        except ConfigError as error:
            # Another driver uses the port. Queries must run without metrics then.
            _log.warning("no metrics of this driver: %s", error.message)

    @property
    def port(self) -> int | None:
        return self._server.port if self._server else None

    def observe(self, report: QueryReport) -> None:
        self._queries.labels(report.engine, report.outcome).inc()
        for reason in {str(reason.reason) for reason in report.reasons}:
            self._reasons.labels(reason).inc()
        if report.error is not None:
            self._errors.labels(report.error.code).inc()
        self._seconds.labels(report.engine).observe(report.seconds)
        self._parts.labels("planning").inc(report.planning_seconds)
        self._parts.labels("capture").inc(report.capture_seconds)
        self._parts.labels("execution").inc(max(0.0, report.execution_seconds))
        self._rows.inc(report.rows)
        self._attempts.inc(report.native_tasks)
        self._exchanged.inc(report.shuffle_bytes)
        for stage in report.stages:
            self._stages.inc(stage.seconds)
            self._retries.inc(max(0, stage.attempts - stage.tasks))
            self._spilled.labels("operators").inc(stage.operator_spilled_bytes)
            self._spilled.labels("exchanges").inc(stage.shuffle_spilled_bytes)

    def close(self) -> None:
        if self._server:
            self._server.close()


class _Messages(Collector):
    """The control messages of this process, which are counted anyway."""

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(
            "volley_control_messages", "Control messages sent to workers.", labels=["action"]
        )
        for action, sent in sorted(messages_by_action().items()):
            family.add_metric([action], sent.messages)
        yield family


_served: Shared[tuple[str, int], DriverMetrics] = Shared(Phase.CONNECTIONS, close=DriverMetrics.close)


def driver_metrics(config: Config) -> DriverMetrics | None:
    """The metrics of this process, served from the first query on; None if the option is not set."""
    if config.metrics_port is None:
        return None
    host, port = config.metrics_host, config.metrics_port
    return _served.get((host, port), lambda: DriverMetrics(host, port))
