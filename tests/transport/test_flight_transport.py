# SPDX-License-Identifier: Apache-2.0
"""The Flight transport keeps the contract of transports, over real daemons in real processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.waiting import PATIENCE_SECONDS
from volley.cluster import LocalCluster
from volley.config import Config
from volley.errors import BlockMissing, NoWorkers
from volley.ids import QueryId
from volley.plan.nodes import Partitioning, Project
from volley.rpc import handshake
from volley.rpc.client import Client
from volley.rpc.message_counts import MessageCount, messages_by_action
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
from volley.transport.base import NoRoom, Transport
from volley.transport.fleet import Fleet
from volley.transport.flight import FlightTask, FlightTransport, close_fleets, lease_fleet

TIMEOUT_SECONDS = 30.0
# For workers that hang: the test waits for this to pass, and a busy one must not be taken for one that hangs.
HANG_SECONDS = 5.0


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
            fleet[worker].ask_for_a_while()
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

    def test_a_slot_that_another_driver_was_faster_to_take_is_asked_for(self, cluster: LocalCluster) -> None:
        """A driver counts the slots that it uses itself. It learns of others when it starts a task."""
        mine, other = fleet_of(cluster), fleet_of(cluster)
        their_query = QueryId(QueryId.new().value)

        async def story(transport: Transport) -> None:
            worker = transport.workers()[0]
            theirs = FlightTransport(other)
            attempts = [attempt_id(task, stage=9, query=their_query.value) for task in range(worker.slots)]
            # Nobody takes their rows, so they stay.
            for attempt in attempts:
                await start_task(theirs, replace(result_task(numbers(10**8)), attempt=attempt))
            task = stage_task(numbers(1), Output(Partitioning.SINGLE), 0)
            assert await transport.reserve(worker.name, task.attempt)
            with pytest.raises(NoRoom):
                await transport.start(worker.name, task)
            assert not await transport.reserve(worker.name, task.attempt)
            await theirs.release(their_query)
            assert (await commit_task(transport, task)).rows == 1

        try:
            self.run(lambda _: FlightTransport(mine), story)
        finally:
            mine.close()
            other.close()

    def test_a_task_is_started_by_one_message(self, cluster: LocalCluster) -> None:
        fleet = fleet_of(cluster)

        def count(action: str) -> int:
            return messages_by_action().get(action, MessageCount()).messages

        async def story(transport: Transport) -> None:
            before = {action: count(action) for action in ("reserve", "start", "run")}
            for task in range(3):
                await commit_task(transport, stage_task(numbers(1), Output(Partitioning.SINGLE), task))
            after = {action: count(action) - before[action] for action in before}
            assert after == {"reserve": 0, "start": 3, "run": 0}

        try:
            self.run(lambda _: FlightTransport(fleet), story)
        finally:
            fleet.close()

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
        ours = lease_fleet(cluster.addresses, cluster.security, TIMEOUT_SECONDS)
        transport = FlightTransport(ours)
        lease_fleet(cluster.addresses[:1], cluster.security, TIMEOUT_SECONDS).close()

        async def story() -> None:
            done = await commit_task(transport, stage_task(numbers(10), Output(Partitioning.SINGLE), 0))
            assert done.rows == 10
            await transport.release(query_id())

        run(story)

    def test_a_fleet_that_nobody_uses_is_closed(self, cluster: LocalCluster) -> None:
        ended = lease_fleet(cluster.addresses, cluster.security, TIMEOUT_SECONDS)
        transport = FlightTransport(ended)
        run(lambda: transport.release(query_id()))
        dropped = lease_fleet(cluster.addresses[1:], cluster.security, TIMEOUT_SECONDS)
        forgotten = dropped.fleet
        del dropped
        lease_fleet(cluster.addresses[:1], cluster.security, TIMEOUT_SECONDS)
        assert not any(peer.up for peer in (*ended.fleet.peers, *forgotten.peers))


class TestPeers:
    def test_a_listener_that_fails_does_not_end_the_watch(self, cluster: LocalCluster, fleet: Fleet) -> None:
        def fails(news: object) -> None:
            raise KeyError("a defect")

        async def story() -> None:
            transport = FlightTransport(fleet)
            task = stage_task(numbers(10), Output(Partitioning.SINGLE), 0)
            peer = fleet[transport.workers()[0].name]
            peer.ask_for_a_while()
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
        # With a deadline for replies, the test would run into its own.
        fleet = Fleet(["not an address"], Security(), timeout_seconds=3600.0)
        with pytest.raises(NoWorkers, match="cannot connect to"):
            fleet.wait()
        fleet.close()


def run(story: Callable[[], Any]) -> Any:
    async def told() -> Any:
        return await asyncio.wait_for(story(), timeout=PATIENCE_SECONDS)

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
        fleet = fleet_of(cluster)
        yield fleet
        fleet.close()

    @pytest.fixture
    def impatient(self, cluster: LocalCluster) -> Iterator[Fleet]:
        fleet = fleet_of(cluster, HANG_SECONDS)
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
            async for _ in batches:
                pass
            for running in (stage, result):
                failure = await running.done()
                assert isinstance(failure, TaskFailure)
                assert (failure.failure, failure.code) == (Failure.WORKER, "WORKER_LOST")
                assert victim.address in failure.message
                assert "did not reply" not in failure.message, (
                    "it broke the connection: nobody waits for a deadline"
                )
                await running.cancel()
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
        self, cluster: LocalCluster, impatient: Fleet
    ) -> None:
        async def story() -> None:
            transport = FlightTransport(impatient)
            hung = cluster.members[0]
            task = result_task(numbers(10**15))
            running = await start_task(transport, task)
            batches = running.batches()
            assert (await anext(batches)).num_rows
            os.kill(hung.pid, signal.SIGSTOP)
            async for _ in batches:
                pass
            failure = await running.done()
            assert isinstance(failure, TaskFailure)
            assert failure.failure is Failure.WORKER
            assert "did not reply" in failure.message
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
        self, cluster: LocalCluster, impatient: Fleet
    ) -> None:
        async def story() -> None:
            transport = FlightTransport(impatient)
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
            assert await asyncio.to_thread(going.process.wait, PATIENCE_SECONDS) == 0

        run(story)


async def _count(running: Any) -> int:
    rows = 0
    async for batch in running.batches():
        rows += batch.num_rows
    return rows
