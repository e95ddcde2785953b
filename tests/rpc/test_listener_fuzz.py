# SPDX-License-Identifier: Apache-2.0
"""Whatever arrives at a listener, with and without the token: it lives on, and keeps neither memory nor descriptors.

Real requests are captured on their way to a listener, and sent again with bytes changed, cut, doubled or moved.
`make fuzz-listeners MINUTES=10 SEED=0` is how long each listener gets them, and which ones.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from helpers.waiting import eventually
from volley.cluster import LocalCluster, Member
from volley.errors import VolleyError
from volley.process.allocator import resident_bytes
from volley.rpc.client import Client
from volley.rpc.control import AskHealth, Health, JoinRegistry, Role
from volley.rpc.shuffle_messages import ServiceHealth
from volley.security import Security
from volley.testing.chaos.resources import held
from volley.testing.proxy import LossyProxy

SECONDS = 60 * float(os.environ.get("FUZZ_MINUTES", "10"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
ACTIONS = (
    "hello",
    "reserve",
    "start",
    "run",
    "watch",
    "feed",
    "cancel",
    "perform",
    "await",
    "release",
    "bye",
    "health",
    "keep",
    "push",
    "commit",
    "abort",
    "pull",
    "ended",
    "register",
    "join",
    "leave",
)
_GROWTH_BYTES = 128 << 20
TOKEN = "f" * 64
BODY = b'{"version": 1, "message": {"$": "AskHealth"}}'

DRIVER = """
import sys, threading
from volley.security import Security
from volley.transport.spark_control import Control
control = Control("127.0.0.1", "127.0.0.1", Security(token=sys.argv[1]), insecure=False, on_sidecar=print)
print('{"address": "%s"}' % control.address, flush=True)
threading.Event().wait()
"""


@dataclass
class Listener:
    """A process that listens. `use` is an honest client of it, which raises if it is not served."""

    pid: int
    address: str
    use: Callable[[str], None]
    token: str = ""
    is_alive: Callable[[], bool] = field(default=lambda: True)


@contextmanager
def run_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(1, cores=1, memory="256m", services=1) as running:
        yield running


def of_member(cluster: LocalCluster, member: Member) -> Listener:
    def use(address: str) -> None:
        with Client(address, cluster.security, role="daemon") as client:
            for _ in range(3):
                client.call("health", AskHealth(), Health | ServiceHealth)

    return Listener(member.pid, member.address, use, str(cluster.security.token), lambda: member.alive)


@contextmanager
def run_worker() -> Iterator[Listener]:
    with run_cluster() as cluster:
        yield of_member(cluster, cluster.members[0])


@contextmanager
def run_server() -> Iterator[Listener]:
    with run_cluster() as cluster:
        yield of_member(cluster, cluster.servers[0])


@contextmanager
def run_process(command: list[str], use: Callable[[str], None], token: str = "") -> Iterator[Listener]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, *command], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            address = (said.get("address") or said["url"]).removeprefix("http://").partition("/")[0]
            yield Listener(process.pid, address, use, token, lambda: process.poll() is None)
        finally:
            process.kill()


@contextmanager
def run_sidecar(directory: Path) -> Iterator[Listener]:
    """The daemon beside a Spark executor, for which this process stands."""
    ready = directory / "own" / "address"
    ready.parent.mkdir()
    words = {
        "executor": {"pid": os.getpid(), "started": 0, "host": "127.0.0.1", "cores": 1},
        "settings": {
            "token": TOKEN,
            "files": ["", "", ""],
            "insecure": False,
            "memory_bytes": 256 << 20,
            "cores_a_task": 1,
            "options": {},
        },
        "ready": str(ready),
        "directories": [str(directory)],
    }

    def use(address: str) -> None:
        with Client(address, Security(token=TOKEN), role="daemon") as client:
            client.call("health", AskHealth(), Health)

    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "volley.transport.sidecar"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(words).encode())
            process.stdin.close()
            eventually(ready.exists, 60)
            address = json.loads(ready.read_text())["address"]
            yield Listener(process.pid, address, use, TOKEN, lambda: process.poll() is None)
        finally:
            process.kill()


def use_driver(address: str) -> None:
    """The driver's endpoint has no health: it refuses a call about an attempt that it does not know."""
    with Client(address, Security(token=TOKEN), role="driver") as client, suppress(VolleyError):
        client.call("health", AskHealth(), Health)
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=10).close()


def use_registry(address: str) -> None:
    with Client(address, Security(token=TOKEN), role="registry") as client:
        for _ in range(3):
            client.call("join", JoinRegistry(Role.WORKER, "127.0.0.1:1", 10.0))


def use_page(path: str) -> Callable[[str], None]:
    def use(address: str) -> None:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            assert answer.status == 200
            assert answer.read()

    return use


@contextmanager
def run_metrics(directory: Path) -> Iterator[Listener]:
    """The metrics of a shuffle server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["-m", "volley.cli.main", "shuffle-service", "--json", "--port", "0", "--dirs", str(directory)]
    with run_process([*command, "--metrics-port", str(port), "--no-token"], use_page("/metrics")) as listener:
        yield Listener(listener.pid, f"127.0.0.1:{port}", listener.use, is_alive=listener.is_alive)


def use_connect(address: str) -> None:
    """A question that Spark Connect's own client asks first."""
    import grpc
    from pyspark.sql.connect.proto import AnalyzePlanRequest, SparkConnectServiceStub

    request = AnalyzePlanRequest(session_id="00112233-4455-6677-8899-aabbccddeeff")
    request.user_context.user_id = "fuzz"
    request.spark_version.SetInParent()
    with grpc.insecure_channel(address) as channel:
        SparkConnectServiceStub(channel).AnalyzePlan(request, timeout=60)  # type: ignore[no-untyped-call]


