# SPDX-License-Identifier: Apache-2.0
"""The driver's end of the control channel to native tasks inside Spark's executors.

    sidecar      pull    Pull                    ->   Splits when there are some, Ack(False) when not yet
    Spark task   ended   TaskDone, TaskFailure   ->   Ack; where Spark would say so only at the end of the job
    Spark task   meet    RegisterWorker                    ->   Ack; a sidecar is about to hold rows of Spark's

Executors call the driver, as they do in Spark, and not the other way round: where an attempt runs is Spark's choice,
which the driver learns when the attempt speaks. Every question carries the place up to which splits have arrived, so
it may be asked again after any failure. An attempt that is over is refused, and so ends where it still runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark import SparkContext

from volley.errors import QueryError
from volley.ids import AttemptId
from volley.rpc.codec import decode
from volley.rpc.control import Ack, Pull, RegisterWorker
from volley.rpc.messages import SplitBatch, SplitRequest, TaskDone, TaskFailure
from volley.rpc.server import Server, address_of, listen
from volley.security import Security
from volley.transport.spark_task import ours

# What a caller may ask for at most: it holds a thread of the driver meanwhile.
_LONGEST_WAIT_SECONDS = 10.0
_STOP_SECONDS = 5.0


def driver_hosts(context: SparkContext) -> tuple[str, str]:
    """Where the driver listens, and what executors call it: as Spark's own services do."""
    if on_this_machine(context):
        return "127.0.0.1", "127.0.0.1"
    conf = context.getConf()
    host = conf.get("spark.driver.host") or "127.0.0.1"
    return conf.get("spark.driver.bindAddress") or host, host


def on_this_machine(context: SparkContext) -> bool:
    """Whether Spark's tasks all run beside its driver."""
    return str(context.master).startswith("local")


class Channel:
    """What the Spark tasks of one attempt say. Lives on the event loop that made it."""

    def __init__(self, ended: Callable[[TaskDone | TaskFailure], None], met: Callable[[str], None]) -> None:
        """`ended` is told how the attempt ended, `met` the address of a sidecar that runs it."""
        self._ended = ended
        self._met = met
        self._loop = asyncio.get_running_loop()
        self._wants: asyncio.Queue[SplitRequest | None] = asyncio.Queue()
        self._open: dict[tuple[AttemptId, int], tuple[int, asyncio.Future[SplitBatch]]] = {}
        self.closed = False

    async def split_requests(self) -> AsyncIterator[SplitRequest]:
        while (want := await self._wants.get()) is not None:
            yield want

    def give(self, splits: SplitBatch) -> None:
        asked_from, answer = self._open.get((splits.attempt, splits.feed), (-1, None))
        # Spark may have begun the attempt again, or twice: an answer is for the question that was asked last.
        if answer is not None and asked_from == splits.since and not answer.done():
            answer.set_result(splits)

    def close(self) -> None:
        """The attempt is over."""
        self.closed = True
        self._wants.put_nowait(None)
        for _, answer in self._open.values():
            answer.cancel()

    async def pull(self, pull: Pull) -> SplitBatch | None:
        """The answer to a want; None when there is none within the time that the asker waits."""
        want = pull.want
        self._met(pull.holder)
        key = (want.attempt, want.feed)
        asked_from, answer = self._open.get(key, (-1, None))
        if answer is None or asked_from != want.after:
            answer = self._loop.create_future()
            self._open[key] = (want.after, answer)
            self._wants.put_nowait(replace(want, host=pull.holder.rpartition(":")[0]))
        done, _ = await asyncio.wait([answer], timeout=min(pull.wait_seconds, _LONGEST_WAIT_SECONDS))
        if not done:
            return None
        if self._open.get(key, (-1, None))[1] is answer:
            del self._open[key]
        return answer.result()

    async def ended(self, outcome: TaskDone | TaskFailure) -> None:
        self._ended(outcome)

    def submit(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of `work` on the channel's loop, for a thread of Flight, which waits."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class Control:
    """Listens in the driver for the attempts of all queries of an application, until `close`."""

    def __init__(
        self, host: str, advertise: str, security: Security, insecure: bool, met: Callable[[str], None]
    ) -> None:
        """ConfigError when it may not, or cannot, listen on `host`; others reach it as `advertise`.

        `met` is told the address of a sidecar that is about to hold something.
        """
        self._met = met
        self._channels: dict[AttemptId, Channel] = {}
        self._lock = threading.Lock()
        self._server = listen(_Server, host, 0, security, insecure=insecure)
        self._server.serve(self._answer)
        self.address = address_of(advertise, self._server.port)

    def open(self, attempt: AttemptId, channel: Channel) -> None:
        with self._lock:
            self._channels[attempt] = channel

    def forget(self, attempt: AttemptId) -> None:
        with self._lock:
            self._channels.pop(attempt, None)

    def close(self) -> None:
        # Calls that wait are answered within their time; nobody waits for them here.
        stopping = threading.Thread(target=self._server.shutdown, name="volley-control-stop", daemon=True)
        stopping.start()
        stopping.join(_STOP_SECONDS)

    def _answer(self, action: str, body: bytes) -> Any:
        message = decode(body)
        match action, message:
            case "pull", Pull(want):
                channel = self._channel(want.attempt)
                return channel.submit(channel.pull(message)) or Ack(False)
            case "ended", TaskDone() | TaskFailure():
                channel = self._channel(message.attempt)
                channel.submit(channel.ended(message))
                return Ack()
            case "register", RegisterWorker(holder):
                self._met(holder)
                return Ack()
            case _:
                raise QueryError(f"{action!r} with {type(message).__name__} is nothing that a driver does.")

    def _channel(self, attempt: AttemptId) -> Channel:
        with self._lock:
            channel = self._channels.get(ours(attempt))
        if channel is None or channel.closed:
            raise QueryError(f"{attempt} is over.")
        return channel


class _Server(Server):
    """Answers from `serve` on."""

    offers = "driver"

    def serve(self, answer: Callable[[str, bytes], Any]) -> None:
        self._answer = answer
        self.open()

    def answer(self, action: str, body: pa.Buffer) -> Any:
        return self._answer(action, body.to_pybytes())
