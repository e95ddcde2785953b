# SPDX-License-Identifier: Apache-2.0
"""The life of `volley worker`: listen, serve, drain, stop.

    start     listen, compute the hash fingerprint, start answering
    SIGTERM   drain: refuse new attempts, finish running ones, keep blocks until their queries are over
    stop      when nothing is left, at the second signal, or when the drain timeout expires

Exchanged data is in unnamed files, and a separate process removes what operators spill. So nothing stays behind,
however this process ends.
"""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from volley.errors import ConfigError
from volley.jvm.java import NOT_PERMITTED, JavaInstallation, JvmAccess
from volley.jvm.worker_jvm import JvmSettings, default_jvm_memory, end_jvms, permit_programs
from volley.lower.memory import OperatorMemory
from volley.process import foreground
from volley.process.loop import LoopThread
from volley.process.metrics_server import MetricsServer
from volley.registry.registration import RegisteredDaemon, Registration
from volley.rpc.addresses import address_of, reachable_name
from volley.rpc.control import Health
from volley.rpc.handshake import Identity
from volley.rpc.server import listen
from volley.security import Security
from volley.worker.budget import WorkerBudget
from volley.worker.drivers import LEASE_SECONDS, Drivers
from volley.worker.external_attempts import ExternalAttempts
from volley.worker.memory_guard import MemoryGuard
from volley.worker.metrics import WorkerMetrics
from volley.worker.scratch import Scratch
from volley.worker.server import ServingStore, Worker, WorkerServer
from volley.worker.slots import RESULT_BUFFER_BYTES, CodePolicy, Slots
from volley.worker.split_puller import SplitPuller
from volley.worker.stores import Stores

# How long the server may take to shut down before the daemon stops anyway.
_STOP_SECONDS = 5.0
_DRAIN_STEP_SECONDS = 0.05


class DaemonStores(Stores, Protocol):
    """The stores of a daemon, which serves the blocks of `own` to others."""

    @property
    def own(self) -> ServingStore: ...

    def close(self) -> None: ...


class ShuffleSettings(Protocol):
    """The shuffle settings that a daemon needs, and how it opens its stores."""

    @property
    def memory_fraction(self) -> float: ...

    def open_stores(
        self, address: str, memory_limit_bytes: int, directories: Sequence[Path], security: Security
    ) -> DaemonStores: ...


@dataclass(frozen=True)
class DaemonSettings:
    """`advertise` is the host by which others reach this daemon; `slots` is how many attempts it runs at once."""

    host: str
    port: int
    cores: int
    slots: int
    memory_bytes: int
    directories: tuple[Path, ...]
    shuffle: ShuffleSettings
    advertise: str = ""
    drain_seconds: float = 30.0
    lease_seconds: float = LEASE_SECONDS
    require_client_certificate: bool = False
    insecure: bool = False
    python_functions: bool = False
    """Whether it runs the pickled functions of sessions that have the token."""
    java: JavaInstallation | str | None = None
    """The Java installation that evaluates expressions of sessions with the token; a text if something is missing for
    that; None if its owner does not permit it."""
    jvm_memory_bytes: int = 0
    """The memory of that JVM, in addition to the worker's; 0: a share of the worker's."""
    metrics_port: int | None = None
    """The port of the Prometheus metrics; None: no metrics."""


