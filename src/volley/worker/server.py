# SPDX-License-Identifier: Apache-2.0
"""The Flight face of a worker: actions for control, `do_get` and `do_put` for rows.

Flight calls in on threads of its own; everything that concerns attempts happens on the worker's event loop, and these
threads wait for it there. What goes wrong is answered as `Refused`: an exception that left this file would carry a
traceback of this process to the peer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.flight as flight

from volley.errors import HandshakeRefused, QueryError, VolleyError
from volley.ids import AttemptId, QueryId
from volley.loop import LoopThread
from volley.shuffle.base import ShuffleStore
from volley.transport.codec import decode, encode
from volley.transport.control import (
    RESULT_TICKET,
    Ack,
    AskHealth,
    Await,
    Bye,
    Drain,
    Health,
    Push,
    Pushed,
    Refused,
    Reserve,
    Watch,
)
from volley.transport.handshake import Identity, Welcome, hello_of, to_json
from volley.transport.messages import SplitBatch, TaskSpec
from volley.worker.budget import WorkerBudget
from volley.worker.drivers import Drivers
from volley.worker.external_attempts import ExternalAttempts
from volley.worker.receiving import receive
from volley.worker.slots import Attempt, Slots

_log = logging.getLogger(__name__)


class ServingStore(ShuffleStore, Protocol):
    """A store whose blocks other processes read through this worker's server."""

    def serve(self, ticket: bytes) -> flight.FlightDataStream:
        """The stream of the blocks that a reader asked for."""


@dataclass(frozen=True)
class Worker:
    """Everything that the server answers from. `slots`, `drivers` and `performed` are touched on `loop` alone."""

    identity: Identity
    cores: int
    slots: Slots
    drivers: Drivers
    external_attempts: ExternalAttempts
    store: ServingStore
    budget: WorkerBudget
    max_message_bytes: int
    loop: LoopThread
    started: float = field(default_factory=time.monotonic)

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
        )


class WorkerServer(flight.FlightServerBase):  # type: ignore[misc]
    """Listens from its construction on, so that its port is known, and answers from `open` on."""

    def __init__(self, uri: str, **security: Any) -> None:
        self._worker: Worker | None = None
        super().__init__(uri, **security)

    def open(self, worker: Worker) -> None:
        self._worker = worker

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[bytes]:
        yield self._answer(self._opened(), action.type, action.body.to_pybytes())

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        worker = self._opened()
        try:
            if not ticket.ticket.startswith(RESULT_TICKET):
                return worker.store.serve(ticket.ticket)
            wanted = _expect(AttemptId, decode(ticket.ticket.removeprefix(RESULT_TICKET)))
            attempt = worker.loop.submit(_find(worker.slots, wanted)).result()
            batches = attempt.batches()
            return flight.GeneratorStream(attempt.schema, _pulled(worker, attempt.schema, batches))
        except VolleyError as error:
            raise flight.FlightServerError(str(error)) from None

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        worker = self._opened()
        try:
            push = decode(descriptor.command or b"")
            if not isinstance(push, Push):
                raise QueryError(f"{type(push).__name__} is nothing that rows can follow.")
            if push.driver:
                worker.loop.submit(_adopt(worker, push)).result()
            blocks = receive(push, (chunk.data for chunk in reader), worker.slots.store)
            writer.write(encode(Pushed(push.attempt, blocks, worker.slots.name)))
        except (VolleyError, ValueError) as error:
            raise flight.FlightServerError(str(error)) from None

    def _opened(self) -> Worker:
        if self._worker is None:
            raise flight.FlightUnavailableError("starting")
        return self._worker

    def _answer(self, worker: Worker, action: str, body: bytes) -> bytes:
        try:
            if action == "hello":
                return worker.loop.submit(_hello(worker, body)).result()
            return encode(worker.loop.submit(_answered(worker, action, body)).result())
        except VolleyError as error:
            return encode(Refused(error.code, error.message))
        except CancelledError:
            return encode(Refused("STOPPING", "the worker is stopping"))
        except Exception as error:
            _log.exception("%s failed", action)
            return encode(Refused("INTERNAL", f"{action} failed: {type(error).__name__}"))


async def _hello(worker: Worker, body: bytes) -> bytes:
    try:
        hello = hello_of(body)
    except (ValueError, KeyError, TypeError) as error:
        raise QueryError(f"that was no hello: {error!r}.") from error
    refusal = ""
    try:
        worker.identity.require_same(hello.identity)
        await worker.drivers.hello(hello.driver, frozenset(QueryId(query) for query in hello.queries))
    except HandshakeRefused as error:
        refusal = f"{error.message} {error.hint}"
    return to_json(Welcome(worker.identity, worker.cores, worker.slots.limit, refusal))


async def _answered(worker: Worker, action: str, body: bytes) -> Any:
    message = decode(body)
    match action, message:
        case "reserve", Reserve(driver, attempt):
            return Ack(worker.drivers.reserve(driver, attempt))
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
            raise QueryError(f"{action!r} with {type(message).__name__} is nothing that a worker does.")


def _expect(kind: type[AttemptId], message: Any) -> AttemptId:
    if not isinstance(message, kind):
        raise QueryError(f"expected {kind.__name__}, got {type(message).__name__}.")
    return message


async def _adopt(worker: Worker, push: Push) -> None:
    worker.drivers.adopt(push.driver, push.attempt.query)


async def _find(slots: Slots, attempt: AttemptId) -> Attempt:
    return slots[attempt]


def _pulled(
    worker: Worker, schema: pa.Schema, batches: AsyncIterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The batches of an attempt, on a thread of Flight, which waits while the peer does not read."""
    while (batch := worker.loop.submit(_next(batches)).result()) is not None:
        # Rows without columns keep whatever column carried them: it is no part of the result.
        yield from pieces(batch if len(schema) else batch.select([]), worker.max_message_bytes)


def _next(batches: AsyncIterator[pa.RecordBatch]) -> Coroutine[Any, Any, pa.RecordBatch | None]:
    async def pull() -> pa.RecordBatch | None:
        return await anext(batches, None)

    return pull()


def pieces(batch: pa.RecordBatch, limit_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows of a batch in slices of about `limit_bytes` at most, a row at least."""
    count = -(-batch.nbytes // limit_bytes) or 1
    rows = -(-batch.num_rows // count) or 1
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
