# SPDX-License-Identifier: Apache-2.0
"""Owns what the queries of a process share: the loop, connections, stores, directories.

    owner = Shared(Phase.CONNECTIONS, close=Fleet.close)    declared by the module that defines the resource
    owner.get(key, create)                                  creates the resource on first use
    process exit                                            closes all resources, phase by phase
    fork                                                    the child starts empty and leaves its parent's alone

The only exit handler and the only fork hook are here, so resources are closed in the order of `Phase`, not in the order
of imports.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Generic, TypeVar

_log = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Phase(IntEnum):
    """When a resource is closed: before the resources that it uses."""

    QUERIES = 1
    """Event loops and the tasks on them."""
    CONNECTIONS = 2
    """Servers in this process, and connections to other processes."""
    STORES = 3
    """Exchanged data of queries that this process began."""
    FILES = 4
    """Directories of this process."""
    ENGINE = 5
    """The native engine, which is idle by now."""


class Shared(Generic[Key, Value]):
    """Resources of one kind, by key. All methods may be called from any thread.

    A forked child has none, because their threads and connections belong to the parent.
    """

    def __init__(self, phase: Phase, close: Callable[[Value], object]) -> None:
        self.phase = phase
        self._close = close
        self._lock = threading.RLock()
        self._values: dict[Key, Value] = {}
        _runtime.add(self)

    @contextmanager
    def locked(self) -> Iterator[dict[Key, Value]]:
        """All resources, with exclusive access."""
        with self._lock:
            yield self._values

    def get(self, key: Key, create: Callable[[], Value]) -> Value:
        """The resource for `key`, created on first use."""
        with self._lock:
            if key not in self._values:
                self._values[key] = create()
            return self._values[key]

    def close(self) -> None:
        """Close all resources. The next `get` creates a new one."""
        with self._lock:
            closing = list(self._values.values())
            self._values.clear()
        for value in closing:
            self._close(value)

    def forget(self) -> None:
        """In a forked child, drop the parent's resources without closing them."""
        _keep_for_ever(self._values)
        # The parent may have forked while another of its threads held the lock.
        self._lock = threading.RLock()
        self._values = {}


class _Runtime:
    def __init__(self) -> None:
        self._owners: list[Shared[Any, Any]] = []

    def add(self, owner: Shared[Any, Any]) -> None:
        self._owners.append(owner)

    def close(self) -> None:
        for owner in sorted(self._owners, key=lambda owner: owner.phase):
            try:
                owner.close()
            except Exception:
                # Close the rest anyway.
                _log.exception("closing %s failed", owner.phase.name.lower())

    def forget(self) -> None:
        _disarm_servers()
        for owner in self._owners:
            owner.forget()


def _disarm_servers() -> None:
    """Prevent this child from shutting down the Flight servers of its parent.

    pyarrow does so at interpreter exit, and then waits for threads that exist only in the parent.
    """
    flight = sys.modules.get("pyarrow.flight")
    if flight is None:
        return
    # pyarrow does not expose its finalizers, so search the registry for them.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        found = finalizer.peek()
        if found is not None and isinstance(found[0], flight.FlightServerBase):
            finalizer.detach()
            _keep_for_ever(found[0])


def _keep_for_ever(value: object) -> None:
    """Leak a value. Destructors of gRPC also wait for the parent's threads, so they must not run in the child."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


_runtime = _Runtime()
atexit.register(_runtime.close)
os.register_at_fork(after_in_child=_runtime.forget)
