# SPDX-License-Identifier: Apache-2.0
"""The one owner of what a process shares between its queries: the loop, connections, stores, directories.

    owner = Shared(Phase.CONNECTIONS, close=Fleet.close)    declared by the module that knows the resource
    owner.get(key, create)                                  created by the first who asks
    exit of the process                                     phase by phase, each resource is closed
    fork                                                    the child has none, and leaves those of its parent alone

There is one exit handler and one fork hook, both here, so the order in which things end is the order of `Phase` and
not that of imports.
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
    """When a resource is closed: users come before what they use."""

    QUERIES = 1
    """Event loops, with all that still runs on them."""
    CONNECTIONS = 2
    """Servers of this process, and connections to other processes."""
    STORES = 3
    """Exchanged data that this process began."""
    FILES = 4
    """Directories of this process."""
    ENGINE = 5
    """The native engine, which has no work left by now."""


class Shared(Generic[Key, Value]):
    """Resources of one kind, by key. Every method may be called from any thread.

    A forked child has none: their threads and connections belong to the parent.
    """

    def __init__(self, phase: Phase, close: Callable[[Value], object]) -> None:
        self.phase = phase
        self._close = close
        self._lock = threading.RLock()
        self._values: dict[Key, Value] = {}
        _runtime.add(self)

    @contextmanager
    def locked(self) -> Iterator[dict[Key, Value]]:
        """All of them, for as long as nobody else may look."""
        with self._lock:
            yield self._values

    def get(self, key: Key, create: Callable[[], Value]) -> Value:
        """The one for `key`, created if there is none."""
        with self._lock:
            if key not in self._values:
                self._values[key] = create()
            return self._values[key]

    def close(self) -> None:
        """Close all of them; the next who asks gets a new one."""
        with self._lock:
            closing = list(self._values.values())
            self._values.clear()
        for value in closing:
            self._close(value)

    def forget(self) -> None:
        """In a forked child: let go of the parent's, without closing them."""
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
                # The rest is closed all the same.
                _log.exception("closing %s failed", owner.phase.name.lower())

    def forget(self) -> None:
        _disarm_servers()
        for owner in self._owners:
            owner.forget()


def _disarm_servers() -> None:
    """Keep Flight servers of the parent from being shut down by this child.

    pyarrow does that when the interpreter ends, and then waits for threads that only the parent has.
    """
    flight = sys.modules.get("pyarrow.flight")
    if flight is None:
        return
    # pyarrow shows its finalizers to nobody, so they have to be found among all of them.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        found = finalizer.peek()
        if found is not None and isinstance(found[0], flight.FlightServerBase):
            finalizer.detach()
            _keep_for_ever(found[0])


def _keep_for_ever(value: object) -> None:
    """Destructors of gRPC wait for threads, too: what belongs to the parent is never destroyed in the child."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


_runtime = _Runtime()
atexit.register(_runtime.close)
os.register_at_fork(after_in_child=_runtime.forget)
