# SPDX-License-Identifier: Apache-2.0
"""A worker: `python -m volley_unix.worker SOCKET`. Each connection has a coroutine; what it held ends with it."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import cycle

import pyarrow as pa

from volley.config import Config
from volley.errors import QueryError, VolleyError
from volley.ids import AttemptId, QueryId
from volley.process.foreground import die_with
from volley.process.machine import available_cores, available_memory_bytes
from volley.rpc.handshake import Identity, Welcome, to_json
from volley.security import Security
from volley.shuffle import Block
from volley.shuffle.factory import new_store
from volley.shuffle.worker_stores import WorkerStores
from volley.transport import Failure, Push, Pushed, SplitBatch, TaskFailure, TaskSpec, decode, encode
from volley.worker.slots import Attempt, CodePolicy, Slots
from volley_unix.store import SocketStore
from volley_unix.wire import Channel, Frame, Kind, read_batch, read_schema

_PING_SECONDS = 1.0
_SHARED_MEMORY_FRACTION = 0.1


class Worker:
    """Answers the connections of drivers, other workers and Spark's tasks. Lives on one event loop."""

    def __init__(self, path: str, slots: int, cores: int, settings: dict[str, str]) -> None:
        self._path = path
        security, memory_bytes = Security.read(), int(available_memory_bytes() * _SHARED_MEMORY_FRACTION)
        self._own = SocketStore(path)
        self._stores = WorkerStores(
            self._own, Config.read(settings), lambda config: new_store(config, security, memory_bytes)
        )
        self._cores = cores
        self._slots = Slots(path, slots, cores, self._stores, code=CodePolicy(python=False))
        self._identity = Identity.of_this_process(f"worker {path}")

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
        channel = Channel(reader, writer)
        try:
            with suppress(OSError):
                await self._answer(channel, await channel.receive())
        finally:
            channel.close()

    async def _answer(self, channel: Channel, first: Frame | None) -> None:
        try:
            match first:
                case Kind.HELLO, _:
                    await channel.send(Kind.WELCOME, to_json(self._welcome()))
                case Kind.LEASE, body:
                    await self._keep(channel, decode(body, QueryId))
                case Kind.RESERVE, body:
                    await self._attempt(channel, decode(body, AttemptId))
                case Kind.READ, body:
                    await self._read(channel, decode(body, Block))
                case Kind.PUSH, body:
                    await self._push(channel, decode(body, Push))
        except VolleyError as error:
            await channel.send(Kind.REFUSED, error.message.encode())

    def _welcome(self) -> Welcome:
        return Welcome(self._identity, self._cores, self._slots.limit)

    async def _keep(self, channel: Channel, query: QueryId) -> None:
        """Keep what belongs to a query until its driver hangs up. The pings show that this worker does not hang."""
        ended = asyncio.create_task(channel.receive())
        try:
            while not ended.done():
                await channel.send(Kind.PING)
                await asyncio.wait([ended], timeout=_PING_SECONDS)
        finally:
            ended.cancel()
            await self._slots.release(query)

    async def _attempt(self, channel: Channel, attempt: AttemptId) -> None:
        granted = self._slots.reserve(attempt)
        await channel.send(Kind.ANSWER if granted else Kind.REFUSED)
        if not granted:
            return
        try:
            match await channel.receive():
                case Kind.RUN, body:
                    await self._run(channel, decode(body, TaskSpec))
        finally:
            await self._slots.cancel(attempt)

    async def _run(self, channel: Channel, task: TaskSpec) -> None:
        try:
            attempt = self._slots.start(task)
        except QueryError as error:
            failure = TaskFailure(task.attempt, Failure.WORKER, error.code, error.message)
            await channel.send(Kind.END, encode(failure))
            return
        sending = asyncio.create_task(_send_all(channel, attempt, task))
        listening = asyncio.create_task(_listen(channel, attempt))
        await asyncio.wait([sending, listening], return_when=asyncio.FIRST_COMPLETED)
        # If the driver has hung up, nobody waits for the rest.
        for one in (sending, listening):
            one.cancel()
        await asyncio.gather(sending, listening, return_exceptions=True)

    async def _read(self, channel: Channel, block: Block) -> None:
        batches = iter(self._own.read(block))
        async with _ended(channel):
            schema: pa.Schema | None = None
            # The next batch may have to be waited for: the loop serves others meanwhile.
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                schema = await _send_batch(channel, schema, batch)

    async def _push(self, channel: Channel, push: Push) -> None:
        store = await asyncio.to_thread(self._stores.of, push.attempt.query, push.settings)
        sink = await asyncio.to_thread(store.sink, push.attempt, push.partitions)
        try:
            targets = _targets(push)
            schema = pa.schema([])
            while True:
                match await channel.receive():
                    case Kind.SCHEMA, body:
                        schema = read_schema(body)
                    case Kind.BATCH, body:
                        await asyncio.to_thread(sink.write, next(targets), read_batch(body, schema))
                    case Kind.END, _:
                        break
                    case _:
                        raise QueryError(f"{push.attempt}: its sender has hung up.")
            blocks = await asyncio.to_thread(sink.commit)
        except BaseException:
            sink.abort()
            raise
        await channel.send(Kind.ANSWER, encode(Pushed(push.attempt, blocks, self._path)))

    def close(self) -> None:
        self._stores.close()


