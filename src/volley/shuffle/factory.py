# SPDX-License-Identifier: Apache-2.0
"""Creates stores from options, in the same way for a driver and its workers.

A store is imported when it is chosen: with exchanged data in this process, nothing here needs Flight.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from volley.config import Config
from volley.plugins import STORES, load, store_plugin
from volley.process.machine import query_memory_bytes
from volley.process.runtime import Phase, Shared
from volley.security import Clients, Security
from volley.shuffle.base import SharedStore, ShuffleStore, StoreFactory
from volley.shuffle.config import RetryPolicy
from volley.shuffle.config import ShuffleConfig as ShuffleConfig
from volley.shuffle.location import Location
from volley.shuffle.worker_stores import WorkerStores

if TYPE_CHECKING:
    from volley.shuffle.worker_store import WorkerStore

# A driver mostly reads, and few tasks run inside it.
_DRIVER_MEMORY_BYTES = 256 * 2**20
# Give up early on a lost worker: its output is computed again.
_DRIVER_RETRY = RetryPolicy(0, 0.0, 20.0)


def new_store(config: ShuffleConfig, security: Security, memory_limit_bytes: int) -> SharedStore | None:
    """Create the configured shared store; None if exchanged data stays with the workers."""
    if config.store == "memory":
        return None
    if config.store == "service":
        from volley.shuffle.service.store import ServiceStore

        return ServiceStore(config, security, memory_limit_bytes=memory_limit_bytes)
    if plugin := store_plugin(config.store):
        make: StoreFactory = load(STORES, plugin)
        return make(config, security=security, memory_limit_bytes=memory_limit_bytes)
    from volley.shuffle.object_store import ObjectStore

    return ObjectStore(config, memory_limit_bytes=memory_limit_bytes)


@contextmanager
def reading_store(config: ShuffleConfig, security: Security) -> Iterator[ShuffleStore]:
    """A store for a process that only reads from the workers or from the shared store. It holds nothing itself."""
    shared = new_store(config, security, 0)
    if shared is None:
        with Clients(security) as clients:
            yield _reader(config, clients)
        return
    try:
        yield shared
    finally:
        shared.close()


def _reader(config: ShuffleConfig, clients: Clients) -> WorkerStore:
    from volley.shuffle.worker_store import WorkerStore

    return WorkerStore(
        Location.here("reader:0"),
        config,
        memory_limit_bytes=0,
        spill_directories=(),
        connect=lambda location: clients[location.address],
    )


def serving_store(config: Config, location: Location) -> WorkerStore:
    """A store for a driver that is its own worker. Other processes on this host read its files directly."""
    from volley.shuffle.worker_store import WorkerStore

    shuffle = ShuffleConfig.of(config)
    return WorkerStore(
        location,
        shuffle,
        memory_limit_bytes=int(query_memory_bytes(config.memory) * shuffle.memory_fraction),
        spill_directories=(Path(tempfile.gettempdir()),),
        connect=_refuse_connection,
    )


def _refuse_connection(location: Location) -> NoReturn:
    raise OSError(f"{location.address} is another process; this one reads only its own blocks")


# ---------------------------------------------------------------------------------------------- stores of a worker


@dataclass(frozen=True)
class ShuffleSettings:
    """The shuffle options of a worker daemon, as its owner set them. Opens its stores."""

    owner: Config

    @classmethod
    def of(cls, config: Config) -> ShuffleSettings:
        return cls(config)

    @property
    def memory_fraction(self) -> float:
        return self.owner.shuffle_memory_fraction

    def open_stores(
        self, address: str, memory_limit_bytes: int, directories: Sequence[Path], security: Security
    ) -> DaemonStores:
        """Open the stores of the worker that listens at `address`."""
        from volley.shuffle.worker_store import WorkerStore

        clients = Clients(security)
        own = WorkerStore(
            Location.here(address),
            ShuffleConfig.of(self.owner),
            memory_limit_bytes=memory_limit_bytes,
            spill_directories=directories,
            connect=lambda location: clients[location.address],
        )
        return DaemonStores(own, self.owner, lambda config: new_store(config, security, memory_limit_bytes))


class DaemonStores(WorkerStores):
    """The stores of a daemon, which serves the blocks of `own` to other workers."""

    def __init__(
        self, own: WorkerStore, owner: Config, open_shared: Callable[[ShuffleConfig], SharedStore | None]
    ) -> None:
        super().__init__(own, owner, open_shared, own.configured)
        self.own = own


# ------------------------------------------------------------------------------------------- stores of this process

_stores: Shared[tuple[ShuffleConfig, Security], SharedStore] = Shared(
    Phase.STORES, close=lambda store: store.close()
)
_clients: Shared[Security, Clients] = Shared(Phase.CONNECTIONS, close=Clients.close)


def driver_store(config: ShuffleConfig, security: Security) -> SharedStore | None:
    """The shared store of this process for its own queries. It is reused by all of them and closed at exit."""
    if config.store == "memory":
        return None

    def create() -> SharedStore:
        store = new_store(config, security, _DRIVER_MEMORY_BYTES)
        assert store is not None, "every store but memory is shared"
        return store

    return _stores.get((config, security), create)


def driver_reader(security: Security) -> WorkerStore:
    """A store that only reads from workers. All readers of this process share its connections."""
    config = replace(ShuffleConfig.of(Config.read({})), retry=_DRIVER_RETRY)
    return _reader(config, _clients.get(security, lambda: Clients(security)))


def close_stores() -> None:
    """Release the queries that this process began."""
    _stores.close()
