# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that loses, delays, stalls, breaks or repeats what passes, at a moment that a test chooses."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

# Requests of some queries are far smaller; exchanged data is not worth keeping.
_REPEATABLE_BYTES = 1 << 20
_REPEAT_SECONDS = 2.0


@dataclass
class _Link:
    """A connection of a client, and the one to the server that belongs to it."""

    client: socket.socket
    server: socket.socket
    is_silent: bool = False
    sent: list[bytes] = field(default_factory=list)
    sent_bytes: int = 0

    def end(self) -> None:
        for connection in (self.client, self.server):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


class LossyProxy:
    """Forwards connections to `port` on loopback. When `lose_when` returns True, the server's next data and its
    connection are dropped, once. `on_request` is given what clients send. `hits` counts what really happened to
    connections and data, by the name of the method that asked for it."""

    def __init__(self, port: int, lose_when: Callable[[], bool] = lambda: False) -> None:
        self._target = port
        self._lose_when = lose_when
        self._is_due = True
        self.on_request: Callable[[bytes], None] | None = None
        self.hits: Counter[str] = Counter()
        self._flows = threading.Event()
        self._flows.set()
        self._delay: Callable[[], float] | None = None
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[_Link] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        """Break all connections. New ones are forwarded."""
        with self._lock:
            broken, self._open = self._open, []
            self.hits["cut"] += len(broken)
        for link in broken:
            link.end()

    def lose_next(self) -> None:
        """Drop the server's next data and its connection."""
        with self._lock:
            self._is_due = True
        self._lose_when = lambda: True

    def keep_next(self) -> None:
        """Take back `lose_next`."""
        self._lose_when = lambda: False

    @property
    def lost(self) -> int:
        """How often data was dropped with its connection."""
        return self.hits["lose"]

    def stall(self) -> None:
        """Forward nothing until `flow`. Connections stay open."""
        self._flows.clear()

    def flow(self) -> None:
        self._flows.set()

    def silence(self) -> None:
        """Leave all connections open for ever, and drop what is sent on them, as after the loss of a route."""
        with self._lock:
            for link in self._open:
                link.is_silent = True

    def slow(self, most_seconds: float, chance: random.Random | None = None) -> None:
        """Delay all that passes until `hurry`; with `chance` by random times, so that connections overtake others."""
        self._delay = lambda: chance.uniform(0, most_seconds) if chance else most_seconds

    def hurry(self) -> None:
        self._delay = None

    def repeat(self, chance: random.Random | None = None) -> bool:
        """Send the server once more all that clients have sent on one open connection, the first one or any. False if
        there is none."""
        with self._lock:
            links = [link for link in self._open if link.sent and link.sent_bytes <= _REPEATABLE_BYTES]
            chosen = (chance.choice(links) if chance else links[0]) if links else None
            chunks = list(chosen.sent) if chosen else []
        if not chunks:
            return False
        thread = threading.Thread(target=self._send_again, args=(chunks,), daemon=True)
        self._threads.append(thread)
        thread.start()
        return True

    def resume(self) -> None:
        """End all that lasts."""
        self.hurry()
        self.flow()

    def close(self) -> None:
        self.resume()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            links = list(self._open)
        for link in links:
            link.end()
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
            link = _Link(client, server)
            with self._lock:
                self._open.append(link)
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            for is_request in (True, False):
                thread = threading.Thread(target=self._forward, args=(link, is_request), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _forward(self, link: _Link, is_request: bool) -> None:
        source, target = (link.client, link.server) if is_request else (link.server, link.client)
        with suppress(OSError):
            while data := source.recv(65536):
                if not is_request and self._loses():
                    break
                if is_request:
                    self._record(link, data)
                    if (look := self.on_request) is not None:
                        look(data)
                if not self._flows.is_set():
                    self._count("stall")
                    self._flows.wait()
                if (delay := self._delay) is not None:
                    self._count("slow")
                    time.sleep(delay())
                if link.is_silent:
                    self._count("silence")
                else:
                    target.sendall(data)
        link.end()
        with self._lock:
            if link in self._open:
                self._open.remove(link)

    def _record(self, link: _Link, data: bytes) -> None:
        link.sent_bytes += len(data)
        if link.sent_bytes <= _REPEATABLE_BYTES:
            link.sent.append(data)
        else:
            link.sent.clear()

    def _send_again(self, chunks: list[bytes]) -> None:
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self._target), _REPEAT_SECONDS) as connection,
        ):
            for chunk in chunks:
                connection.sendall(chunk)
            self._count("repeat")
            deadline = time.monotonic() + _REPEAT_SECONDS
            while time.monotonic() < deadline and connection.recv(65536):
                pass

    def _loses(self) -> bool:
        with self._lock:
            if not self._is_due or not self._lose_when():
                return False
            self._is_due = False
            self.hits["lose"] += 1
            return True

    def _count(self, what: str) -> None:
        with self._lock:
            self.hits[what] += 1
