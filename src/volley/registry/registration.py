# SPDX-License-Identifier: Apache-2.0
"""Keeps a daemon registered: from its start, through restarts of the registry, until it drains."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress

from volley.errors import QueryError
from volley.process.foreground import Daemon
from volley.rpc.client import Client
from volley.rpc.control import JoinRegistry, LeaveRegistry, Role
from volley.security import Security

_log = logging.getLogger(__name__)

LEASE_SECONDS = 10.0
_CALL_SECONDS = 3.0


class Registration:
    """Registers the daemon at `address` with all `registries`, each on a thread of its own, until `leave`."""

    def __init__(
        self,
        registries: Sequence[str],
        role: Role,
        address: str,
        security: Security,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._join = JoinRegistry(role, address, lease_seconds)
        self._security = security
        self._left = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._renew, args=(registry,), name=f"volley-join-{registry}", daemon=True
            )
            for registry in registries
        ]
        for thread in self._threads:
            thread.start()

    def leave(self) -> None:
        """Take the daemon off all lists. A registry that does not answer takes it off when its lease expires."""
        self._left.set()
        for thread in self._threads:
            thread.join(2 * _CALL_SECONDS)

    def _renew(self, registry: str) -> None:
        problem = ""
        while True:
            try:
                self._call(registry, "join", self._join)
                if problem:
                    _log.info("registered with %s", registry)
                problem = ""
            except QueryError as error:
                if error.message != problem:
                    _log.warning("not registered: %s", error.message)
                problem = error.message
            if self._left.wait(self._join.lease_seconds / 4):
                break
        with suppress(QueryError):
            self._call(registry, "leave", LeaveRegistry(self._join.role, self._join.address))

    def _call(self, registry: str, action: str, message: JoinRegistry | LeaveRegistry) -> None:
        # A new connection each time: gRPC backs off longer and longer on one that could not connect.
        with Client(registry, self._security, role="registry", timeout_seconds=_CALL_SECONDS) as client:
            client.call(action, message)


class RegisteredDaemon:
    """A daemon that takes itself off the lists before it drains."""

    def __init__(self, daemon: Daemon, registration: Registration) -> None:
        self._daemon = daemon
        self._registration = registration

    def drain(self, hurry: threading.Event) -> None:
        self._registration.leave()
        self._daemon.drain(hurry)

    def close(self) -> None:
        self._daemon.close()
