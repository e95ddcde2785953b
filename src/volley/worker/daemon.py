# SPDX-License-Identifier: Apache-2.0
"""`volley worker` from its start to its end: listen, serve, drain, stop.

    start     listen, compute the fingerprint, open the doors
    SIGTERM   drain: refuse new attempts, finish those that run, keep blocks until their queries are over
    stop      when nothing is left, at the second signal, or when the time for draining is up

Exchanged data is in unnamed files, and what operators spill is removed by somebody else, so however the process ends,
nothing of it stays behind.
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

from volley import foreground
from volley.errors import ConfigError
from volley.loop import LoopThread
from volley.lower.memory import OperatorMemory
from volley.rpc.handshake import Identity
from volley.rpc.server import address_of, listen, reachable_name
from volley.security import Security
from volley.shuffle.base import ShuffleStore
from volley.worker.budget import WorkerBudget
from volley.worker.drivers import LEASE_SECONDS, Drivers
from volley.worker.external_attempts import ExternalAttempts
from volley.worker.pulling import Pulls
from volley.worker.scratch import Scratch
from volley.worker.server import ServingStore, Worker, WorkerServer
from volley.worker.slots import Slots

# After its doors are shut a daemon has this long to end before it is ended.
_STOP_SECONDS = 5.0
_DRAIN_STEP_SECONDS = 0.05


class Stores(Protocol):
    """The stores of one worker: `own` serves its blocks to others, `used` is where its attempts write and read."""

    @property
    def own(self) -> ServingStore: ...

    @property
    def used(self) -> ShuffleStore: ...

    def close(self) -> None: ...


class ShuffleSettings(Protocol):
    """What a daemon has to know about exchanged data, and how its stores are opened."""

    @property
    def memory_fraction(self) -> float: ...

    @property
    def max_message_bytes(self) -> int: ...

    def open_stores(
        self, address: str, memory_limit_bytes: int, directories: Sequence[Path], security: Security
    ) -> Stores: ...


@dataclass(frozen=True)
class DaemonSettings:
    """`advertise` is the host that others reach this one by; `slots` how many attempts it runs at once."""

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


class Daemon:
    """A worker that serves from its construction until `close`."""

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
        self._pulls = Pulls(self.address, security)
        self.scratch = Scratch(settings.directories)
        self._worker: Worker = self._loop.submit(self._made()).result()
        self._server.serve(self._worker)
        self._leases: list[Future[None]] = [
            self._loop.submit(self._worker.drivers.expire_leases()),
            self._loop.submit(self._worker.external_attempts.end_the_forgotten()),
        ]

    async def _made(self) -> Worker:
        settings = self._settings
        memory = OperatorMemory(self.budget.operators_bytes, self.scratch.directories, tasks=settings.slots)
        slots = Slots(self.address, settings.slots, settings.cores, self._stores.used, memory=memory)
        identity = await asyncio.to_thread(Identity.of_this_process, f"worker {self.address}")
        return Worker(
            identity,
            settings.cores,
            slots,
            Drivers(slots, settings.lease_seconds),
            ExternalAttempts(slots, self._pulls),
            self._stores.own,
            self.budget,
            settings.shuffle.max_message_bytes,
            self._loop,
        )

    def drain(self, hurry: threading.Event) -> None:
        """Take nothing new; until nothing is left, `hurry` or the end of the time for it."""
        self._loop.submit(self._drain()).result()
        deadline = time.monotonic() + self._settings.drain_seconds
        while time.monotonic() < deadline and not self._loop.submit(self._empty()).result():
            if hurry.wait(_DRAIN_STEP_SECONDS):
                return

    def close(self) -> None:
        """Stop serving. Calls that wait are answered; whatever runs is cancelled."""
        for lease in self._leases:
            lease.cancel()
        shutdown = threading.Thread(target=self._server.shutdown, daemon=True)
        shutdown.start()
        self._loop.close()
        self._pulls.close()
        shutdown.join(_STOP_SECONDS)
        self._stores.close()
        self.scratch.close()

    async def _drain(self) -> None:
        self._worker.slots.drain()
        self._worker.drivers.wake()

    async def _empty(self) -> bool:
        return self._worker.slots.idle and not self._worker.store.held_bytes


def serve(daemon: Daemon, announce: Callable[[], None], parent: int | None = None) -> None:
    """Run a worker in the foreground of this process."""
    raise_file_limit()
    # Whatever anybody in this process puts into temporary files is removed with it.
    tempfile.tempdir = str(daemon.scratch.directories[0])
    foreground.serve(daemon, announce, parent)


def raise_file_limit() -> None:
    """As many open files as this process may have: each map task of a running query has one or two."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def check_directories(directories: Sequence[Path]) -> None:
    """ConfigError unless exchanged data can be written there."""
    for directory in directories:
        if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
            raise ConfigError(f"{directory} is not a directory that can be written to.")
