# SPDX-License-Identifier: Apache-2.0
"""The driver's end of the control channel to native tasks inside Spark's executors.

    sidecar      pull       Pull                    ->   SplitBatch, or Ack(False) if there is none yet
    Spark task   ended      TaskDone, TaskFailure   ->   Ack; earlier than the end of the Spark job
    sidecar      progress   Progress                ->   Ack; once a second
    Spark task   register   RegisterWorker          ->   Ack; a sidecar is about to hold rows of Spark

As in Spark, executors call the driver and not the other way round: Spark chooses where an attempt runs, and the driver
learns it from the first call. Every pull carries the position up to which splits have arrived, so it can be repeated
after any failure. Calls of an attempt that is over are refused, which ends it wherever it still runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pyarrow as pa

from volley.errors import QueryError
from volley.ids import AttemptId, QueryId
from volley.rpc.addresses import address_of
from volley.rpc.codec import decode
from volley.rpc.control import Ack, Progress, Pull, RegisterWorker
from volley.rpc.messages import SplitBatch, SplitRequest, TaskDone, TaskFailure
from volley.rpc.server import Server, listen
from volley.security import Security
from volley.transport.spark_task import coordinator_attempt

# The longest wait that a caller may ask for: it blocks a thread of the driver meanwhile.
_LONGEST_WAIT_SECONDS = 10.0
_STOP_SECONDS = 5.0


class Channel:
    """The control channel of one attempt. Lives on the event loop that created it."""

    def __init__(
        self, on_outcome: Callable[[TaskDone | TaskFailure], None], on_sidecar: Callable[[str], None]
    ) -> None:
        """`on_outcome` gets the outcome of the attempt, `on_sidecar` the address of each sidecar that runs it."""
        self._on_outcome = on_outcome
        self._on_sidecar = on_sidecar
        self._loop = asyncio.get_running_loop()
        self._requests: asyncio.Queue[SplitRequest | None] = asyncio.Queue()
        self._open: dict[tuple[AttemptId, int], tuple[int, asyncio.Future[SplitBatch]]] = {}
        self.closed = False
        self.progress: Progress | None = None
        """What was last heard of the attempt."""

    async def split_requests(self) -> AsyncIterator[SplitRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    def give(self, splits: SplitBatch) -> None:
        asked_from, answer = self._open.get((splits.attempt, splits.feed), (-1, None))
        # Spark may have retried or speculated the attempt: an answer is only for the latest request.
        if answer is not None and asked_from == splits.since and not answer.done():
            answer.set_result(splits)

    def close(self) -> None:
        """The attempt is over."""
        self.closed = True
        self._requests.put_nowait(None)
        for _, answer in self._open.values():
            answer.cancel()

    async def pull(self, pull: Pull) -> SplitBatch | None:
        """The answer to a split request, or None if there is none within the caller's wait time."""
        request = pull.want
        self._on_sidecar(pull.holder)
        key = (request.attempt, request.feed)
        asked_from, answer = self._open.get(key, (-1, None))
        if answer is None or asked_from != request.after:
            answer = self._loop.create_future()
            self._open[key] = (request.after, answer)
            self._requests.put_nowait(replace(request, host=pull.holder.rpartition(":")[0]))
        done, _ = await asyncio.wait([answer], timeout=min(pull.wait_seconds, _LONGEST_WAIT_SECONDS))
        if not done:
            return None
        if self._open.get(key, (-1, None))[1] is answer:
            del self._open[key]
        return answer.result()

    async def end(self, outcome: TaskDone | TaskFailure) -> None:
        self._on_outcome(outcome)

    def submit(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run `work` on the channel's loop and wait for its result, on a Flight thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class Control:
    """The driver's server for the attempts of all queries of an application. Listens until `close`."""

    def __init__(
        self, host: str, advertise: str, security: Security, insecure: bool, on_sidecar: Callable[[str], None]
    ) -> None:
        """Listen on `host`; executors connect to `advertise`. Raises ConfigError if it must not or cannot listen.

        `on_sidecar` gets the address of each sidecar that is about to hold blocks.
        """
        self._on_sidecar = on_sidecar
        self._channels: dict[AttemptId, tuple[QueryId, Channel]] = {}
        self._lock = threading.Lock()
        self._server = listen(_Server, host, 0, security, insecure=insecure)
        self._server.serve(self._answer)
        self.address = address_of(advertise, self._server.port)

    def open(self, attempt: AttemptId, channel: Channel) -> None:
        with self._lock:
            self._channels[attempt] = attempt.query, channel

    def forget(self, attempt: AttemptId) -> None:
        with self._lock:
            self._channels.pop(attempt, None)

    def close(self) -> None:
        # Pending calls end by their own timeout; do not wait longer for them.
        stopping = threading.Thread(target=self._server.shutdown, name="volley-control-stop", daemon=True)
        stopping.start()
        stopping.join(_STOP_SECONDS)

    def _answer(self, action: str, body: bytes) -> Any:
        message = decode(body)
        match action, message:
            case "pull", Pull(request):
                channel = self._channel(request.attempt)
                return channel.submit(channel.pull(message)) or Ack(False)
            case "ended", TaskDone() | TaskFailure():
                channel = self._channel(message.attempt)
                channel.submit(channel.end(message))
                return Ack()
            case "progress", Progress(attempt):
                self._channel(attempt).progress = message
                return Ack()
            case "register", RegisterWorker(holder):
                self._on_sidecar(holder)
                return Ack()
            case _:
                raise QueryError(f"a driver does not support {action!r} with {type(message).__name__}.")

    def _channel(self, attempt: AttemptId) -> Channel:
        with self._lock:
            query, channel = self._channels.get(coordinator_attempt(attempt), (None, None))
        if query is None or channel is None or channel.closed or not attempt.query.has_key_of(query):
            raise QueryError(f"{attempt} is over.")
        return channel


class _Server(Server):
    """Answers calls once `serve` has set the handler."""

    role = "driver"

    def serve(self, answer: Callable[[str, bytes], Any]) -> None:
        self._answer = answer
        self.open()

    def answer(self, action: str, body: pa.Buffer) -> Any:
        return self._answer(action, body.to_pybytes())
