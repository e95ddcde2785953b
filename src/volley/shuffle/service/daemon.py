# SPDX-License-Identifier: Apache-2.0
"""The lifecycle of `volley shuffle-service`: recover, listen, serve, drain, stop.

SIGTERM drains it: it takes no new attempts, and serves its data until the queries end, other servers have it, or the
drain times out. However it ends, committed data stays in its directories, and the next server that starts there serves
it again.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from volley.process.metrics_server import MetricsServer
from volley.rpc.addresses import address_of, reachable_name
from volley.rpc.server import listen
from volley.security import Security
from volley.shuffle.service.metrics import service_registry
from volley.shuffle.service.replication import Replicator
from volley.shuffle.service.server import ShuffleServer
from volley.shuffle.service.server_state import ShuffleServerSettings, ShuffleServerState

_STOP_SECONDS = 5.0
_DRAIN_STEP_SECONDS = 0.1


@dataclass(frozen=True)
class ServiceSettings:
    """`advertise` is the host name by which others reach this one; without `metrics_port` there are no metrics."""

    host: str
    port: int
    server_state: ShuffleServerSettings
    advertise: str = ""
    metrics_port: int | None = None
    drain_seconds: float = 30.0
    require_client_certificate: bool = False
    insecure: bool = False


class ServiceDaemon:
    """A shuffle server, serving from construction until `close`."""

    def __init__(self, settings: ServiceSettings, security: Security) -> None:
        self._settings = settings
        name = reachable_name(settings.host, settings.advertise)
        self._server = listen(
            ShuffleServer,
            settings.host,
            settings.port,
            security,
            require_client_certificate=settings.require_client_certificate,
            insecure=settings.insecure,
        )
        self.address = address_of(name, self._server.port)
        self.server_state = ShuffleServerState(f"shuffle server {self.address}", settings.server_state)
        self._stopped = threading.Event()
        self._leases = threading.Thread(target=self._expire, name="volley-leases", daemon=True)
        self._leases.start()
        self._metrics = (
            None
            if settings.metrics_port is None
            else MetricsServer(settings.host, settings.metrics_port, service_registry(self.server_state))
        )
        self._replicator = Replicator(self.server_state, security)
        self._server.serve(self.server_state, self._replicator)

    @property
    def metrics_port(self) -> int | None:
        return self._metrics.port if self._metrics else None

    def drain(self, hurry: threading.Event) -> None:
        self.server_state.drain()
        deadline = time.monotonic() + self._settings.drain_seconds
        # Drivers see that it leaves when they renew their leases, and others take what it has.
        while time.monotonic() < deadline and not self._replicator.has_moved_all():
            if hurry.wait(_DRAIN_STEP_SECONDS):
                return

    def close(self) -> None:
        self._stopped.set()
        if self._metrics:
            self._metrics.close()
        shutdown = threading.Thread(target=self._server.shutdown, daemon=True)
        shutdown.start()
        shutdown.join(_STOP_SECONDS)
        self._leases.join()
        self._replicator.close()
        self.server_state.close()

    def _expire(self) -> None:
        step_seconds = min(1.0, self._settings.server_state.lease_seconds / 4)
        looked = time.monotonic()
        while not self._stopped.wait(step_seconds):
            late_seconds = time.monotonic() - looked - step_seconds
            looked = time.monotonic()
            if late_seconds > step_seconds:
                self.server_state.extend_leases(late_seconds)
            self.server_state.expire()