@contextmanager
def run_listener(name: str, directory: Path) -> Iterator[Listener]:
    cli = ["-m", "volley.cli.main"]
    match name:
        case "worker":
            making = run_worker()
        case "server":
            making = run_server()
        case "sidecar":
            making = run_sidecar(directory)
        case "driver":
            making = run_process(["-c", DRIVER, TOKEN], use_driver, TOKEN)
        case "registry":
            (directory / "token").write_text(TOKEN)
            (directory / "token").chmod(0o600)
            command = [*cli, "registry", "--port", "0", "--json", "--token-file", str(directory / "token")]
            command += ["--workers-file", str(directory / "workers")]
            making = run_process(command, use_registry, TOKEN)
        case "dashboard":
            command = [*cli, "dashboard", "--port", "0", "--json", "--dir", str(directory)]
            making = run_process(command, use_page("/"))
        case "metrics":
            making = run_metrics(directory)
        case _:
            pytest.importorskip("grpc")
            words = [*cli, "connect-server", "--master", "local[1]", "--port", "0", "--json"]
            making = run_process([*words, "--conf", f"spark.sql.warehouse.dir={directory}"], use_connect)
    with making as listener:
        yield listener


def change(data: bytes, chance: random.Random) -> bytes:
    """The bytes with one change."""
    if not data:
        return chance.randbytes(chance.randrange(64))
    at, end = sorted((chance.randrange(len(data)), chance.randrange(len(data) + 1)))
    match chance.randrange(6):
        case 0:
            return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
        case 1:
            return data[:at]
        case 2:
            return data[:at] + data[at:end] * chance.randrange(2, 40) + data[end:]
        case 3:
            return data[:at] + data[end:]
        case 4:
            return data[:at] + chance.randbytes(end - at) + data[end:]
        case _:
            return data[:at] + b"\xff\xff\xff\x7f" + data[at + 4 :]


def capture(listener: Listener) -> list[bytes]:
    """What an honest client sends in a connection of its own."""
    sent: list[bytes] = []
    proxy = LossyProxy(int(listener.address.rpartition(":")[2]))
    proxy.on_request = sent.append
    listener.use(proxy.address)
    proxy.close()
    assert sum(map(len, sent)) > 50
    return sent


def send(address: str, chunks: list[bytes]) -> None:
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=5) as connection:
        for chunk in chunks:
            connection.sendall(chunk)
        connection.settimeout(0.05)
        connection.recv(1 << 16)


def call(client: flight.FlightClient, options: flight.FlightCallOptions, chance: random.Random) -> None:
    """One call of a client that has the token, with a body that is not what it should be."""
    with suppress(pa.ArrowException, OSError):
        match chance.randrange(3):
            case 0:
                list(client.do_action(flight.Action(chance.choice(ACTIONS), change(BODY, chance)), options))
            case 1:
                client.do_get(flight.Ticket(change(b"result " + BODY, chance)), options).read_all()
            case _:
                schema = pa.schema([("n", pa.int64())])
                writer, _ = client.do_put(
                    flight.FlightDescriptor.for_command(change(BODY, chance)), schema, options
                )
                writer.write_batch(pa.record_batch({"n": pa.arange(0, chance.randrange(1000))}))
                writer.close()


LISTENERS = ("worker", "server", "sidecar", "driver", "registry", "dashboard", "metrics", "connect")


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS + 300)
@pytest.mark.parametrize("name", LISTENERS)
def test_changed_requests(name: str, tmp_path: Path) -> None:
    chance = random.Random(f"{SEED} {name}")
    before: tuple[int, int] | None = None
    sent = 0
    with run_listener(name, tmp_path) as listener:
        captured = capture(listener)
        headers = [(b"authorization", f"Bearer {listener.token}".encode())]
        options = flight.FlightCallOptions(timeout=5, headers=headers)
        with flight.FlightClient(f"grpc+tcp://{listener.address}") as client:
            started = time.monotonic()
            while (passed := time.monotonic() - started) < SECONDS:
                chunks = list(captured)
                for _ in range(chance.randrange(1, 4)):
                    number = chance.randrange(len(chunks))
                    chunks[number] = change(chunks[number], chance)
                send(listener.address, chunks)
                if listener.token:
                    call(client, options, chance)
                sent += 1
                if before is None and passed > SECONDS / 10:
                    before = (resident_bytes(listener.pid), held(listener.pid).descriptors)
                assert listener.is_alive(), f"it ended after {sent} requests"
        assert sent > SECONDS / 5
        print(f"{name}: {sent} changed requests in {SECONDS / 60:.1f} minutes, seed {SEED}")
        assert before is not None
        listener.use(listener.address)
        descriptors = before[1] + 20
        eventually(lambda: held(listener.pid).descriptors < descriptors, 90)
        assert resident_bytes(listener.pid) - before[0] < _GROWTH_BYTES