class Daemon:
    """A worker that serves from construction until `close`."""

    def __init__(self, settings: DaemonSettings, security: Security) -> None:
        self._settings = settings
        name = reachable_name(settings.host, settings.advertise)
        self._server = listen(
            WorkerServer,
            settings.host,
            settings.port,
            security,
            require_client_certificate=settings.require_client_certificate,
            insecure=settings.insecure,
        )
        self.address = address_of(name, self._server.port)
        self._loop = LoopThread()
        self.budget = WorkerBudget.divide(settings.memory_bytes, settings.shuffle.memory_fraction)
        self._stores = settings.shuffle.open_stores(
            self.address, self.budget.shuffle_bytes, settings.directories, security
        )
        self._pulls = SplitPuller(self.address, security)
        self.scratch = Scratch(settings.directories)
        self._metrics = WorkerMetrics()
        self._guard = MemoryGuard(settings.memory_bytes)
        self._worker: Worker = self._loop.submit(self._make_worker()).result()
        self._metrics.watch(self._health, self.budget)
        self._metrics_server = (
            None
            if settings.metrics_port is None
            else MetricsServer(settings.host, settings.metrics_port, self._metrics.registry)
        )
        self._guard.start()
        self._server.serve(self._worker)
        self._leases: list[Future[None]] = [
            self._loop.submit(self._worker.drivers.expire_leases()),
            self._loop.submit(self._worker.external_attempts.cancel_abandoned()),
        ]

    async def _make_worker(self) -> Worker:
        settings = self._settings
        memory = OperatorMemory(self.budget.operators_bytes, self.scratch.directories, tasks=settings.slots)
        slots = Slots(
            self.address,
            settings.slots,
            settings.cores,
            self._stores,
            result_buffer_bytes=min(RESULT_BUFFER_BYTES, self.budget.headroom_bytes // 4),
            memory=memory,
            code=CodePolicy(settings.python_functions, self._permit_programs()),
            on_end=self._metrics.observe,
            is_short=lambda: self._guard.is_short,
        )
        identity = await asyncio.to_thread(Identity.of_this_process, f"worker {self.address}")
        return Worker(
            identity,
            settings.cores,
            slots,
            Drivers(slots, settings.lease_seconds),
            ExternalAttempts(slots, self._pulls),
            self._stores.own,
            self.budget,
            self._loop,
        )

    def _permit_programs(self) -> JvmAccess:
        settings = self._settings
        if settings.java is None:
            return NOT_PERMITTED
        if isinstance(settings.java, str):
            return JvmAccess(problem=settings.java)
        memory = settings.jvm_memory_bytes or default_jvm_memory(settings.memory_bytes)
        permit_programs(JvmSettings(settings.java, memory, settings.cores * settings.slots))
        return JvmAccess(settings.java.versions)

    @property
    def metrics_port(self) -> int | None:
        return self._metrics_server.port if self._metrics_server else None

    def _health(self) -> Health:
        async def ask() -> Health:
            return self._worker.health()

        return self._loop.submit(ask()).result()

    def drain(self, hurry: threading.Event) -> None:
        """Accept nothing new. Returns when nothing is left, when `hurry` is set or after the drain timeout."""
        self._loop.submit(self._drain()).result()
        deadline = time.monotonic() + self._settings.drain_seconds
        while time.monotonic() < deadline and not self._loop.submit(self._is_empty()).result():
            if hurry.wait(_DRAIN_STEP_SECONDS):
                return

    def close(self) -> None:
        """Stop serving. Pending calls are answered; running attempts are cancelled."""
        self._guard.close()
        for lease in self._leases:
            lease.cancel()
        if self._metrics_server:
            self._metrics_server.close()
        shutdown = threading.Thread(target=self._server.shutdown, daemon=True)
        shutdown.start()
        self._loop.close()
        self._pulls.close()
        end_jvms()
        shutdown.join(_STOP_SECONDS)
        self._stores.close()
        self.scratch.close()

    async def _drain(self) -> None:
        self._worker.slots.drain()
        self._worker.drivers.wake()

    async def _is_empty(self) -> bool:
        return self._worker.slots.idle and not self._worker.store.held_bytes


def serve(
    daemon: Daemon,
    announce: Callable[[], None],
    parent: int | None = None,
    registration: Registration | None = None,
) -> None:
    """Run a worker in the foreground of this process, until a signal ends it and its registration."""
    raise_file_limit()
    # All temporary files of this process go to the scratch directory, which is removed with it.
    tempfile.tempdir = str(daemon.scratch.directories[0])
    served = RegisteredDaemon(daemon, registration) if registration else daemon
    foreground.serve(served, announce, parent)


def raise_file_limit() -> None:
    """Raise the limit of open files to its maximum: each map task of a running query has one or two."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def check_directories(directories: Sequence[Path]) -> None:
    """Raises ConfigError unless all of these are writable directories."""
    for directory in directories:
        if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
            raise ConfigError(f"{directory} is not a writable directory.")
