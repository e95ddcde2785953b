# SPDX-License-Identifier: Apache-2.0
"""What the proxy does to connections: an echo server shows what arrived."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from helpers.waiting import eventually
from volley.testing.proxy import LossyProxy


class Echo:
    """Sends back what it gets, and remembers it by connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.got: list[bytes] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.got.append(b"")
                threading.Thread(target=self._echo, args=(connection, len(self.got) - 1), daemon=True).start()

    def _echo(self, connection: socket.socket, number: int) -> None:
        with suppress(OSError), connection:
            while data := connection.recv(1000):
                self.got[number] += data
                connection.sendall(data)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    running = Echo()
    yield running
    running.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[LossyProxy]:
    running = LossyProxy(echo.port)
    yield running
    running.close()


def connect(proxy: LossyProxy) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", int(proxy.address.rpartition(":")[2])), timeout=10)
    connection.sendall(b"one")
    assert connection.recv(10) == b"one"
    return connection


def test_old_connections_are_silent_and_new_ones_are_not(echo: Echo, proxy: LossyProxy) -> None:
    with connect(proxy) as old:
        proxy.silence()
        old.sendall(b"two")
        old.settimeout(0.1)
        with pytest.raises(TimeoutError):
            old.recv(10)
        with connect(proxy):
            assert echo.got == [b"one", b"one"]
        with pytest.raises(TimeoutError):
            old.recv(10)


def test_requests_are_delivered_twice(echo: Echo, proxy: LossyProxy) -> None:
    assert not proxy.repeat()
    with connect(proxy) as connection:
        connection.sendall(b"two")
        assert connection.recv(10) == b"two"
        assert proxy.repeat()
        eventually(lambda: echo.got == [b"onetwo", b"onetwo"])
        connection.sendall(b"three")
        assert connection.recv(10) == b"three"


def test_a_slow_link_delivers_all_and_ends(echo: Echo, proxy: LossyProxy) -> None:
    with connect(proxy) as connection:
        for chance in (None, random.Random(1)):
            proxy.slow(0.05, chance)
            connection.sendall(b"two")
            assert connection.recv(10) == b"two"
        proxy.resume()
        connection.sendall(b"three")
        assert connection.recv(10) == b"three"
