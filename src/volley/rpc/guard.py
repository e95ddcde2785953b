# SPDX-License-Identifier: Apache-2.0
"""Bounds what callers without a token can make a server hold.

gRPC receives the whole request of a call before any code of ours can look at its token, and Arrow's server does not
limit the size of a request. So a thread looks at the connections themselves, many times a second:

    authenticated    a call with the right token has come through it: left alone
    not yet          closed if it, or all of these together, have sent too much; if it is silent for too long; or if
                     there are too many

A client that is closed by mistake, because its first request is large while others attack, reconnects and tries again.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from volley.log_format import Repeated

_log = logging.getLogger(__name__)
_log.addFilter(Repeated())

_ESTABLISHED = "01"
# `tcpi_bytes_received` of Linux' struct tcp_info.
_RECEIVED_AT = 128
_RECEIVED = struct.Struct("=Q")
_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
# On a machine with very many connections a look costs more; it then takes at most this share of the time.
_BUSY_SHARE = 0.05

_REMEMBERED_SECONDS = 5.0

Endpoint = tuple[str, int]


@dataclass(frozen=True)
class GuardLimits:
    """What connections may send before they have authenticated: each one, and all of them together."""

    one_bytes: int = 32 << 20
    all_bytes: int = 64 << 20
    connections: int = 256
    silent_seconds: float = 60.0
    look_seconds: float = 0.05


@dataclass
class _Connection:
    descriptor: int
    peer: Endpoint
    since: float = field(default_factory=time.monotonic)
    received_bytes: int = 0


class ConnectionGuard:
    """Watches the connections to `port` of this process, from its construction until `close`."""

    def __init__(self, port: int, limits: GuardLimits | None = None) -> None:
        self._port = port
        self._limits = limits or GuardLimits()
        self._authenticated: dict[Endpoint, float] = {}
        self._strangers: dict[int, _Connection] = {}
        self._friends: dict[int, Endpoint] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="volley-guard", daemon=True)
        self._thread.start()

    def admit(self, peer: str) -> None:
        """A call with the right token has come from `peer`, as Flight names it."""
        self._authenticated[_endpoint(peer)] = time.monotonic()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        pause_seconds = self._limits.look_seconds
        while not self._stopped.wait(pause_seconds):
            began = time.thread_time()
            try:
                self._look()
            except Exception:
                # Without the guard the server still works, and still refuses whoever has no token.
                _log.exception("the connections of port %d cannot be watched", self._port)
                return
            pause_seconds = max(self._limits.look_seconds, (time.thread_time() - began) / _BUSY_SHARE)

    def _look(self) -> None:
        present = set(_inodes(self._port))
        self._friends = {inode: peer for inode, peer in self._friends.items() if inode in present}
        self._strangers = {inode: found for inode, found in self._strangers.items() if inode in present}
        unknown = present - self._friends.keys() - self._strangers.keys()
        if unknown:
            self._strangers |= _find_connections(unknown)
        for inode, connection in list(self._strangers.items()):
            if connection.peer in self._authenticated:
                self._friends[inode] = self._strangers.pop(inode).peer
        self._forget_closed()
        if self._strangers:
            self._close_excess()

    def _forget_closed(self) -> None:
        """A new connection may come from a port that an authenticated one had before."""
        open_peers = set(self._friends.values())
        long_ago = time.monotonic() - _REMEMBERED_SECONDS
        # A copy: handlers add to it meanwhile. One that is just added belongs to a connection that is not seen yet.
        for peer, admitted in list(self._authenticated.items()):
            if admitted < long_ago and peer not in open_peers:
                self._authenticated.pop(peer, None)

    def _close_excess(self) -> None:
        for inode, connection in list(self._strangers.items()):
            received = _received_bytes(connection.descriptor, inode)
            if received is None:
                del self._strangers[inode]
            else:
                connection.received_bytes = received
        limits, now = self._limits, time.monotonic()
        # The largest first, and of equals the newest.
        ranked = sorted(self._strangers.items(), key=lambda item: (item[1].received_bytes, item[1].since))
        total = sum(connection.received_bytes for connection in self._strangers.values())
        while ranked:
            inode, connection = ranked.pop()
            too_much = connection.received_bytes > limits.one_bytes or total > limits.all_bytes
            too_long = now - connection.since > limits.silent_seconds
            if too_much or too_long or len(ranked) + 1 > limits.connections:
                _log.warning(
                    "closed a connection that had sent %d bytes and no token", connection.received_bytes
                )
                _shut(connection.descriptor, inode)
                del self._strangers[inode]
                total -= connection.received_bytes


def _inodes(port: int) -> list[int]:
    """The sockets of established connections to a local port."""
    suffix = f":{port:04X}"
    found = []
    for table in _TABLES:
        with suppress(FileNotFoundError):
            for line in table.read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split(None, 10)
                if fields[3] == _ESTABLISHED and fields[1].endswith(suffix):
                    found.append(int(fields[9]))
    return found


def _find_connections(inodes: set[int]) -> dict[int, _Connection]:
    """The descriptors of this process that are these sockets."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        descriptor = int(entry.name)
        with suppress(OSError):
            status = os.fstat(descriptor)
            if stat.S_ISSOCK(status.st_mode) and status.st_ino in inodes:
                address = _with_socket(descriptor, socket.socket.getpeername)
                found[status.st_ino] = _Connection(descriptor, _normalize(address[0], address[1]))
    return found


def _received_bytes(descriptor: int, inode: int) -> int | None:
    """What has arrived through a connection; None if it is closed, and its descriptor perhaps something else."""
    with suppress(OSError):
        if os.fstat(descriptor).st_ino == inode:
            info = _with_socket(
                descriptor, lambda held: held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
            )
            return int(_RECEIVED.unpack_from(info, _RECEIVED_AT)[0])
    return None


def _shut(descriptor: int, inode: int) -> None:
    """End a connection. Its owner, gRPC, notices and closes it."""
    with suppress(OSError):
        if os.fstat(descriptor).st_ino == inode:
            _with_socket(descriptor, lambda held: held.shutdown(socket.SHUT_RDWR))


def _with_socket(descriptor: int, use: Callable[[socket.socket], Any]) -> Any:
    """Use a socket that has another owner. A duplicate would keep the connection open when its owner closes it."""
    held = socket.socket(fileno=descriptor)
    try:
        return use(held)
    finally:
        held.detach()


def _endpoint(peer: str) -> Endpoint:
    """`ipv4:127.0.0.1:4242` or `ipv6:%5B::1%5D:4242`, as Flight writes it."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _normalize(host.strip("[]"), int(port)) if port.isdecimal() else (peer, 0)


def _normalize(host: str, port: int) -> Endpoint:
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address), port
