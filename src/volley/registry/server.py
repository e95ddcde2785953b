# SPDX-License-Identifier: Apache-2.0
"""The life of `volley registry`: listen, take registrations, drop those whose lease has expired, stop.

Stopping it takes nobody off the lists: sessions go on with the files.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from volley.errors import QueryError
from volley.registry.members import Members
from volley.rpc.addresses import address_of, reachable_name
from volley.rpc.codec import decode
from volley.rpc.control import Ack, JoinRegistry, LeaveRegistry, Role
from volley.rpc.server import Server, listen
from volley.security import Security

_log = logging.getLogger(__name__)

_EXPIRE_SECONDS = 0.5
_STOP_SECONDS = 5.0


@dataclass(frozen=True)
class RegistrySettings:
    """`files` are the lists that it keeps, by role."""

    host: str
    port: int
    files: Mapping[Role, Path]
    advertise: str = ""
    require_client_certificate: bool = False
    insecure: bool = False


class RegistryServer(Server):
    role = "registry"

    def serve(self, members: Mapping[Role, Members]) -> None:
        self._members = members
        self.open()

    def answer(self, action: str, body: pa.Buffer) -> Any:
        match action, decode(body.to_pybytes()):
            case "join", JoinRegistry(role, address, lease_seconds):
                self._of(role).join(address, lease_seconds)
            case "leave", LeaveRegistry(role, address):
                self._of(role).leave(address)
            case _, message:
                raise QueryError(f"a registry does not support {action!r} with {type(message).__name__}.")
        return Ack()

    def _of(self, role: Role) -> Members:
        if role not in self._members:
            raise QueryError(f"this registry has no list of {role}s.")
        return self._members[role]


class RegistryDaemon:
    """A registry that serves from construction until `close`."""

    def __init__(self, settings: RegistrySettings, security: Security) -> None:
        name = reachable_name(settings.host, settings.advertise)
        self.members = {role: Members(file) for role, file in settings.files.items()}
        self._server = listen(
            RegistryServer,
            settings.host,
            settings.port,
            security,
            require_client_certificate=settings.require_client_certificate,
            insecure=settings.insecure,
        )
        self.address = address_of(name, self._server.port)
        self._stopped = threading.Event()
        self._leases = threading.Thread(target=self._expire, name="volley-leases", daemon=True)
        self._leases.start()
        self._server.serve(self.members)

    def drain(self, hurry: threading.Event) -> None:
        """There is nothing to finish."""

    def close(self) -> None:
        self._stopped.set()
        shutdown = threading.Thread(target=self._server.shutdown, daemon=True)
        shutdown.start()
        shutdown.join(_STOP_SECONDS)
        self._leases.join()

    def _expire(self) -> None:
        while not self._stopped.wait(_EXPIRE_SECONDS):
            for role, members in self.members.items():
                try:
                    for address in members.expire():
                        _log.warning(
                            "%s %s has not registered again: it is not listed any more", role, address
                        )
                except OSError as error:
                    _log.error("the list of %ss cannot be written: %s", role, error)
