# SPDX-License-Identifier: Apache-2.0
"""Which store stands beside the workers, if any: the same choice for a driver and its workers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from volley.config import Config
from volley.machine import available_memory_bytes
from volley.runtime import Phase, Shared
from volley.security import Clients, Security
from volley.shuffle.base import SharedStore, ShuffleStore
from volley.shuffle.fetch import RetryPolicy
from volley.shuffle.location import Location
from volley.shuffle.objectstore import ObjectStore
from volley.shuffle.service.store import ServiceStore
from volley.shuffle.shared import WorkerView
from volley.shuffle.worker_store import WorkerStore

# A driver only reads, and tasks that run inside of it are few.
_DRIVER_MEMORY_BYTES = 256 * 2**20
_MESSAGE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class StoreSettings:
    """`store` is worker (none), service, or the URI of a folder."""

    store: str
    servers: tuple[str, ...]
    replicas: int
    compression: str
    retry_attempts: int
    retry_delay_seconds: float
    timeout_seconds: float

    @classmethod
    def of(cls, config: Config) -> StoreSettings:
        return cls(
            config.shuffle_store,
            config.shuffle_service,
            config.shuffle_replicas,
            config.shuffle_compression,
            config.shuffle_retry_attempts,
            config.shuffle_retry_delay_ms / 1000,
            config.shuffle_timeout_seconds,
        )


def new_store(choice: StoreSettings, security: Security, memory_limit_bytes: int) -> SharedStore | None:
    """The store that was chosen; None when exchanged data lives with the workers."""
    retry_policy = RetryPolicy(choice.retry_attempts, choice.retry_delay_seconds, choice.timeout_seconds)
    if choice.store == "memory":
        return None
    if choice.store == "service":
        return ServiceStore(
            choice.servers,
            replicas=choice.replicas,
            security=security,
            memory_limit_bytes=memory_limit_bytes,
            compression=choice.compression,
            retry_policy=retry_policy,
        )
    return ObjectStore(
        choice.store,
        memory_limit_bytes=memory_limit_bytes,
        compression=choice.compression,
        retry_policy=retry_policy,
    )


@contextmanager
def reading_store(choice: StoreSettings, security: Security) -> Iterator[ShuffleStore]:
    """For a process that only reads what the workers, or the store beside them, keep. Keeps nothing itself."""
    shared = new_store(choice, security, 0)
    if shared is None:
        clients = Clients(security)
        yield WorkerStore(
            Location.here("reader:0"),
            memory_limit_bytes=0,
            spill_threshold=0,
            spill_directories=(),
            compression=choice.compression,
            max_message_bytes=_MESSAGE_BYTES,
            retry_attempts=choice.retry_attempts,
            retry_delay_seconds=choice.retry_delay_seconds,
            stall_seconds=choice.timeout_seconds,
            connect=lambda location: clients[location.address],
        )
        return
    try:
        yield shared
    finally:
        shared.close()


def serving_store(config: Config, location: Location) -> WorkerStore:
    """For a driver that is its own worker: what it keeps for other processes is in files that they can open."""
    memory_bytes = available_memory_bytes() // 4
    return WorkerStore(
        location,
        memory_limit_bytes=int(memory_bytes * config.shuffle_memory_fraction),
        spill_threshold=config.shuffle_spill_threshold,
        spill_directories=(Path(tempfile.gettempdir()),),
        compression=config.shuffle_compression,
        max_message_bytes=config.shuffle_max_message_size,
        retry_attempts=config.shuffle_retry_attempts,
        retry_delay_seconds=config.shuffle_retry_delay_ms / 1000,
        stall_seconds=config.shuffle_timeout_seconds,
        connect=_nobody,
    )


def _nobody(location: Location) -> NoReturn:
    raise OSError(f"{location.address} is another process; this one reads its own blocks alone")


# ---------------------------------------------------------------------------------------------- stores of a worker


@dataclass(frozen=True)
class ShuffleSettings:
    """What a worker daemon is told about exchanged data."""

    memory_fraction: float
    spill_threshold: float
    max_message_bytes: int
    compression: str
    retry_attempts: int
    retry_delay_seconds: float
    timeout_seconds: float
    store: StoreSettings

    @classmethod
    def of(cls, config: Config) -> ShuffleSettings:
        return cls(
            config.shuffle_memory_fraction,
            config.shuffle_spill_threshold,
            config.shuffle_max_message_size,
            config.shuffle_compression,
            config.shuffle_retry_attempts,
            config.shuffle_retry_delay_ms / 1000,
            config.shuffle_timeout_seconds,
            StoreSettings.of(config),
        )

    def open_stores(
        self, address: str, memory_limit_bytes: int, directories: Sequence[Path], security: Security
    ) -> WorkerStores:
        """The stores of the worker that listens at `address`."""
        clients = Clients(security)
        own = WorkerStore(
            Location.here(address),
            memory_limit_bytes=memory_limit_bytes,
            spill_threshold=self.spill_threshold,
            spill_directories=directories,
            compression=self.compression,
            max_message_bytes=self.max_message_bytes,
            retry_attempts=self.retry_attempts,
            retry_delay_seconds=self.retry_delay_seconds,
            stall_seconds=self.timeout_seconds,
            connect=lambda location: clients[location.address],
        )
        return WorkerStores(own, new_store(self.store, security, memory_limit_bytes))


class WorkerStores:
    """`own` is what a worker serves to others; `used` is where its attempts write: that, or a store beside the workers.

    With a shared store its own holds nothing, and nobody has to wait for it to be empty.
    """

    def __init__(self, own: WorkerStore, shared: SharedStore | None) -> None:
        self.own = own
        self.used: ShuffleStore = WorkerView(shared) if shared else own
        self._shared = shared

    def close(self) -> None:
        if self._shared:
            self._shared.close()


# ------------------------------------------------------------------------------------------- stores of this process

_stores: Shared[tuple[StoreSettings, Security], SharedStore] = Shared(
    Phase.STORES, close=lambda store: store.close()
)


def driver_store(choice: StoreSettings, security: Security) -> SharedStore | None:
    """The store of this process for its own queries: it outlives them, and ends with the process."""
    if choice.store == "memory":
        return None

    def create() -> SharedStore:
        store = new_store(choice, security, _DRIVER_MEMORY_BYTES)
        assert store is not None, "only memory has no store beside the workers"
        return store

    return _stores.get((choice, security), create)


def close_stores() -> None:
    """Release what this process began."""
    _stores.close()