def _targets(push: Push) -> Iterator[int]:
    """Each attempt begins at another partition, so that many small outputs are spread evenly."""
    first = push.attempt.task.task % push.partitions
    return cycle([*range(first, push.partitions), *range(first)])


async def _send_all(channel: Channel, attempt: Attempt, task: TaskSpec) -> None:
    async def send_requests() -> None:
        async for request in attempt.split_requests():
            await channel.send(Kind.WANT, encode(request))

    asking = asyncio.create_task(send_requests())
    try:
        if task.output is None:
            schema: pa.Schema | None = None
            async for batch in attempt.batches():
                schema = await _send_batch(channel, schema, batch)
        outcome = await attempt.done()
        await asking
        await channel.send(Kind.END, encode(outcome))
    finally:
        asking.cancel()


async def _listen(channel: Channel, attempt: Attempt) -> None:
    """Take the answers to split requests until the driver hangs up."""
    while (frame := await channel.receive()) is not None:
        match frame:
            case Kind.GIVE, body:
                await attempt.give(decode(body, SplitBatch))


async def _send_batch(channel: Channel, schema: pa.Schema | None, batch: pa.RecordBatch) -> pa.Schema:
    if schema is None:
        schema = batch.schema
        await channel.send(Kind.SCHEMA, schema.serialize())
    await channel.send(Kind.BATCH, batch.serialize())
    return schema


@asynccontextmanager
async def _ended(channel: Channel) -> AsyncIterator[None]:
    yield
    await channel.send(Kind.END)


async def serve(worker: Worker, path: str) -> None:
    """Listen until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    # Nobody may connect between the creation of the socket and a later chmod.
    before = os.umask(0o177)
    server = await asyncio.start_unix_server(worker.answer, path)
    os.umask(before)
    print(path, flush=True)
    await stop.wait()
    server.close()
    worker.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m volley_unix.worker", description=__doc__)
    parser.add_argument("socket", help="path of the socket to listen on")
    parser.add_argument("--tasks", type=int, default=available_cores(), help="concurrent tasks")
    parser.add_argument("--cores", type=int, default=1, help="cores that a task uses")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an option of Volley")
    parser.add_argument("--parent", type=int, help="exit when this process ends")
    options = parser.parse_args()
    if options.parent is not None:
        die_with(options.parent)
    settings = dict(setting.split("=", 1) for setting in options.set)
    worker = Worker(options.socket, options.tasks, options.cores, settings)
    asyncio.run(serve(worker, options.socket))
    # Threads of the engine may still work on a batch that nobody needs.
    os._exit(0)


if __name__ == "__main__":
    main()
