"""Which store stands beside the workers, if any: the same choice for a driver and its workers."""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import dataclass

from volley.config import Config
from volley.security import Security
from volley.shuffle.base import SharedStore
from volley.shuffle.fetch import Patience
from volley.shuffle.objectstore import ObjectStore
from volley.shuffle.service.store import ServiceStore

# A driver only reads, and tasks that run inside of it are few.
_DRIVER_MEMORY_BYTES = 256 * 2**20


@dataclass(frozen=True)
class StoreChoice:
    """`store` is worker (none), service, or the URI of a folder."""

    store: str
    servers: tuple[str, ...]
    replicas: int
    compression: str
    retry_attempts: int
    retry_delay_seconds: float
    timeout_seconds: float

    @classmethod
    def of(cls, config: Config) -> StoreChoice:
        return cls(
            config.shuffle_store,
            config.shuffle_service,
            config.shuffle_replicas,
            config.shuffle_compression,
            config.shuffle_retry_attempts,
            config.shuffle_retry_delay_ms / 1000,
            config.shuffle_timeout_seconds,
        )


def new_store(choice: StoreChoice, security: Security, memory_limit_bytes: int) -> SharedStore | None:
    """The store that was chosen; None when exchanged data lives with the workers."""
    patience = Patience(choice.retry_attempts, choice.retry_delay_seconds, choice.timeout_seconds)
    if choice.store == "memory":
        return None
    if choice.store == "service":
        return ServiceStore(
            choice.servers,
            replicas=choice.replicas,
            security=security,
            memory_limit_bytes=memory_limit_bytes,
            compression=choice.compression,
            patience=patience,
        )
    return ObjectStore(
        choice.store,
        memory_limit_bytes=memory_limit_bytes,
        compression=choice.compression,
        patience=patience,
    )


# ------------------------------------------------------------------------------------------- stores of this process

_lock = threading.Lock()
_stores: dict[tuple[StoreChoice, Security], SharedStore] = {}


def driver_store(choice: StoreChoice, security: Security) -> SharedStore | None:
    """The store of this process for its own queries: it outlives them, and ends with the process."""
    with _lock:
        store = _stores.get((choice, security)) or new_store(choice, security, _DRIVER_MEMORY_BYTES)
        if store is not None:
            _stores[choice, security] = store
        return store


@atexit.register
def close_stores() -> None:
    """Release what this process began."""
    with _lock:
        closing = list(_stores.values())
        _stores.clear()
    for store in closing:
        store.close()


def _forget_after_fork() -> None:
    # Threads and connections do not survive a fork, and what the parent began is the parent's.
    global _lock
    _lock = threading.Lock()
    _stores.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
