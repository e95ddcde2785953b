# SPDX-License-Identifier: Apache-2.0
"""The driver's side: `open_transport`, the leases of a query, and its tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence, Set
from contextlib import suppress

import pyarrow as pa

from volley.byte_semaphore import ByteSemaphore
from volley.errors import ConfigError, NoWorkers, QueryError
from volley.ids import AttemptId, QueryId
from volley.plugins import implements
from volley.rpc.handshake import Identity, process_name, read_welcome
from volley.shuffle import Block
from volley.shuffle.shared_store import QueryLease
from volley.transport import (
    Failure,
    RunningTask,
    SplitBatch,
    SplitRequest,
    TaskDone,
    TaskFailure,
    TaskSpec,
    TransportContext,
    WorkerInfo,
    decode,
    encode,
)
from volley.transport.failed_task import FailedTask
from volley_unix.ingest import SocketIngest
from volley_unix.store import fetch
from volley_unix.wire import Channel, Kind, connect, read_batch, read_schema

_RESULT_BUFFER_BYTES = 64 * 2**20
_LOST = "WORKER_LOST"


@implements(1)
def open_transport(context: TransportContext) -> UnixTransport:
    """The workers at the sockets that `spark.volley.plugin.unix.sockets` lists."""
    paths = [path.strip() for path in context.settings.get("unix.sockets", "").split(",") if path.strip()]
    if not paths:
        raise ConfigError("the transport unix needs spark.volley.plugin.unix.sockets, a list of paths.")
    ours = Identity.of_this_process(process_name("driver"))
    found, problems = [], []
    for path in paths:
        try:
            found.append(_greet(path, ours, context.timeout_seconds))
        except (OSError, QueryError) as error:
            problems.append(f"{path}: {error}")
    if not found:
        raise NoWorkers(f"no worker is usable. {'; '.join(problems)}")
    return UnixTransport(found, context)


def _greet(path: str, ours: Identity, timeout_seconds: float) -> WorkerInfo:
    with connect(path, timeout_seconds) as channel:
        channel.send(Kind.HELLO)
        welcome = read_welcome(channel.receive()[1])
    if welcome is None:
        raise QueryError("it is not a worker of Volley.")
    ours.require_same(welcome.identity)
    return WorkerInfo(
        path, welcome.cores, welcome.slots, welcome.identity.engine_version, runs_python=welcome.runs_python
    )


class UnixTransport:
    """A `Transport` over these workers, for one query. A worker whose lease breaks is lost to it."""

    def __init__(self, workers: Sequence[WorkerInfo], context: TransportContext) -> None:
        self._up = {worker.name: worker for worker in workers}
        self._data = QueryLease(context.shared) if context.shared else None
        self._timeout_seconds = context.timeout_seconds
        self._settings = context.worker_settings
        self._leases: dict[tuple[str, QueryId], asyncio.Task[None]] = {}
        self._reserved: dict[AttemptId, Channel] = {}
        self._running: dict[AttemptId, UnixTask] = {}

    def workers(self) -> Sequence[WorkerInfo]:
        return list(self._up.values())

    def holders(self) -> Set[str]:
        return self._up.keys()

    async def reserve(self, worker: str, attempt: AttemptId) -> bool:
        if worker not in self._up:
            return False
        try:
            await self._lease(worker, attempt.query)
            channel = await Channel.open(worker)
            await channel.send(Kind.RESERVE, encode(attempt))
            answer = await channel.receive()
        except OSError:
            self._up.pop(worker, None)
            return False
        if answer is None or answer[0] is not Kind.ANSWER:
            channel.close()
            return False
        self._reserved[attempt] = channel
        return True

    async def start(self, worker: str, task: TaskSpec) -> RunningTask:
        if self._data and task.output is not None:
            await self._data.begin(task.attempt.query)
        channel = self._reserved.pop(task.attempt, None)
        if channel is None:
            message = f"{task.attempt} has no slot reserved on {worker}."
            return FailedTask(TaskFailure(task.attempt, Failure.WORKER, "NOT_RESERVED", message))
        # What cannot be sent shows up as a connection that has ended.
        with suppress(OSError):
            await channel.send(Kind.RUN, encode(task))
        running = self._running[task.attempt] = UnixTask(worker, task.attempt, channel)
        return running

    async def open_ingest(self, query: QueryId) -> SocketIngest:
        if self._data:
            await self._data.begin(query)
        for worker in list(self._up):
            await self._lease(worker, query)
        return SocketIngest(tuple(self._up), self._settings)

    def fetch(self, block: Block) -> Iterator[pa.RecordBatch]:
        if self._data and block.outlives_worker:
            return self._data.store.read(block)
        return fetch(block)

    async def release(self, query: QueryId) -> None:
        for attempt in [attempt for attempt in self._running if attempt.query == query]:
            await self._running.pop(attempt).cancel()
        for attempt in [attempt for attempt in self._reserved if attempt.query == query]:
            self._reserved.pop(attempt).close()
        ending = [self._leases.pop(key) for key in list(self._leases) if key[1] == query]
        for lease in ending:
            lease.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        if self._data:
            await self._data.release(query)

    async def _lease(self, worker: str, query: QueryId) -> None:
        """Tell a worker about a query, once. It keeps what belongs to the query until we hang up."""
        if (worker, query) in self._leases:
            return
        kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leases[worker, query] = asyncio.create_task(self._keep(worker, query, kept))
        await kept

    async def _keep(self, worker: str, query: QueryId, kept: asyncio.Future[None]) -> None:
        try:
            channel = await Channel.open(worker)
        except OSError:
            self._lose(worker, kept)
            return
        try:
            await channel.send(Kind.LEASE, encode(query))
            while await asyncio.wait_for(channel.receive(), self._timeout_seconds) is not None:
                if not kept.done():
                    kept.set_result(None)
        except asyncio.CancelledError:
            # The query is over. The worker hangs up once it has freed everything.
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(channel.hang_up(), self._timeout_seconds)
            raise
        except (OSError, asyncio.TimeoutError):
            pass
        finally:
            channel.close()
        self._lose(worker, kept)

    def _lose(self, worker: str, kept: asyncio.Future[None]) -> None:
        self._up.pop(worker, None)
        for running in self._running.values():
            if running.worker == worker:
                running.lose()
        if not kept.done():
            kept.set_result(None)


class UnixTask:
    """A `RunningTask` at the other end of a connection."""

    def __init__(self, worker: str, attempt: AttemptId, channel: Channel) -> None:
        self.worker = worker
        self._attempt = attempt
        self._channel = channel
        self._gate = ByteSemaphore(_RESULT_BUFFER_BYTES)
        self._rows: asyncio.Queue[pa.RecordBatch | None] = asyncio.Queue()
        self._requests: asyncio.Queue[SplitRequest | None] = asyncio.Queue()
        self._outcome: asyncio.Future[TaskDone | TaskFailure] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())

    @property
    def attempt(self) -> AttemptId:
        return self._attempt

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        while (batch := await self._rows.get()) is not None:
            yield batch
            self._gate.leave(batch.nbytes)

    async def split_requests(self) -> AsyncIterator[SplitRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def give(self, splits: SplitBatch) -> None:
        if not self._outcome.done():
            with suppress(OSError):
                await self._channel.send(Kind.GIVE, encode(splits))

    async def done(self) -> TaskDone | TaskFailure:
        return await asyncio.shield(self._outcome)

    async def cancel(self) -> None:
        if self._outcome.done():
            return
        self._end(TaskFailure(self._attempt, Failure.CANCELLED, "CANCELLED", "the attempt was cancelled"))
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        # The worker cancels an attempt whose driver hangs up, and hangs up itself when that is done.
        await self._channel.hang_up()
        self._channel.close()

    def lose(self) -> None:
        """Its worker is lost."""
        self._end(TaskFailure(self._attempt, Failure.WORKER, _LOST, f"worker {self.worker} was lost"))
        self._reading.cancel()
        self._channel.close()

    async def _read(self) -> None:
        schema = pa.schema([])
        while True:
            match await self._channel.receive():
                case Kind.WANT, body:
                    self._requests.put_nowait(decode(body, SplitRequest))
                case Kind.SCHEMA, body:
                    schema = read_schema(body)
                case Kind.BATCH, body:
                    batch = read_batch(body, schema)
                    await self._gate.enter(batch.nbytes)
                    self._rows.put_nowait(batch)
                case Kind.END, body:
                    self._end(decode(body))
                    break
                case _:
                    message = f"worker {self.worker} has hung up"
                    self._end(TaskFailure(self._attempt, Failure.WORKER, _LOST, message))
                    break
        self._channel.close()

    def _end(self, outcome: TaskDone | TaskFailure) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)
            self._rows.put_nowait(None)
            self._requests.put_nowait(None)
