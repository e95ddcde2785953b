# SPDX-License-Identifier: Apache-2.0
"""Bounds what callers without a token can make a server hold.

gRPC receives the whole request of a call before any code of ours can look at its token, and Arrow's server does not
limit the size of a request. So a thread checks the connections themselves, many times a second:

    authenticated    a call with the right token has come through it: left alone
    not yet          closed if it, or all of these together, have sent too much; if it is silent for too long; or if
                     there are too many

A client that is closed by mistake, because its first request is large while others attack, reconnects and tries again.
"""

from __future__ import annotations

import ctypes
import errno
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
from functools import partial
from typing import Any
from urllib.parse import unquote

from volley.process.log_format import Repeated

_log = logging.getLogger(__name__)
_log.addFilter(Repeated())

# The kernel doubles it. Enough for a fast link, and small enough that little arrives between two checks.
_RECEIVE_BUFFER_BYTES = 256 << 10
# gRPC frees what it had received soon after a connection is closed.
_TRIM_SECONDS = 1.0
# `tcpi_bytes_received` of Linux' struct tcp_info.
_RECEIVED_AT = 128
_RECEIVED = struct.Struct("=Q")
# A check costs more in a process with many open files; checks take at most this share of the time.
_BUSY_SHARE = 0.05

_REMEMBERED_SECONDS = 5.0

Endpoint = tuple[str, int]


@dataclass(frozen=True)
class GuardLimits:
    """What connections may send before they have authenticated: each one, and all of them together."""

    one_bytes: int = 16 << 20
    all_bytes: int = 32 << 20
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
        self._others: set[int] = set()
        self._trim_at: float | None = None
        self._stopped = threading.Event()
        for inode, descriptor in _sockets().items():
            with suppress(OSError):
                if _with_socket(descriptor, inode, partial(_is_listener, port=port)):
                    # Connections inherit it.
                    _with_socket(descriptor, inode, _limit_receive_buffer)
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
        present = _sockets()
        self._others &= present.keys()
        self._friends = {inode: peer for inode, peer in self._friends.items() if inode in present}
        self._strangers = {inode: found for inode, found in self._strangers.items() if inode in present}
        for inode in present.keys() - self._others - self._friends.keys() - self._strangers.keys():
            # A socket that is not connected yet may be asked again.
            with suppress(OSError):
                peer = _with_socket(present[inode], inode, partial(_peer, port=self._port))
                if peer is None:
                    self._others.add(inode)
                else:
                    self._strangers[inode] = _Connection(present[inode], peer)
        for inode, connection in list(self._strangers.items()):
            if connection.peer in self._authenticated:
                self._friends[inode] = self._strangers.pop(inode).peer
        self._forget_closed()
        if self._strangers:
            self._close_excess()
        if self._trim_at is not None and time.monotonic() > self._trim_at:
            self._trim_at = None
            _give_memory_back()

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
                with suppress(OSError):
                    # Its owner, gRPC, notices and closes it.
                    _with_socket(connection.descriptor, inode, lambda held: held.shutdown(socket.SHUT_RDWR))
                del self._strangers[inode]
                total -= connection.received_bytes
                self._trim_at = now + _TRIM_SECONDS


def _sockets() -> dict[int, int]:
    """The sockets of this process: inode and descriptor."""
    found = {}
    with os.scandir("/proc/self/fd") as entries:
        for entry in entries:
            with suppress(OSError):
                status = os.fstat(int(entry.name))
                if stat.S_ISSOCK(status.st_mode):
                    found[status.st_ino] = int(entry.name)
    return found


def _is_listener(held: socket.socket, port: int) -> bool:
    return bool(held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) and _local_port(held) == port


def _peer(held: socket.socket, port: int) -> Endpoint | None:
    """The other end of a connection to `port`; None for any other socket. OSError if it is not connected."""
    if _local_port(held) != port:
        return None
    host, peer_port = held.getpeername()[:2]
    return _normalize(host, peer_port)


def _local_port(held: socket.socket) -> int | None:
    is_internet = held.family in (socket.AF_INET, socket.AF_INET6)
    return int(held.getsockname()[1]) if is_internet else None


def _received_bytes(descriptor: int, inode: int) -> int | None:
    """What has arrived through a connection; None if it is closed."""
    with suppress(OSError):
        info = _with_socket(descriptor, inode, _tcp_info)
        return int(_RECEIVED.unpack_from(info, _RECEIVED_AT)[0])
    return None


def _tcp_info(held: socket.socket) -> bytes:
    return held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)


def _limit_receive_buffer(held: socket.socket) -> None:
    held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)


def _with_socket(descriptor: int, inode: int, use: Callable[[socket.socket], Any]) -> Any:
    """Use a socket that has another owner. OSError if its descriptor is something else by now.

    A duplicate of the descriptor would keep the connection open when its owner closes it.
    """
    if os.fstat(descriptor).st_ino != inode:
        raise OSError(errno.EBADF, "the socket is closed")
    held = socket.socket(fileno=descriptor)
    try:
        return use(held)
    finally:
        held.detach()


def _give_memory_back() -> None:
    """Let the C library return what was freed to the system; it keeps much of it otherwise."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _endpoint(peer: str) -> Endpoint:
    """`ipv4:127.0.0.1:4242` or `ipv6:%5B::1%5D:4242`, as Flight writes it."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _normalize(host.strip("[]"), int(port)) if port.isdecimal() else (peer, 0)


def _normalize(host: str, port: int) -> Endpoint:
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address), port
