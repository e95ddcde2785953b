# SPDX-License-Identifier: Apache-2.0
"""Workers in other processes, over Arrow Flight.

    driver                                worker daemon
    Peer thread   watch, watch, watch ->  outcomes, split requests     control
    call threads  reserve, run, ...   ->  Ack or Refused               control
    row threads   do_get              <-  batches of a result task     data, one connection each

Flight calls block, so none is made on the event loop. A result task may have a limited number of bytes waiting on the
driver. Beyond that its stream waits, and at the other end so does the task.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence, Set
from contextlib import suppress
from typing import Any, cast

import pyarrow as pa
import pyarrow.flight as flight

from volley.byte_semaphore import ByteSemaphore
from volley.errors import NoWorkers, PeerLost, PeerRefused, QueryError
from volley.events import TaskProgress
from volley.ids import AttemptId, QueryId
from volley.process.runtime import Phase, Shared
from volley.rpc.batch_validation import validate_batch
from volley.rpc.codec import encode
from volley.rpc.control import NOT_RESERVED, RESULT_TICKET, STOPPING, UNKNOWN_DRIVER, Ack, Progress, Reserve
from volley.rpc.messages import (
    Failure,
    SplitBatch,
    SplitRequest,
    TaskDone,
    TaskFailure,
    TaskSpec,
    WorkerInfo,
)
from volley.rpc.start import encode_start
from volley.security import Credentials, Security
from volley.shuffle.base import Block, SharedStore
from volley.shuffle.factory import driver_reader
from volley.shuffle.session_options import Options
from volley.shuffle.shared_store import QueryLease
from volley.transport.base import NoRoom
from volley.transport.fleet import WORKER_LOST, AttemptNews, Fleet, FleetLease, Peer
from volley.transport.ingest import FlightIngest

RESULT_BUFFER_BYTES = 64 * 2**20


class FlightTransport:
    """A `Transport` over a fleet. One per query. A leased fleet stays open until `release`.

    `shared` is a store that the workers use in addition to their own. `credentials` and the session's `settings` are
    for those who push rows; a worker that takes none of them for `stall_seconds` is considered lost.
    """

    def __init__(
        self,
        fleet: Fleet | FleetLease,
        result_buffer_bytes: int = RESULT_BUFFER_BYTES,
        shared: SharedStore | None = None,
        credentials: Credentials | None = None,
        stall_seconds: float = 20.0,
        settings: Options = (),
    ) -> None:
        self._lease = fleet if isinstance(fleet, FleetLease) else None
        self._fleet = fleet.fleet if isinstance(fleet, FleetLease) else fleet
        self._data = QueryLease(shared) if shared else None
        self._result_buffer_bytes = result_buffer_bytes
        self._credentials = credentials or Credentials(self._fleet.security.token)
        self._stall_seconds = stall_seconds
        self._settings = settings
        self._is_released = False
        self._started: set[AttemptId] = set()

    def workers(self) -> Sequence[WorkerInfo]:
        return [info for peer in self._fleet.peers if (info := peer.info)]

    def holders(self) -> Set[str]:
        return {peer.address for peer in self._fleet.peers if peer.up}

    def absence(self) -> NoWorkers:
        return self._fleet.absence()

    async def reserve(self, worker: str, attempt: AttemptId) -> bool:
        self._fleet.begin(attempt.task.stage.query)
        peer = self._fleet[worker]
        if peer.is_doubted:
            return False
        # Only the worker knows whether it knows an attempt already.
        is_new = not self._is_released and attempt not in self._started
        if is_new and (claimed := peer.claim(attempt)) is not None:
            return claimed
        try:
            answer: Ack = await self.call(peer, "reserve", Reserve(self._fleet.driver, attempt))
        except QueryError:
            # It is lost or has forgotten this driver. The peer's thread will notice.
            return False
        return answer.granted

    async def start(self, worker: str, task: TaskSpec) -> FlightTask:
        peer = self._fleet[worker]
        if self._data and task.output is not None:
            await self._data.begin(task.attempt.task.stage.query)
        running = FlightTask(self, peer, task, self._result_buffer_bytes)
        is_claimed = peer.unclaim(task.attempt)
        self._started.add(task.attempt)
        try:
            if not await self._send(peer, task, is_reserved=not is_claimed):
                peer.ask_for_a_while()
                raise NoRoom(worker)
        except PeerLost as error:
            peer.doubt()
            running.fail(TaskFailure(task.attempt, Failure.WORKER, WORKER_LOST, error.message))
        except PeerRefused as error:
            # It was restarted, or got a new hello, since the reservation: nothing is wrong with the task.
            is_transient = error.code in (UNKNOWN_DRIVER, NOT_RESERVED, STOPPING)
            kind = Failure.WORKER if is_transient else Failure.INTERNAL
            running.fail(TaskFailure(task.attempt, kind, error.code, error.message))
            peer.forget(task.attempt)
        except BaseException:
            peer.forget(task.attempt)
            raise
        return running

    async def _send(self, peer: Peer, task: TaskSpec, is_reserved: bool) -> bool:
        """Send a task to its worker. False if that has no free slot."""

        def send() -> Ack:
            if not peer.starts:
                return cast(Ack, peer.call("run", task))
            return cast(Ack, peer.call("start", encode_start(self._fleet.driver, task, is_reserved)))

        answer = await asyncio.get_running_loop().run_in_executor(self._fleet.threads, send)
        return answer.granted

    async def open_ingest(self, query: QueryId) -> FlightIngest:
        """Let anyone who has the token push rows to the workers, until `release` of the query."""
        self._fleet.begin(query)
        if self._data:
            await self._data.begin(query)
        addresses = tuple(worker.name for worker in self.workers())
        driver = self._fleet.driver
        return FlightIngest(addresses, driver, self._credentials, self._stall_seconds, self._settings)

    def fetch(self, block: Block) -> Iterator[pa.RecordBatch]:
        if self._data and block.outlives_worker:
            return self._data.store.read(block)
        return driver_reader(self._fleet.security).read(block)

    async def release(self, query: QueryId) -> None:
        self._is_released = True
        self._fleet.end(query)
        for peer in self._fleet.peers:
            peer.end_claims(query)
        there = [peer for peer in self._fleet.peers if peer.up]
        # A worker that misses this frees the query at our next hello, or when our lease expires.
        await asyncio.gather(*(self.call(peer, "release", query) for peer in there), return_exceptions=True)
        if self._data:
            await self._data.release(query)
        if self._lease:
            self._lease.close()

    async def call(self, peer: Peer, action: str, message: Any) -> Any:
        """Call the worker without blocking the loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._fleet.threads, peer.call, action, message)


