# SPDX-License-Identifier: Apache-2.0
"""The metrics of a shuffle server in the text format of Prometheus. They contain numbers only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from volley.errors import ConfigError
from volley.shuffle.service.server_state import ShuffleServerState

_COUNTERS = {
    "chunks_pushed": "Chunks received.",
    "chunks_repeated": "Chunks received again and discarded.",
    "bytes_pushed": "Bytes of chunks received.",
    "bytes_read": "Bytes of chunks sent to readers.",
    "blocks_read": "Blocks sent to readers.",
    "commits": "Attempts committed.",
    "refusals": "Calls refused.",
    "reservations_deferred": "Reservations that had to wait for room.",
    "leases_expired": "Queries removed because their lease expired.",
}


def metrics_text(server_state: ShuffleServerState) -> str:
    return "\n".join(_lines(server_state)) + "\n"


def _lines(server_state: ShuffleServerState) -> Iterator[str]:
    for name, meaning in _COUNTERS.items():
        yield from _metric(f"{name}_total", "counter", meaning, server_state.counts[name])
    yield from _metric(
        "spilled_bytes_total", "counter", "Bytes moved from memory to files.", server_state.spilled_bytes
    )
    health = server_state.health()
    yield from _metric("draining", "gauge", "1 while the server drains.", int(health.status == "draining"))
    yield from _metric("applications", "gauge", "Applications that have queries here.", health.applications)
    yield from _metric("queries", "gauge", "Queries that have data here.", health.queries)
    yield from _metric("held_bytes", "gauge", "Bytes stored and reserved.", health.held_bytes)
    yield from _metric("memory_bytes", "gauge", "Bytes stored and reserved in memory.", health.memory_bytes)
    yield from _metric("memory_limit_bytes", "gauge", "Memory limit.", health.memory_limit_bytes)
    yield from _metric("disk_bytes", "gauge", "Bytes in files.", health.disk_bytes)
    yield from _metric("uptime_seconds", "gauge", "Seconds since the server started.", health.uptime_seconds)


def _metric(name: str, kind: str, meaning: str, value: float) -> Iterator[str]:
    full = f"volley_shuffle_{name}"
    yield f"# HELP {full} {meaning}"
    yield f"# TYPE {full} {kind}"
    yield f"{full} {value:.17g}"


class MetricsServer:
    """Answers `GET /metrics` from construction until `close`. It ignores everything else in a request."""

    def __init__(self, host: str, port: int, server_state: ShuffleServerState) -> None:
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(lambda: metrics_text(server_state)))
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port} for metrics: {error}.") from error
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="volley-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(text: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            body = text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Do not log: a line per scrape would be noise."""

    return Handler
