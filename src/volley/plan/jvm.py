# SPDX-License-Identifier: Apache-2.0
"""py4j helpers for the plan reader and the bridge."""

from __future__ import annotations

import io
import socket
from typing import Any

# A handle to a JVM object; py4j resolves everything at run time.
Java = Any


def singleton(gateway: Java, name: str) -> Java:
    """The instance of a Scala object."""
    return gateway.jvm.java.lang.Class.forName(name + "$").getField("MODULE$").get(None)


def cache_static_method(gateway: Java, name: str, method: str) -> None:
    """Let py4j keep a class of its view, and a static method of it. It asks the JVM for both at every use otherwise."""
    java = getattr(gateway.jvm, name)
    setattr(java, method, getattr(java, method))
    setattr(gateway.jvm, name, java)


def copy_with(java: Java, changes: dict[int, Any]) -> Java:
    """A case class with some of its arguments changed, by their positions from 1."""
    places = range(1, int(java.productArity()) + 1)
    return java.copy(*(changes[n] if n in changes else getattr(java, f"copy$default${n}")() for n in places))


class _PromptReader(socket.SocketIO):
    """Sends TCP acknowledgements at once (TCP_QUICKACK).

    Otherwise py4j's replies of 20-100 KB stall for about 40 ms: the JVM waits for an acknowledgement (Nagle) that
    the kernel delays. The option is not sticky, so it is set before every read.
    """

    def readinto(self, buffer: Any) -> int | None:
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # type: ignore[attr-defined]
        return super().readinto(buffer)


def enable_quick_ack(gateway: Java) -> None:
    """Make this thread's py4j connection read without stalls. Linux only; elsewhere this does nothing."""
    if not hasattr(socket, "TCP_QUICKACK"):
        return
    client = gateway._gateway_client
    connection = client.get_thread_connection() if hasattr(client, "get_thread_connection") else None
    if connection is None or connection.socket is None or isinstance(connection.stream.raw, _PromptReader):
        return
    sock = connection.socket
    if not isinstance(sock, socket.socket) or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock._io_refs += 1  # type: ignore[attr-defined]  # as makefile() does; closing the reader undoes it
    connection.stream = io.BufferedReader(_PromptReader(sock, "r"), buffer_size=1 << 16)