class FlightTask:
    """A `RunningTask` on a worker daemon. Lives on the event loop that created it."""

    def __init__(
        self, transport: FlightTransport, peer: Peer, task: TaskSpec, result_buffer_bytes: int
    ) -> None:
        self._transport = transport
        self._peer = peer
        self._attempt = task.attempt
        self._is_result = task.output is None
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[TaskDone | TaskFailure] = self._loop.create_future()
        self._rows = _Rows(peer, task.attempt, self._loop, result_buffer_bytes, self._on_broken)
        self._requests: asyncio.Queue[SplitRequest | None] = asyncio.Queue()
        self._progress: TaskProgress | None = None
        peer.listen(task.attempt, lambda news: _call_soon(self._loop, self._on_news, news))

    @property
    def attempt(self) -> AttemptId:
        return self._attempt

    def batches(self) -> AsyncIterator[pa.RecordBatch]:
        return self._rows.batches()

    @property
    def buffered_bytes(self) -> int:
        """The result's rows that have arrived and were not taken yet."""
        return self._rows.buffered_bytes

    def progress(self) -> TaskProgress | None:
        return self._progress

    async def split_requests(self) -> AsyncIterator[SplitRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def give(self, splits: SplitBatch) -> None:
        # If the worker is lost, the peer's thread notices and fails the attempt.
        with suppress(QueryError):
            await self._transport.call(self._peer, "feed", splits)

    async def done(self) -> TaskDone | TaskFailure:
        outcome = await asyncio.shield(self._outcome)
        if not self._rows.opened or isinstance(outcome, TaskFailure):
            return outcome
        problem = await self._rows.wait_end()
        if problem is None and self._rows.count != outcome.rows:
            problem = f"only {self._rows.count} of {outcome.rows} rows arrived"
        if problem is None:
            return outcome
        return self._make_failure(problem)

    async def cancel(self) -> None:
        self._rows.stop()
        if self._outcome.done() and isinstance(self._outcome.result(), TaskDone):
            return
        # A lost worker needs no cancelling. If it comes back, our next hello cancels the attempt.
        with suppress(QueryError):
            await self._transport.call(self._peer, "cancel", self._attempt)
        self.fail(TaskFailure(self._attempt, Failure.CANCELLED, "CANCELLED", "the attempt was cancelled"))
        self._peer.forget(self._attempt)

    def fail(self, failure: TaskFailure) -> None:
        self._on_news(failure)

    def _on_broken(self, problem: str) -> None:
        # Fail the attempt now: its task might wait forever for a reader of its rows.
        self._on_news(self._make_failure(problem))

    def _make_failure(self, problem: str) -> TaskFailure:
        message = f"worker {self._peer.address}: {problem}"
        return TaskFailure(self._attempt, Failure.WORKER, WORKER_LOST, message)

    def _on_news(self, news: AttemptNews) -> None:
        if self._outcome.done():
            return
        if isinstance(news, Progress):
            self._progress = TaskProgress(self._attempt, news.rows, news.size_bytes)
            return
        if isinstance(news, SplitRequest):
            self._requests.put_nowait(news)
            return
        self._outcome.set_result(news)
        self._requests.put_nowait(None)
        if isinstance(news, TaskFailure):
            # A hanging worker would never end the stream.
            self._rows.stop()


class _Rows:
    """Moves the rows of one attempt from a Flight stream to the event loop."""

    def __init__(
        self,
        peer: Peer,
        attempt: AttemptId,
        loop: asyncio.AbstractEventLoop,
        limit_bytes: int,
        on_broken: Callable[[str], None],
    ) -> None:
        self.opened = False
        self.count = 0
        self._peer = peer
        self._attempt = attempt
        self._loop = loop
        self._on_broken = on_broken
        self._gate = ByteSemaphore(limit_bytes)
        self._ready: asyncio.Queue[pa.RecordBatch | None] = asyncio.Queue()
        self._ended: asyncio.Future[str | None] = loop.create_future()
        self._lock = threading.Lock()
        self._reader: flight.FlightStreamReader | None = None
        self._stopped = False

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        if not self.opened:
            self.opened = True
            threading.Thread(target=self._pump, name=f"volley-rows-{self._attempt}", daemon=True).start()
        while (batch := await self._ready.get()) is not None:
            yield batch
            self._gate.leave(batch.nbytes)

    @property
    def buffered_bytes(self) -> int:
        return self._gate.held_bytes

    async def wait_end(self) -> str | None:
        """Wait for the end of the stream. Returns what went wrong, or None."""
        return await asyncio.shield(self._ended)

    def stop(self) -> None:
        """Read no more. Ends the thread, wherever it waits."""
        with self._lock:
            self._stopped = True
            reader = self._reader
        if reader is not None:
            reader.cancel()
        if not self._ended.done():
            self._ended.set_result("its stream was stopped")
            self._ready.put_nowait(None)

    def _pump(self) -> None:
        problem: str | None = None
        try:
            client = self._peer.result_client()
            reader = client.do_get(flight.Ticket(RESULT_TICKET + encode(self._attempt)))
            with self._lock:
                self._reader = reader
                if self._stopped:
                    reader.cancel()
            for chunk in reader:
                asyncio.run_coroutine_threadsafe(self._put(validate_batch(chunk.data)), self._loop).result()
            self._peer.give_back(client)
        except Exception as error:
            problem = f"its stream of rows broke: {str(error).partition(chr(10))[0]}"
        _call_soon(self._loop, self._finish, problem)

    async def _put(self, batch: pa.RecordBatch) -> None:
        await self._gate.enter(batch.nbytes)
        self.count += batch.num_rows
        self._ready.put_nowait(batch)

    def _finish(self, problem: str | None) -> None:
        if not self._ended.done():
            self._ended.set_result(problem)
            self._ready.put_nowait(None)
            if problem:
                self._on_broken(problem)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> None:
    # If the loop is closed, nobody waits there any more.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)


# ------------------------------------------------------------------------------------------ fleets of this process

_fleets: Shared[tuple[Any, ...], Fleet] = Shared(Phase.CONNECTIONS, close=Fleet.close)


def lease_fleet(addresses: Sequence[str], security: Security, timeout_seconds: float) -> FleetLease:
    """Lease this process's fleet for these workers, after contacting all of them. Closes other, unused fleets.

    The lease keeps the fleet open before a query begins: its caller may still be planning.
    """
    key = (tuple(addresses), security, timeout_seconds)
    with _fleets.locked() as fleets:
        idle = [other for other, fleet in fleets.items() if other != key and not fleet.in_use]
        unused = [fleets.pop(other) for other in idle]
        lease = FleetLease(_fleets.get(key, lambda: Fleet(addresses, security, timeout_seconds)))
    for other in unused:
        other.close()
    lease.fleet.wait()
    return lease


def close_fleets() -> None:
    """Close all fleets, and tell their workers that this driver is stopping."""
    _fleets.close()
