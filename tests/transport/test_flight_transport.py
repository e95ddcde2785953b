# SPDX-License-Identifier: Apache-2.0
"""The Flight transport keeps the contract of transports, over real daemons in real processes."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest

from volley.cluster import LocalCluster
from volley.config import Config
from volley.errors import BlockMissing, NoWorkers, QueryError
from volley.plan.nodes import Partitioning, Project
from volley.rpc import handshake
from volley.rpc.client import Client
from volley.rpc.messages import Failure, TaskDone, TaskFailure
from volley.security import Security
from volley.shuffle.config import ShuffleConfig
from volley.shuffle.factory import close_stores, driver_store
from volley.shuffle.session_options import options_to_send
from volley.stages.graph import Output
from volley.testing.contracts import (
    TransportContract,
    attempt_id,
    batch_of,
    commit_task,
    in_a_query,
    numbers,
    query_id,
    result_task,
    stage_task,
    start_task,
)
from volley.transport.base import Transport
from volley.transport.fleet import Fleet
from volley.transport.flight import FlightTask, FlightTransport, close_fleets, shared_fleet

TIMEOUT_SECONDS = 3.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(2, cores=2, memory="512m") as running:
        yield running


@pytest.fixture(scope="module")
def fleet(cluster: LocalCluster) -> Iterator[Fleet]:
    fleet = fleet_of(cluster)
    yield fleet
    fleet.close()


def fleet_of(cluster: LocalCluster, timeout_seconds: float = TIMEOUT_SECONDS) -> Fleet:
    fleet = Fleet(cluster.addresses, cluster.security, timeout_seconds)
    fleet.wait()
    return fleet


class TestFlightTransport(TransportContract):
    @pytest.fixture
    def make_transport(self, cluster: LocalCluster, fleet: Fleet) -> Callable[[int], Transport]:
        def make(workers: int) -> Transport:
            assert workers == len(fleet.peers)
            return FlightTransport(fleet)

        return make

    @pytest.mark.parametrize("how", ["cancel", "hello"])
    def test_a_worker_that_forgot_its_reservation_fails_the_attempt_alone(
        self, cluster: LocalCluster, fleet: Fleet, how: str
    ) -> None:
        """As it does when it restarts, or is greeted again, between the reservation and the start."""

        async def story(transport: Transport) -> None:
            while len(transport.workers()) < 2:
                await asyncio.sleep(0.02)
            worker = transport.workers()[0].name
            task = stage_task(numbers(10), Output(Partitioning.SINGLE), 0)
            assert await transport.reserve(worker, task.attempt)
            with Client(worker, cluster.security) as other:
                if how == "cancel":
                    other.call("cancel", task.attempt)
                else:
                    identity = handshake.Identity.of_this_process("driver")
                    other.greet(handshake.Hello(identity, fleet.driver))
            failure = await (await transport.start(worker, task)).done()
            assert isinstance(failure, TaskFailure)
            assert failure.failure is Failure.WORKER
            assert failure.code == "NOT_RESERVED" or how == "hello"
            while len(transport.workers()) < 2:
                await asyncio.sleep(0.02)
            again = replace(task, attempt=replace(task.attempt, attempt=1))
            assert (await commit_task(transport, again, worker=1)).rows == 10

        self.run(lambda _: FlightTransport(fleet), story)

    def test_rows_without_columns_are_counted(self, make_transport: Callable[[int], Transport]) -> None:
        async def story(transport: Transport) -> None:
            running = await start_task(transport, result_task(Project((), numbers(1000))))
            rows = 0
            async for batch in running.batches():
                rows += batch.num_rows
            done = await running.done()
            assert isinstance(done, TaskDone), done
            assert rows == done.rows == 1000

        self.run(make_transport, story)

    def test_an_attempt_of_a_query_that_is_over_is_refused(
        self, make_transport: Callable[[int], Transport]
    ) -> None:
        async def story(transport: Transport) -> None:
            task = stage_task(numbers(1), Output(Partitioning.SINGLE), 0)
            await commit_task(transport, task)
            await transport.release(query_id())
            late = replace(task, attempt=replace(task.attempt, attempt=1))
            assert not await transport.reserve(transport.workers()[0].name, late.attempt)
            failure = await (await transport.start(transport.workers()[0].name, late)).done()
            assert isinstance(failure, TaskFailure)

        self.run(make_transport, story)

    def test_the_driver_holds_a_bounded_part_of_a_result_that_nobody_takes(self, fleet: Fleet) -> None:
        limit_bytes = 1 << 20
        transport = FlightTransport(fleet, result_buffer_bytes=limit_bytes)

        async def story(transport: Transport) -> None:
            running = await start_task(transport, result_task(numbers(10**15)))
            batches = running.batches()
            largest = (await anext(batches)).nbytes
            assert isinstance(running, FlightTask)
            # Until one more batch would not fit; then it grows no more, however long nobody reads.
            while running.buffered_bytes + largest <= limit_bytes:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            assert running.buffered_bytes <= limit_bytes + largest
            await running.cancel()

        self.run(lambda _: transport, story)


class TestSessionOptions:
    """The workers were started without any options."""

    def test_a_session_chooses_the_store_of_its_queries(
        self, cluster: LocalCluster, fleet: Fleet, tmp_path: Path
    ) -> None:
        config = Config.read({"spark.volley.shuffle.store": tmp_path.as_uri()})
        shared = driver_store(ShuffleConfig.of(config), cluster.security)
        transport = FlightTransport(fleet, shared=shared, settings=options_to_send(config))

        async def story() -> None:
            task = stage_task(numbers(10), Output(Partitioning.SINGLE), 0)
            done = await commit_task(transport, replace(task, settings=options_to_send(config)))
            endpoint = await transport.open_ingest(query_id())
            pushed = await asyncio.to_thread(
                endpoint.push, attempt_id(7), 1, batch_of(1).schema, [batch_of(1, 2)]
            )
            for block in (*done.blocks, *pushed.blocks):
                assert (block.outlives_worker, block.location) == (True, tmp_path.as_uri())
                assert sum(batch.num_rows for batch in transport.fetch(block)) == block.rows
            assert [health.held_bytes for health in cluster.health() if health] == [0, 0]
            await transport.release(query_id())

        run(story)
        close_stores()
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]

    def test_a_session_chooses_how_data_is_kept(self, fleet: Fleet) -> None:
        transport = FlightTransport(fleet)

        async def story() -> None:
            for number, (threshold, spilled) in enumerate([("0.8", False), ("0", True)]):
                task = stage_task(numbers(1000), Output(Partitioning.SINGLE), number)
                settings = (("shuffle.spillThreshold", threshold),)
                done = await commit_task(transport, replace(task, settings=settings))
                assert [block.spilled_bytes > 0 for block in done.blocks] == [spilled]
            await transport.release(query_id())

        run(story)

    def test_what_a_worker_does_not_allow_is_a_failure_that_says_so(self, fleet: Fleet) -> None:
        transport = FlightTransport(fleet)

        async def story() -> None:
            task = stage_task(numbers(1), Output(Partitioning.SINGLE), 0)
            settings = (("shuffle.store", "os:system"),)
            failure = await (await start_task(transport, replace(task, settings=settings))).done()
            assert isinstance(failure, TaskFailure)
            assert (failure.failure, failure.code) == (Failure.INTERNAL, "OPTION_REFUSED")
            assert "cannot let this worker import os:system" in failure.message
            await transport.release(query_id())

        run(story)


class TestSharedFleets:
    @pytest.fixture(autouse=True)
    def _closed(self) -> Iterator[None]:
        yield
        close_fleets()

    def test_a_fleet_stays_open_for_whoever_asked_for_it_and_has_not_begun(
        self, cluster: LocalCluster
    ) -> None:
        ours = shared_fleet(cluster.addresses, cluster.security, TIMEOUT_SECONDS)
        transport = FlightTransport(ours)
        shared_fleet(cluster.addresses[:1], cluster.security, TIMEOUT_SECONDS).close()

        async def story() -> None:
            done = await commit_task(transport, stage_task(numbers(10), Output(Partitioning.SINGLE), 0))
            assert done.rows == 10
            await transport.release(query_id())

        run(story)

    def test_a_fleet_that_nobody_uses_is_closed(self, cluster: LocalCluster) -> None:
        ended = shared_fleet(cluster.addresses, cluster.security, TIMEOUT_SECONDS)
        transport = FlightTransport(ended)
        run(lambda: transport.release(query_id()))
        dropped = shared_fleet(cluster.addresses[1:], cluster.security, TIMEOUT_SECONDS)
        forgotten = dropped.fleet
        del dropped
        shared_fleet(cluster.addresses[:1], cluster.security, TIMEOUT_SECONDS)
        assert not any(peer.up for peer in (*ended.fleet.peers, *forgotten.peers))


class TestPeers:
    def test_a_listener_that_fails_does_not_end_the_watch(self, cluster: LocalCluster, fleet: Fleet) -> None:
        def fails(news: object) -> None:
            raise KeyError("a defect")

        async def story() -> None:
            transport = FlightTransport(fleet)
            task = stage_task(numbers(10), Output(Partitioning.SINGLE), 0)
            peer = fleet[transport.workers()[0].name]
            assert await transport.reserve(peer.address, task.attempt)
            peer.listen(task.attempt, fails)
            await transport.call(peer, "run", task)
            # Its news comes in order: when this one is heard, the other was.
            other = await commit_task(transport, stage_task(numbers(10), Output(Partitioning.SINGLE), 1))
            assert other.rows == 10
            assert peer.up
            await transport.release(query_id())

        run(story)

    def test_an_invalid_address_is_an_error_at_once(self) -> None:
        fleet = Fleet(["not an address"], Security(), timeout_seconds=30.0)
        began = time.monotonic()
        with pytest.raises(NoWorkers, match="cannot connect to"):
            fleet.wait()
        assert time.monotonic() - began < 15
        fleet.close()


def run(story: Callable[[], Any]) -> Any:
    async def told() -> Any:
        return await asyncio.wait_for(story(), timeout=60)

    with in_a_query():
        return asyncio.run(told())


class TestLostWorkers:
    """These break workers. The last leaves one behind, so it stays the last."""

    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls) -> Iterator[LocalCluster]:
        with LocalCluster(2, cores=1, memory="512m", arguments=["--tasks", "2"]) as running:
            yield running

    @pytest.fixture
    def fleet(self, cluster: LocalCluster) -> Iterator[Fleet]:
        fleet = fleet_of(cluster, timeout_seconds=1.5)
        yield fleet
        fleet.close()

    def test_kill_fails_its_attempts_at_once_and_a_successor_is_welcome(
        self, cluster: LocalCluster, fleet: Fleet
    ) -> None:
        async def story() -> None:
            transport = FlightTransport(fleet)
            done = await commit_task(transport, stage_task(numbers(10), Output(Partitioning.SINGLE), 0))
            stage = await start_task(transport, stage_task(numbers(10**15), Output(Partitioning.SINGLE), 1))
            result = await start_task(transport, result_task(numbers(10**15), 2))
            batches = result.batches()
            assert (await anext(batches)).num_rows
            victim = cluster.members[0]
            os.kill(victim.pid, signal.SIGKILL)
            killed = time.monotonic()
            async for _ in batches:
                pass
            for running in (stage, result):
                failure = await running.done()
                assert isinstance(failure, TaskFailure)
                assert (failure.failure, failure.code) == (Failure.WORKER, "WORKER_LOST")
                assert victim.address in failure.message
                await running.cancel()
            # The connection broke: nobody waited for a deadline.
            assert time.monotonic() - killed < 1.5
            assert [worker.name for worker in transport.workers()] == [cluster.members[1].address]
            assert not await transport.reserve(victim.address, result_task(numbers(1), 3).attempt)
            with pytest.raises(BlockMissing):
                list(transport.fetch(done.blocks[0]))

            victim.process.wait()
            cluster.members.remove(victim)
            await asyncio.to_thread(cluster.add, 1, port=int(victim.address.rpartition(":")[2]))
            while len(transport.workers()) < 2:
                await asyncio.sleep(0.05)
            again = await commit_task(transport, stage_task(numbers(10), Output(Partitioning.SINGLE), 4))
            assert again.rows == 10
            with pytest.raises(BlockMissing):
                list(transport.fetch(done.blocks[0]))
            await transport.release(query_id())

        run(story)

    def test_a_worker_that_hangs_is_lost_after_the_deadline_and_welcome_when_it_wakes(
        self, cluster: LocalCluster, fleet: Fleet
    ) -> None:
        async def story() -> None:
            transport = FlightTransport(fleet)
            hung = cluster.members[0]
            task = result_task(numbers(10**15))
            running = await start_task(transport, task)
            batches = running.batches()
            assert (await anext(batches)).num_rows
            os.kill(hung.pid, signal.SIGSTOP)
            stopped = time.monotonic()
            async for _ in batches:
                pass
            failure = await running.done()
            assert isinstance(failure, TaskFailure)
            assert failure.failure is Failure.WORKER
            assert "did not reply" in failure.message
            assert time.monotonic() - stopped < 10
            await running.cancel()
            assert hung.address not in {worker.name for worker in transport.workers()}

            os.kill(hung.pid, signal.SIGCONT)
            while len(transport.workers()) < 2:
                await asyncio.sleep(0.05)
            # It has given up the old attempt, and takes no notice of a late word about it.
            health = cluster.health()[0]
            assert health is not None
            assert health.running == 0
            assert not await transport.reserve(hung.address, task.attempt)
            other = result_task(numbers(5), 1)
            assert (await _count(await start_task(transport, other))) == 5
            await transport.release(query_id())

        run(story)

    def test_a_query_that_ended_while_its_worker_hung_is_freed_when_it_wakes(
        self, cluster: LocalCluster, fleet: Fleet
    ) -> None:
        async def story() -> None:
            transport = FlightTransport(fleet)
            task = stage_task(numbers(1000), Output(Partitioning.SINGLE), 0)
            await commit_task(transport, task)
            os.kill(cluster.members[0].pid, signal.SIGSTOP)
            while len(transport.workers()) > 1:
                await asyncio.sleep(0.05)
            await transport.release(query_id())
            os.kill(cluster.members[0].pid, signal.SIGCONT)
            while len(transport.workers()) < 2:
                await asyncio.sleep(0.05)
            health = cluster.health()[0]
            assert health is not None
            assert health.held_bytes == 0

        run(story)

    def test_a_draining_worker_finishes_and_takes_nothing_new(
        self, cluster: LocalCluster, fleet: Fleet
    ) -> None:
        async def story() -> None:
            transport = FlightTransport(fleet)
            going, staying = cluster.members
            running = await start_task(transport, result_task(numbers(3_000_000)))
            going.process.terminate()
            while len(transport.workers()) > 1:
                await asyncio.sleep(0.02)
            assert transport.workers()[0].name == staying.address
            assert not await transport.reserve(going.address, result_task(numbers(1), 1).attempt)
            assert await _count(running) == 3_000_000
            assert isinstance(await running.done(), TaskDone)
            await transport.release(query_id())
            assert await asyncio.to_thread(going.process.wait, 20) == 0

        run(story)


async def _count(running: Any) -> int:
    rows = 0
    async for batch in running.batches():
        rows += batch.num_rows
    return rows


class TestHandshake:
    @pytest.mark.parametrize(
        ("change", "named"),
        [
            ({"protocol_version": 99}, "protocol 99"),
            ({"engine_version": "1.2.3"}, "datafusion 1.2.3"),
            ({"hash_fingerprint": "beef"}, "hash fingerprint beef"),
        ],
        ids=["protocol", "engine", "hash"],
    )
    def test_another_version_is_refused_and_both_sides_are_named(
        self, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], named: str
    ) -> None:
        true = handshake.Identity.of_this_process("old driver")
        # The check of this side is taken away, so that the worker's own is seen.
        monkeypatch.setattr(handshake.Identity, "of_this_process", lambda name: replace(true, **change))
        monkeypatch.setattr(handshake.Identity, "require_same", lambda self, other: None)
        with pytest.raises(NoWorkers) as refused:
            fleet_of(cluster)
        assert named in str(refused.value)
        assert "old driver" in str(refused.value)
        assert f"worker {cluster.addresses[0]}" in str(refused.value)

    def test_either_side_refuses_another_protocol_version(self, cluster: LocalCluster) -> None:
        ours = handshake.Identity.of_this_process("driver")
        with pytest.raises(QueryError, match=r"worker x has protocol 7"):
            replace(ours, name="worker x", protocol_version=7).require_same(ours)

    def test_an_error_names_the_unreachable_worker(self, cluster: LocalCluster) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            fleet = Fleet([address], cluster.security, TIMEOUT_SECONDS)
            with pytest.raises(NoWorkers, match=address):
                fleet.wait()
            fleet.close()

    def test_a_worker_that_answers_nonsense_is_lost_at_once(self) -> None:
        """Not only when its query's deadline comes."""

        class Nonsense(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
            def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[bytes]:
                if action.type == "hello":
                    ours = handshake.Identity.of_this_process("worker")
                    yield handshake.to_json(handshake.Welcome(ours, cores=1, slots=1))
                    return
                assert heard.wait(TIMEOUT_SECONDS)
                yield b'{"version": 1, "message": {"$": "News", "odd": 1}}'

        heard, told = threading.Event(), queue.Queue[Any]()
        with Nonsense("grpc://127.0.0.1:0") as server:
            fleet = Fleet([f"127.0.0.1:{server.port}"], Security("token"), TIMEOUT_SECONDS)
            fleet.wait()
            attempt = result_task(numbers(1)).attempt
            fleet.peers[0].listen(attempt, told.put)
            heard.set()
            failure = told.get(timeout=TIMEOUT_SECONDS)
            fleet.close()
        assert isinstance(failure, TaskFailure)
        assert failure.failure is Failure.WORKER
        assert "not a message" in failure.message
