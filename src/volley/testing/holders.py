# SPDX-License-Identifier: Apache-2.0
"""Worker stores for tests: behind a Flight server, in this process or in one that can be killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from volley import errors
from volley.ids import AttemptId, QueryId
from volley.rpc.codec import decode
from volley.shuffle.base import Block, BlockRequest
from volley.shuffle.frames import SCHEMA
from volley.shuffle.location import Location
from volley.shuffle.worker_store import WorkerStore
from volley.testing.shuffle_configs import shuffle_config

MEMORY_BYTES = 256 * 2**20


Frame = tuple[pa.RecordBatch, bytes]


class BlockServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves one store on loopback. `make_store` gets the location at which it listens.

    Tests override `frames` to tamper with what it sends.
    """

    def __init__(self, make_store: Callable[[Location], WorkerStore]) -> None:
        super().__init__("grpc+tcp://127.0.0.1:0")
        self.store = make_store(Location.here(f"grpc+tcp://127.0.0.1:{self.port}"))

    def frames(self, request: BlockRequest) -> Iterator[Frame]:
        return self.store.frames(request)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        return flight.GeneratorStream(SCHEMA, self.frames(decode(ticket.ticket)))


def connect(holder: Location) -> flight.FlightClient:
    return flight.FlightClient(holder.address)


def new_store(location: Location, directories: Sequence[Path], **options: Any) -> WorkerStore:
    """A store with room for all that a test writes. `options` are those of `WorkerStore` and `ShuffleConfig`."""
    own: dict[str, Any] = {"memory_limit_bytes": MEMORY_BYTES, "connect": connect}
    own |= {name: options.pop(name) for name in set(own) & set(options)}
    return WorkerStore(location, shuffle_config(**options), spill_directories=directories, **own)


@contextmanager
def serve_store(directories: Sequence[Path], **options: Any) -> Iterator[WorkerStore]:
    """A store in this process, served over Flight."""
    server = BlockServer(lambda location: new_store(location, directories, **options))
    try:
        yield server.store
    finally:
        server.store.close()
        server.shutdown()


class Holder:
    """A store in another process, which writes to it and serves it."""

    def __init__(self, directories: Sequence[Path], **options: Any) -> None:
        processes = multiprocessing.get_context("spawn")
        self._pipe, theirs = processes.Pipe()
        self._process = processes.Process(target=_hold, args=(theirs, directories, options), daemon=True)
        self._process.start()
        theirs.close()
        self.location = Location.parse(self._pipe.recv())

    def renew(self) -> None:
        """Replace the store with an empty one."""
        self.call("renew")

    def call(self, verb: str, *arguments: Any) -> Any:
        self._pipe.send((verb, arguments))
        error, value = self._pipe.recv()
        if error is not None:
            raise {"ValueError": ValueError, **vars(errors)}[error](value)
        return value

    def signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


class SplitStore:
    """A `ShuffleStore` that writes in the process of a `Holder` and reads in this one."""

    is_blocking = True

    def __init__(self, holder: Holder, reader: WorkerStore) -> None:
        self._holder = holder
        self._reader = reader

    def sink(self, attempt: AttemptId, partitions: int) -> _SplitSink:
        self._holder.call("sink", attempt, partitions)
        return _SplitSink(self._holder, attempt)

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        return self._reader.read(block)

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        return self._reader.read_many(blocks)

    def release(self, query: QueryId) -> None:
        self._holder.call("release", query)

    @property
    def held_bytes(self) -> int:
        return int(self._holder.call("held_bytes"))


class _SplitSink:
    def __init__(self, holder: Holder, attempt: AttemptId) -> None:
        self._holder = holder
        self._attempt = attempt

    def write(self, partition: int, batch: pa.RecordBatch) -> None:
        # Pickling would lose the number of rows of a batch without columns.
        encoded = (batch.schema, batch.serialize().to_pybytes())
        self._holder.call("write", self._attempt, partition, *encoded)

    def commit(self) -> tuple[Block, ...]:
        blocks: tuple[Block, ...] = self._holder.call("commit", self._attempt)
        return blocks

    def abort(self) -> None:
        self._holder.call("abort", self._attempt)


def _hold(pipe: Connection, directories: Sequence[Path], options: dict[str, Any]) -> None:
    server = BlockServer(lambda location: new_store(location, directories, **options))
    pipe.send(str(server.store.location))
    sinks: dict[AttemptId, Any] = {}
    while True:
        try:
            verb, arguments = pipe.recv()
        except EOFError:
            return
        if verb == "renew":
            server.store.close()
            server.store = new_store(server.store.location, directories, **options)
        try:
            answer: tuple[str | None, Any] = (None, _answer(server.store, sinks, verb, arguments))
        except (errors.VolleyError, ValueError) as error:
            answer = (type(error).__name__, getattr(error, "message", str(error)))
        pipe.send(answer)


def _answer(store: WorkerStore, sinks: dict[AttemptId, Any], verb: str, arguments: Sequence[Any]) -> Any:
    match verb, arguments:
        case "sink", (attempt, partitions):
            sinks[attempt] = store.sink(attempt, partitions)
        case "write", (attempt, partition, schema, batch):
            sinks[attempt].write(partition, pa.ipc.read_record_batch(pa.py_buffer(batch), schema))
        case (("commit" | "abort"), (attempt,)):
            return getattr(sinks[attempt], verb)()
        case "release", (query,):
            store.release(query)
        case "held_bytes", ():
            return store.held_bytes
    return None
