# SPDX-License-Identifier: Apache-2.0
"""After a fault a worker holds what it held before, without waiting for Python's garbage collector."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from helpers.sampling import every
from helpers.waiting import eventually
from volley.bench.queries import query_text
from volley.cluster import LocalCluster
from volley.ids import QueryId
from volley.plan.nodes import Partitioning, StageInput
from volley.rpc.blocks import Block
from volley.rpc.messages import Failure, InputBlocks, TaskDone, TaskFailure, TaskSpec
from volley.shuffle.location import Location
from volley.shuffle.worker_store import WorkerStore
from volley.stages.graph import Output
from volley.testing.chaos.resources import held, is_unnamed
from volley.testing.contracts import NUMBER, attempt_id
from volley.testing.holders import new_store, serve_store
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.session import conf
from volley.transport.flight import close_fleets
from volley.worker.slots import Slots

ROWS = 300_000
REPEATS = 10


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    """A cycle of an error, its traceback and what a frame has open would hide until the collector runs."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def written(store: WorkerStore, query: str) -> Block:
    sink = store.sink(attempt_id(query=query), 1)
    sink.write(0, pa.record_batch({"n": pa.arange(0, ROWS)}))
    (block,) = sink.commit()
    return block


def damage_data(block: Block) -> Block:
    """Flip a byte on disk. Memory is sealed: nobody can change it."""
    descriptor = int(block.handle.split(":")[0])
    (byte,) = os.pread(descriptor, 1, 100_000)
    os.pwrite(descriptor, bytes([byte ^ 1]), 100_000)
    return block


FAULTS: dict[str, Callable[[Block], Block]] = {
    "data": damage_data,
    "index": lambda block: replace(block, checksum=1),
    "handle": lambda block: replace(block, handle="no handle"),
    "missing": lambda block: replace(block, attempt=replace(block.attempt, attempt=7)),
}


@pytest.mark.parametrize(("way", "fault"), every(3, product(["own", "mapped", "flight"], FAULTS)))
def test_a_block_that_cannot_be_read(tmp_path: Path, fault: str, way: str) -> None:
    with serve_store([tmp_path], memory_limit_bytes=0) as holder:
        reader = (
            holder
            if way == "own"
            else new_store(Location.here("nowhere"), [tmp_path], map_same_host=way == "mapped")
        )

        async def fail(slots: Slots, number: int) -> None:
            query = f"q{number}"
            block = FAULTS[fault](written(holder, query))
            attempt = attempt_id(stage=1, query=query)
            task = TaskSpec(
                attempt,
                StageInput(0, (NUMBER,)),
                Output(Partitioning.SINGLE),
                False,
                (InputBlocks(0, (block,)),),
            )
            assert slots.reserve(attempt)
            failure = await slots.start(task).done()
            if (fault, way) == ("missing", "mapped"):
                assert isinstance(failure, TaskDone), failure  # who maps a file needs only its handle
            else:
                assert isinstance(failure, TaskFailure), failure
                assert failure.failure is Failure.LOST_INPUT, failure
            await slots.release(QueryId(query))
            holder.release(QueryId(query))

        async def story() -> None:
            slots = Slots("w", 2, 1, reader)
            for number in range(3):  # threads and connections that stay are made now
                await fail(slots, number)
            before = held()
            for number in range(3, 3 + REPEATS):
                await fail(slots, number)
            after = held()
            assert after.unnamed_files == before.unnamed_files
            # Threads and connections of pools come and go, but not one with every fault.
            assert after.descriptors < before.descriptors + REPEATS / 2
            assert after.threads < before.threads + REPEATS / 2
            assert after.maps <= before.maps

        asyncio.run(story())


def damage(pid: int, chance: random.Random) -> bool:
    """Flip a byte in a spill file that a process has open, if there is one."""
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(entry.readlink())
            if not is_unnamed(target) or "memfd" in target:
                continue
            descriptor = os.open(entry, os.O_RDWR)
        except OSError:
            continue
        try:
            size = os.fstat(descriptor).st_size
            if not size:
                continue
            position = chance.randrange(size)
            (byte,) = os.pread(descriptor, 1, position)
            os.pwrite(descriptor, bytes([byte ^ 1]), position)
            return True
        finally:
            os.close(descriptor)
    return False


@pytest.mark.slow
def test_queries_over_damaged_spill_files(tpch: SparkSession) -> None:
    settings = {"spark.volley.shuffle.spillThreshold": "0"}
    with LocalCluster(3, cores=1, memory="512m", settings=settings) as cluster:
        shuffled = {"spark.sql.autoBroadcastJoinThreshold": "-1", **DISTRIBUTED_SETTINGS}
        with conf(tpch, cluster.settings | shuffled):
            query = tpch.sql(query_text("q03"))
            for _ in range(5):
                expected = query.toArrow()
            before = [held(member.pid) for member in cluster.members]
            chance = random.Random(5)
            damaged = 0
            for _ in range(35):
                over = threading.Event()

                def strike(over: threading.Event = over) -> None:
                    nonlocal damaged
                    while not over.wait(0.005):
                        if damage(chance.choice(cluster.members).pid, chance):
                            damaged += 1
                            return

                striking = threading.Thread(target=strike)
                striking.start()
                try:
                    assert query.toArrow() == expected
                finally:
                    over.set()
                    striking.join()
            assert damaged > 10

        def leaks() -> list[str]:
            found = []
            for member, then in zip(cluster.members, before, strict=True):
                now = held(member.pid)
                # The log of a member is such a file, too.
                if now.unnamed_files != then.unnamed_files or now.maps > then.maps:
                    found.append(f"{member.address}: {now.unnamed_files}, {now.maps} maps")
                if now.descriptors > then.descriptors + 2:
                    found.append(
                        f"{member.address}: {now.descriptors} descriptors, {then.descriptors} before"
                    )
            return found

        with suppress(AssertionError):
            eventually(lambda: not leaks(), 20)
        assert leaks() == []
        close_fleets()
