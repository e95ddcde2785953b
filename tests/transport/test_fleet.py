# SPDX-License-Identifier: Apache-2.0
"""A fleet over broken connections, and over addresses that lead to the same worker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from helpers.waiting import PATIENCE_SECONDS, eventually
from volley.cluster import LocalCluster
from volley.coordinator.placement import Placement
from volley.errors import NoWorkers, PeerLost
from volley.plan.nodes import Partitioning
from volley.rpc.control import Ack
from volley.rpc.messages import TaskFailure
from volley.stages.graph import Output
from volley.testing.contracts import attempt_id, commit_task, in_a_query, numbers, query_id, stage_task
from volley.testing.proxy import LossyProxy
from volley.transport.fleet import WORKER_LOST, Fleet, Peer
from volley.transport.flight import FlightTransport

# Nothing here hangs: connections break, which is noticed without a deadline.
TIMEOUT_SECONDS = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(1, cores=1, memory="256m", arguments=["--tasks", "4"]) as running:
        yield running


@pytest.fixture
def proxies(cluster: LocalCluster) -> Iterator[list[LossyProxy]]:
    """Two addresses of the one worker."""
    port = port_of(cluster.addresses[0])
    made = [LossyProxy(port), LossyProxy(port)]
    yield made
    for proxy in made:
        proxy.close()


@pytest.fixture
def make_fleet(cluster: LocalCluster) -> Iterator[Callable[..., Fleet]]:
    made: list[Fleet] = []

    def make(*addresses: str, timeout_seconds: float = TIMEOUT_SECONDS) -> Fleet:
        made.append(Fleet(addresses, cluster.security, timeout_seconds))
        made[-1].wait()
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def run(story: Callable[[], Any]) -> None:
    async def told() -> None:
        await asyncio.wait_for(story(), timeout=PATIENCE_SECONDS)

    with in_a_query():
        asyncio.run(told())


def lose(fleet: Fleet, proxy: LossyProxy) -> None:
    """Break the connections of a peer. Returns when it has noticed; it may have reconnected by then."""
    lost = threading.Event()
    fleet[proxy.address].listen(attempt_id(), lambda news: lost.set())

    def cut() -> bool:
        # Between two calls nobody notices: gRPC reconnects for the next one.
        proxy.cut()
        return lost.is_set()

    eventually(cut)


class TestTwoAddressesOfOneWorker:
    def test_it_is_used_under_one_of_them(
        self, cluster: LocalCluster, make_fleet: Callable[..., Fleet]
    ) -> None:
        """Otherwise each peer would take outcomes that the other waits for, and the query would hang."""
        port = port_of(cluster.addresses[0])
        fleet = make_fleet(f"127.0.0.1:{port}", f"localhost:{port}")

        async def story() -> None:
            transport = FlightTransport(fleet)
            assert len(transport.workers()) == len(transport.holders()) == 1
            tasks = [stage_task(numbers(10), Output(Partitioning.SINGLE), number) for number in range(20)]
            for task in tasks:
                assert (await commit_task(transport, task)).rows == 10
            await transport.release(query_id())

        run(story)
        (unused,) = [peer for peer in fleet.peers if not peer.up]
        assert "listed under both addresses" in unused.problem

    def test_the_other_one_takes_over(
        self, proxies: list[LossyProxy], make_fleet: Callable[..., Fleet]
    ) -> None:
        fleet = make_fleet(*(proxy.address for proxy in proxies))
        (used,) = [proxy for proxy in proxies if fleet[proxy.address].up]
        (other,) = [proxy for proxy in proxies if proxy is not used]
        used.close()
        eventually(lambda: fleet[other.address].up)


def test_a_worker_that_lost_a_call_gets_nothing_until_it_answers(
    proxies: list[LossyProxy], make_fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks idle, and would get all attempts at a task before its own thread notices that it is dead."""
    fleet = make_fleet(proxies[0].address)
    peer = fleet[proxies[0].address]
    # Its thread waits for news while other calls are lost.
    watching, lost = threading.Event(), threading.Event()
    call = Peer.call

    def call_or_lose(self: Peer, action: str, message: Any, expect: Any = Ack) -> Any:
        if action == "watch":
            watching.set()
            lost.wait(PATIENCE_SECONDS)
        elif action == "start":
            raise PeerLost("the connection broke.")
        return call(self, action, message, expect)

    monkeypatch.setattr(Peer, "call", call_or_lose)

    async def story() -> None:
        transport = FlightTransport(fleet)
        tasks = [stage_task(numbers(10), Output(Partitioning.SINGLE), number) for number in range(2)]
        eventually(watching.is_set)
        assert await transport.reserve(peer.address, tasks[0].attempt)
        failure = await (await transport.start(peer.address, tasks[0])).done()
        assert isinstance(failure, TaskFailure)
        assert failure.code == WORKER_LOST
        assert peer.up
        assert not await transport.reserve(peer.address, tasks[1].attempt)
        # The reply that it was waiting for may have been on its way before; the next one is not.
        lost.set()
        monkeypatch.setattr(Peer, "call", call)
        eventually(lambda: not peer.is_doubted)
        assert (await commit_task(transport, tasks[1])).rows == 10
        await transport.release(query_id())

    run(story)


