# SPDX-License-Identifier: Apache-2.0
"""The Flight server of a worker: actions for control, `do_get` and `do_put` for rows.

Flight calls handlers on its own threads. Attempts live on the worker's event loop, so the handlers submit their work
there and wait for it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import wait
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.flight as flight

from volley.batches import slice_batch
from volley.errors import HandshakeRefused, QueryError
from volley.ids import AttemptId, QueryId
from volley.process.loop import LoopThread
from volley.rpc.codec import decode, encode
from volley.rpc.control import (
    RESULT_TICKET,
    Ack,
    AskHealth,
    Await,
    Bye,
    Drain,
    Health,
    Push,
    Pushed,
    Reserve,
    Start,
    Watch,
)
from volley.rpc.handshake import Identity, Welcome, read_hello, to_json
from volley.rpc.messages import SplitBatch, TaskSpec
from volley.rpc.server import Rows, Server
from volley.rpc.start import decode_start
from volley.shuffle.base import ShuffleStore
from volley.worker.budget import WorkerBudget
from volley.worker.drivers import Drivers
from volley.worker.external_attempts import ExternalAttempts
from volley.worker.ingest import receive
from volley.worker.slots import Attempt, Slots

# How soon the end of a driver that waits for news is noticed.
_CALLER_SECONDS = 0.2


class ServingStore(ShuffleStore, Protocol):
    """A store whose blocks other processes read through this worker's server."""

    def serve(self, ticket: bytes) -> Rows:
        """The stream of the requested blocks."""


@dataclass(frozen=True)
class Worker:
    """The state behind the server. Use `slots`, `drivers` and `external_attempts` only on `loop`."""

    identity: Identity
    cores: int
    slots: Slots
    drivers: Drivers
    external_attempts: ExternalAttempts
    store: ServingStore
    budget: WorkerBudget
    loop: LoopThread
    started: float = field(default_factory=time.monotonic)
    instance: str = field(default_factory=lambda: secrets.token_hex(8))

    def health(self) -> Health:
        return Health(
            name=self.identity.name,
            status="draining" if self.slots.draining else "serving",
            running=self.slots.running,
            reserved=self.slots.reserved,
            slots=self.slots.limit,
            drivers=len(self.drivers),
            held_bytes=self.store.held_bytes,
            shuffle_limit_bytes=self.budget.shuffle_bytes,
            memory_bytes=self.budget.total_bytes,
            uptime_seconds=time.monotonic() - self.started,
            jvm=self.slots.code.jvm.versions or self.slots.code.jvm.problem,
            version=self.identity.version,
        )


class WorkerServer(Server):
    """Answers calls once `serve` has set the worker."""

    role = "worker"

    def serve(self, worker: Worker) -> None:
        self._worker = worker
        self.open()

    def answer(self, action: str, body: pa.Buffer) -> Any:
        return self._worker.loop.submit(_answer(self._worker, action, body.to_pybytes())).result()

    def answer_call(self, action: str, body: pa.Buffer, is_cancelled: Callable[[], bool]) -> Any:
        if action != "watch":
            return self.answer(action, body)
        waiting = self._worker.loop.submit(_answer(self._worker, action, body.to_pybytes()))
        while not wait([waiting], timeout=_CALLER_SECONDS).done:
            if is_cancelled():
                waiting.cancel()
        return waiting.result()

    def stream(self, ticket: bytes) -> Rows:
        worker = self._worker
        if not ticket.startswith(RESULT_TICKET):
            return worker.store.serve(ticket)
        wanted = decode(ticket.removeprefix(RESULT_TICKET), AttemptId)
        attempt = worker.loop.submit(_find(worker.slots, wanted)).result()
        limit_bytes = worker.slots.stores.max_message_bytes(attempt.settings)
        return attempt.schema, _pull_batches(worker, attempt.batches(), limit_bytes)

    def receive(
        self, command: bytes, reader: flight.MetadataRecordBatchReader, writer: flight.FlightMetadataWriter
    ) -> None:
        worker = self._worker
        push = decode(command, Push)
        worker.loop.submit(_adopt(worker, push)).result()
        store = worker.slots.stores.of(push.attempt.query, push.settings)
        blocks = receive(push, (chunk.data for chunk in reader), store)
        writer.write(encode(Pushed(push.attempt, blocks, worker.slots.name)))


async def _hello(worker: Worker, body: bytes) -> bytes:
    hello = read_hello(body)
    refusal = ""
    try:
        worker.identity.require_same(hello.identity)
        if hello.driver:
            await worker.drivers.hello(hello.driver, frozenset(QueryId(query) for query in hello.queries))
    except HandshakeRefused as error:
        refusal = f"{error.message} {error.hint}"
    slots = worker.slots
    return to_json(
        Welcome(
            worker.identity,
            worker.cores,
            slots.limit,
            refusal,
            slots.code.python,
            worker.instance,
            slots.code.jvm.versions,
            slots.code.jvm.problem,
            starts=True,
        )
    )


async def _answer(worker: Worker, action: str, body: bytes) -> Any:
    if action == "hello":
        return await _hello(worker, body)
    has_plan_beside = action == "start" or (action == "perform" and b"\n" in body)
    message = decode_start(body) if has_plan_beside else decode(body)
    match action, message:
        case "reserve", Reserve(driver, attempt):
            return Ack(worker.drivers.reserve(driver, attempt))
        case "start", Start(driver, task, is_reserved):
            return Ack(worker.drivers.start(driver, task, is_reserved))
        case "run", TaskSpec():
            worker.drivers.run(message)
            return Ack()
        case "watch", Watch(driver, after, wait_seconds):
            return await worker.drivers.watch(driver, after, wait_seconds)
        case "feed", SplitBatch():
            await worker.slots.give(message)
            return Ack()
        case "cancel", AttemptId():
            await worker.slots.cancel(message)
            return Ack()
        case "perform", Start(_, task):
            return Ack(worker.external_attempts.start(task))
        case "perform", TaskSpec():
            return Ack(worker.external_attempts.start(message))
        case "await", Await(attempt, wait_seconds):
            return await worker.external_attempts.wait(attempt, wait_seconds) or Ack(False)
        case "release", QueryId():
            await worker.drivers.release(message)
            return Ack()
        case "bye", Bye(driver):
            await worker.drivers.bye(driver)
            return Ack()
        case "drain", Drain():
            worker.slots.drain()
            worker.drivers.wake()
            return Ack()
        case "health", AskHealth():
            return worker.health()
        case _:
            raise QueryError(f"a worker does not support {action!r} with {type(message).__name__}.")


async def _adopt(worker: Worker, push: Push) -> None:
    if push.driver:
        worker.drivers.adopt(push.driver, push.attempt.query)
    else:
        worker.slots.admit(push.attempt.query)


async def _find(slots: Slots, attempt: AttemptId) -> Attempt:
    return slots[attempt]


def _pull_batches(
    worker: Worker, batches: AsyncIterator[pa.RecordBatch], limit_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The batches of an attempt, on a Flight thread that waits while the peer does not read."""
    while (batch := worker.loop.submit(_next(batches)).result()) is not None:
        yield from slice_batch(batch, limit_bytes)


def _next(batches: AsyncIterator[pa.RecordBatch]) -> Coroutine[Any, Any, pa.RecordBatch | None]:
    async def pull() -> pa.RecordBatch | None:
        return await anext(batches, None)

    return pull()
