# SPDX-License-Identifier: Apache-2.0
"""What callers without the token can make a server hold: little, and not for long."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.waiting import eventually
from volley.rpc.client import Client
from volley.rpc.control import Ack, AskHealth, Health
from volley.rpc.guard import ConnectionGuard, GuardLimits
from volley.rpc.server import Server, listen
from volley.security import Security

TOKEN = Security("the right one")
LIMITS = GuardLimits(
    one_bytes=4 << 20, all_bytes=6 << 20, connections=8, silent_seconds=0.5, look_seconds=0.01
)


class Counting(Server):
    def __init__(self, uri: str, **security: Any) -> None:
        self.received_bytes = 0
        super().__init__(uri, **security)

    def answer(self, action: str, body: pa.Buffer) -> Any:
        self.received_bytes += body.size
        return Ack()


@contextmanager
def serving(limits: GuardLimits) -> Iterator[Counting]:
    server = listen(Counting, "127.0.0.1", 0, TOKEN, limits=limits)
    server.open()
    try:
        yield server
    finally:
        server.shutdown()


class Sink:
    """Accepts connections and reads all that comes, as gRPC does."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while connection.recv(1 << 20):
                pass


@pytest.fixture
def sink() -> Iterator[Sink]:
    found = Sink()
    yield found
    found.listener.close()


@pytest.fixture
def guard(sink: Sink) -> Iterator[ConnectionGuard]:
    found = ConnectionGuard(sink.port, LIMITS)
    yield found
    found.close()


def send(connection: socket.socket, size_bytes: int) -> None:
    for _ in range(size_bytes >> 20):
        connection.sendall(bytes(1 << 20))


def test_a_stranger_may_send_little(sink: Sink, guard: ConnectionGuard) -> None:
    with sink.connect() as stranger:
        send(stranger, 2 << 20)
        assert not is_closed(stranger)
        send(stranger, 3 << 20)
        eventually(lambda: is_closed(stranger))


def test_strangers_together_may_send_little(sink: Sink, guard: ConnectionGuard) -> None:
    strangers = [sink.connect() for _ in range(4)]
    for stranger in strangers:
        with suppress(OSError):
            send(stranger, 2 << 20)
    eventually(lambda: any(map(is_closed, strangers)))
    for stranger in strangers:
        stranger.close()


def test_there_are_few_strangers_and_none_stays_silent(sink: Sink, guard: ConnectionGuard) -> None:
    strangers = [sink.connect() for _ in range(20)]
    eventually(lambda: sum(map(is_closed, strangers)) >= 12)
    eventually(lambda: all(map(is_closed, strangers)))
    for stranger in strangers:
        stranger.close()


def test_who_has_authenticated_is_left_alone(sink: Sink, guard: ConnectionGuard) -> None:
    with sink.connect() as friend:
        host, port = friend.getsockname()
        guard.admit(f"ipv4:{host}:{port}")
        send(friend, 16 << 20)
        with sink.connect() as stranger:
            eventually(lambda: is_closed(stranger))
        assert not is_closed(friend)


def test_a_server_admits_who_shows_the_token() -> None:
    with serving(LIMITS) as server, Client(f"127.0.0.1:{server.port}", TOKEN) as friend:
        friend.call("x", AskHealth())
        for _ in range(3):
            assert friend.call("x", bytes(8 << 20)) == Ack()
        assert server.received_bytes > 24 << 20


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has ended the connection: what it sent before is read first."""
    connection.setblocking(False)
    try:
        while data := connection.recv(65536):
            assert data
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.setblocking(True)
    return True


BODY_BYTES = 400 << 20
ATTACK = """
import sys
from volley.rpc.client import Client
from volley.security import Security

with Client(sys.argv[1], Security(sys.argv[2] or None)) as stranger:
    stranger.call("health", bytes(int(sys.argv[3])), timeout_seconds=20)
"""


@pytest.mark.slow
@pytest.mark.parametrize("shown", [Security(), Security("wrong")], ids=["no token", "wrong token"])
@pytest.mark.parametrize("daemon", ["worker", "shuffle-service"])
def test_large_requests_without_the_token_cost_a_daemon_little_memory(
    tmp_path: Path, daemon: str, shown: Security
) -> None:
    command = [sys.executable, "-m", "volley.cli.main", daemon, "--memory", "256m", "--dir", str(tmp_path)]
    environment = os.environ | {"VOLLEY_TOKEN": "the right one"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    try:
        assert process.stdout is not None
        words = process.stdout.readline().decode().split()
        address = next(word.rstrip(":") for word in words if ":" in word)
        idle_bytes = memory_of(process.pid, "VmRSS")
        # In processes of their own: a client whose connection breaks in the middle of such a request may hang.
        attack = [sys.executable, "-c", ATTACK, address, shown.token or "", str(BODY_BYTES)]
        for _ in range(2):
            attackers = [subprocess.Popen(attack, stderr=subprocess.DEVNULL) for _ in range(4)]
            for attacker in attackers:
                with suppress(subprocess.TimeoutExpired):
                    attacker.wait(20)
                attacker.kill()
                attacker.wait()
        # Before connections were watched it was six times the size of a body.
        assert memory_of(process.pid, "VmHWM") - idle_bytes < BODY_BYTES / 2
        eventually(lambda: memory_of(process.pid, "VmRSS") - idle_bytes < 64 << 20)
        with Client(address, TOKEN) as friend:
            if daemon == "worker":
                friend.call("health", AskHealth(), Health)
    finally:
        process.kill()
        process.wait()


def memory_of(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)