def test_a_killed_driver_frees_its_slots_at_once(cluster: LocalCluster) -> None:
    """Not when its lease expires, which is a minute later: others may wait for them."""
    address = cluster.addresses[0]
    program = subprocess.Popen(
        [sys.executable, "-c", DRIVER, address, str(cluster.token_file)], stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "running\n"

    def running() -> int:
        (health,) = cluster.health()
        assert health is not None
        return health.running

    try:
        assert running() == 1
        program.kill()
        # A lease is a minute.
        eventually(lambda: running() == 0, 30)
    finally:
        program.kill()
        program.communicate()


DRIVER = """
import asyncio, sys
from volley.plan.nodes import Partitioning
from volley.security import Security
from volley.rpc.control import Ack
from volley.rpc.messages import TaskFailure
from volley.stages.graph import Output
from volley.testing.contracts import numbers, stage_task, start_task
from volley.transport.fleet import WORKER_LOST, Fleet, Peer
from volley.transport.flight import FlightTransport

async def story():
    fleet = Fleet([sys.argv[1]], Security.read(sys.argv[2]), 10.0)
    fleet.wait()
    running = await start_task(FlightTransport(fleet), stage_task(numbers(10**15), Output(Partitioning.SINGLE), 0))
    print("running", flush=True)
    await running.done()

asyncio.run(story())
"""


class TestBrokenConnections:
    def test_whoever_comes_next_waits_for_the_worker_to_come_back(
        self, proxies: list[LossyProxy], make_fleet: Callable[..., Fleet]
    ) -> None:
        fleet = make_fleet(proxies[0].address)
        for _ in range(10):
            lose(fleet, proxies[0])
            fleet.wait()
            assert fleet.is_up

    def test_so_does_a_query_that_has_begun(
        self, proxies: list[LossyProxy], make_fleet: Callable[..., Fleet]
    ) -> None:
        fleet = make_fleet(proxies[0].address)

        async def story() -> None:
            transport = FlightTransport(fleet)
            await asyncio.to_thread(lose, fleet, proxies[0])
            assert await Placement(transport, TIMEOUT_SECONDS).place(attempt_id()) == proxies[0].address
            await transport.release(query_id())

        run(story)

    def test_nobody_waits_for_ever_and_only_the_first_waits_at_all(
        self, proxies: list[LossyProxy], make_fleet: Callable[..., Fleet]
    ) -> None:
        seconds = 5.0
        fleet = make_fleet(proxies[0].address, timeout_seconds=seconds)
        proxies[0].close()
        eventually(lambda: not fleet.is_up)
        assert fleet[proxies[0].address].missed
        began = time.monotonic()
        with pytest.raises(NoWorkers, match=proxies[0].address):
            fleet.wait()
        assert time.monotonic() - began > 0.9 * seconds
        assert not fleet[proxies[0].address].missed
        with pytest.raises(NoWorkers, match=proxies[0].address):
            fleet.wait()

    def test_a_query_without_workers_says_what_is_wrong_with_each(
        self, proxies: list[LossyProxy], make_fleet: Callable[..., Fleet]
    ) -> None:
        fleet = make_fleet(proxies[0].address)
        proxies[0].close()
        eventually(lambda: not fleet.is_up)

        async def story() -> None:
            with pytest.raises(NoWorkers, match=rf"NO_WORKERS.*{proxies[0].address}"):
                await Placement(FlightTransport(fleet), absence_seconds=0.1).place(attempt_id())

        run(story)
