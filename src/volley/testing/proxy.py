# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that drops a server's response, or breaks or stalls all connections, at a moment that a test chooses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress


class LossyProxy:
    """Forwards connections to `port` on loopback. When `lose_when` returns True, the server's next data and its
    connection are dropped, once. `on_request` is given what clients send."""

    def __init__(self, port: int, lose_when: Callable[[], bool] = lambda: False) -> None:
        self._target = port
        self._lose_when = lose_when
        self.on_request: Callable[[bytes], None] | None = None
        self.lost = 0
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        """Break all connections. New ones are forwarded."""
        with self._lock:
            broken, self._open = self._open, []
        for connection in broken:
            _end(connection)

    def lose_next(self) -> None:
        """Drop the server's next data and its connection."""
        with self._lock:
            self.lost = 0
        lost = iter((True,))
        self._lose_when = lambda: next(lost, False)

    def stall(self) -> None:
        """Forward nothing until `resume`. Connections stay open."""
        self._flows.clear()

    def resume(self) -> None:
        self._flows.set()

    def close(self) -> None:
        self.resume()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            sockets = list(self._open)
        for connection in sockets:
            _end(connection)
        for thread in list(self._threads):
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()  # the server is down, but may come back
                continue
            with self._lock:
                self._open += [client, server]
            for source, target, may_lose in ((client, server, False), (server, client, True)):
                thread = threading.Thread(target=self._forward, args=(source, target, may_lose), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _forward(self, source: socket.socket, target: socket.socket, may_lose: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if may_lose and self._loses():
                    break
                if not may_lose and (look := self.on_request) is not None:
                    look(data)
                self._flows.wait()
                target.sendall(data)
        _end(source)
        _end(target)

    def _loses(self) -> bool:
        with self._lock:
            if self.lost or not self._lose_when():
                return False
            self.lost += 1
            return True


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
