# SPDX-License-Identifier: Apache-2.0
"""Authentication of daemons and their clients: a shared token on every call, and optionally TLS or mutual TLS.

Secrets are read from files or the environment. They never appear in command lines, messages or a `repr`. A rejected
peer learns only that it was rejected. Flight is imported when somebody connects or listens.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import socket
import stat
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from volley.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow.flight as flight

TOKEN_VARIABLE = "VOLLEY_TOKEN"


@dataclass(frozen=True)
class Tls:
    """PEM texts. `ca` verifies the other side; `certificate` and `key` are this side's own."""

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Security:
    """The credentials that this process presents and requires. Without `tls` connections are plain TCP."""

    token: str | None = field(default=None, repr=False)
    tls: Tls | None = None

    @classmethod
    def read(
        cls,
        token_file: str = "",
        ca_file: str = "",
        certificate_file: str = "",
        key_file: str = "",
        environment: Mapping[str, str] = os.environ,
    ) -> Security:
        """Read the credentials from files. Without a token file the token is taken from the environment, if set."""
        token = _token(Path(token_file)) if token_file else environment.get(TOKEN_VARIABLE) or None
        if token is not None and not token.isascii():
            raise ConfigError(
                "the token has characters outside ASCII.", hint="Create one with `openssl rand -hex 32`."
            )
        if bool(certificate_file) != bool(key_file):
            raise ConfigError(
                "a certificate needs its key, and a key its certificate.", hint="Give both files, or neither."
            )
        if not ca_file and not certificate_file:
            return cls(token)
        return cls(token, Tls(_pem(ca_file), _pem(certificate_file), _pem(key_file)))

    def uri(self, address: str) -> str:
        return f"{'grpc+tls' if self.tls else 'grpc'}://{address}"

    def connect(self, address: str, hang_seconds: float | None = None) -> flight.FlightClient:
        """A client of the daemon at `host:port`. Connects on first use.

        `hang_seconds` is for clients that send large requests: gRPC does not enforce the deadline of a call while its
        request cannot be sent. Keepalive pings then detect a peer that does not respond for this long.

        Every client has its own connection, so that control messages do not wait behind data, and reconnects quickly.
        """
        import pyarrow.flight as flight

        from volley.token_middleware import ClientTokenMiddleware

        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            # Also the time that a busy peer has to answer a new connection.
            ("grpc.min_reconnect_backoff_ms", 5000),
            ("grpc.max_reconnect_backoff_ms", 2000),
        ]
        if hang_seconds is not None:
            half_ms = max(1, int(hang_seconds * 500))
            options += [("grpc.keepalive_time_ms", half_ms), ("grpc.keepalive_timeout_ms", half_ms)]
            options += [("grpc.http2.max_pings_without_data", 0)]
        arguments: dict[str, Any] = {"generic_options": options}
        if self.token is not None:
            arguments["middleware"] = [ClientTokenMiddleware(self.token)]
        if self.tls:
            if self.tls.ca:
                arguments["tls_root_certs"] = self.tls.ca
            if self.tls.certificate:
                arguments["cert_chain"] = self.tls.certificate
                arguments["private_key"] = self.tls.key
        return flight.FlightClient(self.uri(address), **arguments)

    def server_arguments(self, require_client_certificate: bool = False) -> dict[str, Any]:
        """Arguments for the constructor of a Flight server."""
        from volley.token_middleware import ServerTokenMiddleware

        arguments: dict[str, Any] = {}
        if self.token is not None:
            arguments["middleware"] = {"token": ServerTokenMiddleware(self.token)}
        if self.tls:
            if not self.tls.certificate:
                raise ConfigError("a daemon with TLS needs a certificate and its key.")
            arguments["tls_certificates"] = [(self.tls.certificate, self.tls.key)]
        if require_client_certificate:
            if not self.tls or not self.tls.ca:
                raise ConfigError("mutual TLS needs the CA that signs the certificates of clients.")
            arguments |= {"verify_client": True, "root_certificates": self.tls.ca}
        return arguments

    def check_listening(self, host: str, insecure: bool = False) -> None:
        """Raise ConfigError if a daemon on `host` would be reachable from the network without token and TLS."""
        if insecure or is_loopback(host) or (self.token is not None and self.tls is not None):
            return
        raise ConfigError(
            f"{host} can be reached from other machines, and this daemon has no token or no TLS.",
            hint="Give both, listen on 127.0.0.1 (SPARK_LOCAL_IP, for a driver of Spark), or say --insecure "
            "(spark.volley.executor.insecure, for a session) when the network itself is safe.",
        )


@dataclass(frozen=True)
class Credentials:
    """What another process of this driver presents: the token, and the paths of the TLS files there.

    It travels inside pickled functions, from the driver to its executors, and is in no plan and no option.
    """

    token: str | None = field(default=None, repr=False)
    files: tuple[str, str, str] = ("", "", "")

    def read(self) -> Security:
        """Read the files, in the process that uses them."""
        return Security.read("", *self.files, environment={TOKEN_VARIABLE: self.token or ""})


class Clients:
    """One client per daemon, created on first use. May be used from any thread."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._lock = threading.Lock()
        self._clients: dict[str, flight.FlightClient] = {}

    def __getitem__(self, address: str) -> flight.FlightClient:
        with self._lock:
            if address not in self._clients:
                self._clients[address] = self._security.connect(address)
            return self._clients[address]

    def close(self) -> None:
        """Close all connections. The next use creates a new one."""
        with self._lock:
            closing = list(self._clients.values())
            self._clients.clear()
        for client in closing:
            client.close()

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def flight_installed() -> bool:
    """Whether this process can use Arrow Flight. It is not imported."""
    return importlib.util.find_spec("pyarrow.flight") is not None


def is_loopback(host: str) -> bool:
    """Whether `host` resolves to loopback addresses only."""
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise ConfigError(f"{host!r} cannot be resolved: {error}.") from error
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses)


def _token(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"the token file {path} cannot be read: {error.strerror}.") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"the token file {path} is open to other users.", hint=f"Run `chmod 600 {path}`.")
    if not token:
        raise ConfigError(f"the token file {path} is empty.")
    return token


def _pem(file: str) -> bytes | None:
    if not file:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from error
