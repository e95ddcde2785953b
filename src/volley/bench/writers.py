# SPDX-License-Identifier: Apache-2.0
"""Writers for measured exchanges, in this process or another, with the stores to read them from."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight

from volley.config import Config
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.plan.expressions import Attribute
from volley.plan.nodes import Partitioning, StageInput
from volley.plan.types import DATE, DOUBLE, LONG, STRING, DecimalType, to_arrow
from volley.rpc.messages import InputBlocks, TaskSpec
from volley.shuffle.base import Block, ShuffleSink, ShuffleStore
from volley.shuffle.config import RetryPolicy, ShuffleConfig
from volley.shuffle.location import Location
from volley.shuffle.memory import MemoryStore
from volley.shuffle.worker_store import WorkerStore
from volley.stages.graph import Output
from volley.worker.task import run_task

COLUMNS = (
    Attribute(1, "key", LONG, False),
    Attribute(2, "quantity", LONG, False),
    Attribute(3, "price", DecimalType(12, 2), False),
    Attribute(4, "discount", DOUBLE, False),
    Attribute(5, "day", DATE, False),
    Attribute(6, "name", STRING, False),
)
# The batch size of an operator.
_BATCH_ROWS = 8192
QUERY = QueryId("bench")


@dataclass(frozen=True)
class ExchangeCase:
    """`distance` is between writer and reader; `medium` is where the data is stored in between."""

    distance: str
    medium: str
    compression: str


@dataclass(frozen=True)
class Written:
    blocks: tuple[Block, ...]
    rows: int
    seconds: float


class Writer(Protocol):
    def write(self, way: ExchangeCase, directory: Path) -> Written:
        """Write one exchange and commit it."""

    def reader(self, way: ExchangeCase, directory: Path) -> ShuffleStore:
        """The store from which this process reads what was written."""

    def free(self) -> None:
        """Release what was written."""


def make_rows(count: int, seed: int = 1) -> pa.Table:
    """Generate rows deterministically, so that two processes need not send them to each other."""
    key = pc.cast(pc.floor(pc.multiply(pc.random(count, initializer=seed), 2.0**40)), pa.int64())
    quantity = pc.bit_wise_and(key, 63)
    # Integers below a million, which fit into any decimal with ten digits before the point.
    price = pc.cast(pc.bit_wise_and(key, 0xFFFFF), pa.decimal128(19, 0))
    columns = [
        key,
        quantity,
        pc.cast(price, pa.decimal128(21, 2)).cast(to_arrow(COLUMNS[2].type)),
        pc.random(count, initializer=seed + 1),
        pc.cast(pc.cast(quantity, pa.int32()), pa.date32()),
        pc.binary_join_element_wise("item", pc.cast(pc.bit_wise_and(key, 0xFFFFFF), pa.string()), "-"),
    ]
    return pa.Table.from_arrays(columns, [f"c{column.id}" for column in COLUMNS])


class MapTask:
    """A map task: the engine hashes and partitions rows from memory and writes them to a store."""

    def __init__(self, rows: int, partitions: int, cores: int) -> None:
        self._partitions = partitions
        self._cores = cores
        self._input = MemoryStore("input")
        sink = self._input.sink(_attempt(0), 1)
        for batch in make_rows(rows).to_batches(max_chunksize=_BATCH_ROWS):
            sink.write(0, batch)
        self._blocks = sink.commit()

    def run(self, store: ShuffleStore, query: QueryId = QUERY) -> Written:
        output = Output(Partitioning.HASH, self._partitions, COLUMNS[:1])
        inputs = (InputBlocks(0, self._blocks),)
        task = TaskSpec(_attempt(1, query), StageInput(0, COLUMNS), output, False, inputs)
        started = time.perf_counter()
        done = asyncio.run(run_task(task, _Between(self._input, store), self._cores, _nobody))
        return Written(done.blocks, done.rows, time.perf_counter() - started)


class LocalWriter:
    """A writer in this process, which exchanges references."""

    def __init__(self, task: MapTask) -> None:
        self._task = task
        self._store = MemoryStore("here")

    def write(self, way: ExchangeCase, directory: Path) -> Written:
        self._store = MemoryStore("here")
        return self._task.run(self._store)

    def reader(self, way: ExchangeCase, directory: Path) -> ShuffleStore:
        return self._store

    def free(self) -> None:
        self._store.release(QUERY)


class RemoteWriter:
    """A writer in another process, which serves its output."""

    def __init__(self, rows: int, partitions: int, cores: int) -> None:
        processes = multiprocessing.get_context("spawn")
        self._pipe, theirs = processes.Pipe()
        self._process = processes.Process(
            target=_serve_writes, args=(theirs, rows, partitions, cores), daemon=True
        )
        self._process.start()
        theirs.close()

    def write(self, way: ExchangeCase, directory: Path) -> Written:
        self._pipe.send((way, directory))
        written: Written = self._pipe.recv()
        return written

    def reader(self, way: ExchangeCase, directory: Path) -> ShuffleStore:
        return _worker_store(Location.here("reader"), way, directory)

    def free(self) -> None:
        self._pipe.send(None)

    def stop(self) -> None:
        self._pipe.close()
        self._process.join()


def _serve_writes(pipe: Connection, rows: int, partitions: int, cores: int) -> None:
    task = MapTask(rows, partitions, cores)
    with _Server() as server:
        location = Location.here(f"grpc+tcp://127.0.0.1:{server.port}")
        while True:
            try:
                order = pipe.recv()
            except EOFError:
                return
            if order is None:
                server.store.close()
                continue
            server.store = _worker_store(location, *order)
            pipe.send(task.run(server.store))


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    store: WorkerStore

    def __init__(self) -> None:
        super().__init__("grpc+tcp://127.0.0.1:0")

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        return flight.GeneratorStream(*self.store.serve(ticket.ticket))


def _worker_store(location: Location, way: ExchangeCase, directory: Path) -> WorkerStore:
    config = replace(
        ShuffleConfig.of(Config.read({})),
        spill_threshold=1.0,
        compression=way.compression,
        retry=RetryPolicy(0, 0, 20.0),
        map_same_host=way.distance != "TCP",
    )
    return WorkerStore(
        location,
        config,
        memory_limit_bytes=0 if way.medium == "disk" else 2**40,
        spill_directories=[directory],
        connect=lambda holder: flight.FlightClient(holder.address),
    )


class _Between:
    """Reads from one store and writes to another."""

    def __init__(self, source: ShuffleStore, target: ShuffleStore) -> None:
        self._source = source
        self._target = target
        self.is_blocking = target.is_blocking

    def sink(self, attempt: AttemptId, partitions: int) -> ShuffleSink:
        return self._target.sink(attempt, partitions)

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        return self._source.read(block)

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        return self._source.read_many(blocks)

    def release(self, query: QueryId) -> None:
        self._target.release(query)

    @property
    def held_bytes(self) -> int:
        return self._target.held_bytes


def _attempt(stage: int, query: QueryId = QUERY) -> AttemptId:
    return AttemptId(TaskId(StageId(query, stage), 0), 0)


async def _nobody(batch: pa.RecordBatch) -> None:
    raise AssertionError("a map task has no result")
