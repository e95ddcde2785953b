# SPDX-License-Identifier: Apache-2.0
"""Shuffle servers in processes that are killed or hang: the right rows, or an error that names the attempt."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pyarrow as pa
import pytest

from helpers.service_calls import MANY, holders, numbers, values
from volley.cluster import LocalCluster
from volley.errors import BlockMissing
from volley.ids import QueryId, StageId
from volley.shuffle.base import Block
from volley.shuffle.config import RetryPolicy
from volley.shuffle.service.placement import rank_servers
from volley.shuffle.service.store import ServiceStore
from volley.testing.contracts import attempt_id, batch_of
from volley.testing.shuffle_configs import shuffle_config


@pytest.fixture(scope="module")
def services() -> Iterator[LocalCluster]:
    """Three servers in processes of their own."""
    with LocalCluster(0, cores=1, memory="64m", services=3) as running:
        yield running


def of_services(
    services: LocalCluster, query: str, replicas: int = 2, stall_seconds: float = 10.0
) -> ServiceStore:
    config = shuffle_config(
        servers=tuple(server.address for server in services.servers),
        replicas=replicas,
        compression="none",
        retry=RetryPolicy(1, 0.05, stall_seconds),
    )
    store = ServiceStore(config, services.security, memory_limit_bytes=2**26)
    store.begin(QueryId(query))
    return store


def owners(services: LocalCluster, query: str) -> list[str]:
    """Those that get partition 0 of the query's first stage, while all servers live."""
    addresses = [server.address for server in services.servers]
    return rank_servers(addresses, StageId(QueryId(query), 0), 0)[:2]


def kill(services: LocalCluster, address: str) -> int:
    (number,) = [n for n, server in enumerate(services.servers) if server.address == address]
    services.servers[number].process.kill()
    services.servers[number].process.wait()
    return number


class TestProcesses:
    def test_every_block_is_there_after_kill_9_and_restart(self, services: LocalCluster) -> None:
        store = of_services(services, "restart", replicas=1)
        attempts = [attempt_id(task, query="restart") for task in range(4)]
        blocks: list[Block] = []
        for number, attempt in enumerate(attempts):
            sink = store.sink(attempt, 3)
            for partition in range(3):
                sink.write(partition, batch_of(number, partition))
            blocks += sink.commit()
        killed = [kill(services, server.address) for server in services.servers]
        services.restart_servers(*killed)
        assert values(store, *blocks) == [v for n in range(4) for p in range(3) for v in (n, p)]
        store.close()
        assert all(health and not health.queries for health in services.service_health())

    @pytest.mark.slow
    def test_a_server_is_killed_while_a_map_task_pushes(self, services: LocalCluster) -> None:
        store = of_services(services, "push")
        sink = store.sink(attempt_id(query="push"), 2)
        for partition in range(2):
            sink.write(partition, numbers())
        victim = owners(services, "push")[0]
        number = kill(services, victim)
        try:
            for partition in range(2):
                sink.write(partition, numbers())
            blocks = sink.commit()
            assert all(victim not in holders(block) and len(holders(block)) == 2 for block in blocks)
            assert values(store, *blocks) == 4 * list(range(MANY))
        finally:
            services.restart_servers(number)
        store.close()

    @pytest.mark.slow
    def test_a_server_is_killed_between_the_last_push_and_the_commit(self, services: LocalCluster) -> None:
        """Of the two that have everything one commits, and a third gets all of it and commits too."""
        store = of_services(services, "commit")
        sink = store.sink(attempt_id(query="commit"), 1)
        sink.write(0, numbers())
        sink.flush()
        victim = owners(services, "commit")[-1]
        number = kill(services, victim)
        try:
            (block,) = sink.commit()
            assert victim not in holders(block)
            assert len(holders(block)) == 2
            assert values(store, block) == list(range(MANY))
        finally:
            services.restart_servers(number)
        store.close()

    @pytest.mark.slow
    def test_a_server_is_killed_while_a_reducer_reads(self, services: LocalCluster) -> None:
        store = of_services(services, "read")
        # More than is read ahead, so that the stream is under way when its server goes.
        rows = 8_000_000
        sink = store.sink(attempt_id(query="read"), 1)
        sink.write(0, numbers(rows))
        (block,) = sink.commit()
        batches = store.read(block)
        read = [next(batches)]
        number = kill(services, holders(block)[0])
        try:
            read += batches
        finally:
            services.restart_servers(number)
        assert pa.Table.from_batches(read).column(0).equals(pa.chunked_array([pa.arange(0, rows)]))
        store.close()

    @pytest.mark.slow
    def test_a_server_that_hangs_is_left_out(self, services: LocalCluster) -> None:
        store = of_services(services, "hang", stall_seconds=1.0)
        sink = store.sink(attempt_id(query="hang"), 1)
        sink.write(0, numbers())
        victim = owners(services, "hang")[0]
        (process,) = [server.process for server in services.servers if server.address == victim]
        process.send_signal(signal.SIGSTOP)
        try:
            sink.write(0, numbers())
            (block,) = sink.commit()
            assert victim not in holders(block)
            assert values(store, block) == 2 * list(range(MANY))
        finally:
            process.send_signal(signal.SIGCONT)
        store.close()

    def test_without_a_replica_it_is_an_error_that_names_the_attempt(self, services: LocalCluster) -> None:
        store = of_services(services, "alone", replicas=1)
        sink = store.sink(attempt_id(query="alone"), 1)
        sink.write(0, batch_of(1))
        (block,) = sink.commit()
        number = kill(services, holders(block)[0])
        try:
            with pytest.raises(BlockMissing) as caught:
                values(store, block)
            assert caught.value.attempt == block.attempt
        finally:
            services.restart_servers(number)
        store.close()
