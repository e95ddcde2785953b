# SPDX-License-Identifier: Apache-2.0
"""Whatever arrives at a listener, with and without the token: it lives on, and keeps neither memory nor descriptors.

Real requests are captured on their way to a daemon, and sent again with bytes that were changed, cut, doubled or moved.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from helpers.waiting import eventually
from volley.allocator import resident_bytes
from volley.cluster import LocalCluster, Member
from volley.rpc.client import Client
from volley.rpc.control import AskHealth, Health
from volley.rpc.service import ServiceHealth
from volley.testing.chaos.resources import held
from volley.testing.proxy import LossyProxy

SECONDS = float(os.environ.get("FUZZ_SECONDS", "600"))
ACTIONS = (
    "hello",
    "reserve",
    "run",
    "watch",
    "feed",
    "cancel",
    "release",
    "bye",
    "health",
    "keep",
    "push",
    "commit",
)
_GROWTH_BYTES = 128 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(1, cores=1, memory="256m", services=1) as running:
        yield running


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


def capture(cluster: LocalCluster, member: Member) -> list[bytes]:
    """What a client sends in a connection of its own."""
    sent: list[bytes] = []
    proxy = LossyProxy(int(member.address.rpartition(":")[2]))
    proxy.on_request = sent.append
    with Client(proxy.address, cluster.security, role="daemon") as client:
        for _ in range(3):
            client.call("health", AskHealth(), Health | ServiceHealth)
    proxy.close()
    assert sum(map(len, sent)) > 100
    return sent


def send(address: str, chunks: list[bytes]) -> None:
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=5) as connection:
        for chunk in chunks:
            connection.sendall(chunk)
        connection.settimeout(0.05)
        connection.recv(1 << 16)


def call(
    client: flight.FlightClient, options: flight.FlightCallOptions, chance: random.Random, body: bytes
) -> None:
    """One call of a client that has the token, with a body that is not what it should be."""
    with suppress(pa.ArrowException, OSError):
        match chance.randrange(3):
            case 0:
                list(client.do_action(flight.Action(chance.choice(ACTIONS), change(body, chance)), options))
            case 1:
                client.do_get(flight.Ticket(change(b"result " + body, chance)), options).read_all()
            case _:
                schema = pa.schema([("n", pa.int64())])
                writer, _ = client.do_put(
                    flight.FlightDescriptor.for_command(change(body, chance)), schema, options
                )
                writer.write_batch(pa.record_batch({"n": pa.arange(0, chance.randrange(1000))}))
                writer.close()


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS + 300)
@pytest.mark.parametrize("daemon", ["worker", "server"])
def test_changed_requests(cluster: LocalCluster, daemon: str) -> None:
    (member,) = cluster.members if daemon == "worker" else cluster.servers
    captured = capture(cluster, member)
    chance = random.Random(9)
    body = b'{"version": 1, "message": {"$": "AskHealth"}}'
    headers = [(b"authorization", f"Bearer {cluster.security.token}".encode())]
    options = flight.FlightCallOptions(timeout=5, headers=headers)
    before: tuple[int, int] | None = None
    sent = 0
    with flight.FlightClient(f"grpc+tcp://{member.address}") as client:
        started = time.monotonic()
        while (passed := time.monotonic() - started) < SECONDS:
            chunks = list(captured)
            for _ in range(chance.randrange(1, 4)):
                number = chance.randrange(len(chunks))
                chunks[number] = change(chunks[number], chance)
            send(member.address, chunks)
            call(client, options, chance, body)
            sent += 1
            if before is None and passed > SECONDS / 10:
                before = (resident_bytes(member.pid), held(member.pid).descriptors)
            assert member.alive, f"it ended after {sent} requests"
    assert sent > SECONDS
    assert before is not None
    with Client(member.address, cluster.security, role="daemon") as friend:
        friend.call("health", AskHealth(), Health | ServiceHealth)
    eventually(lambda: held(member.pid).descriptors < before[1] + 20, 90)
    assert resident_bytes(member.pid) - before[0] < _GROWTH_BYTES
