# SPDX-License-Identifier: Apache-2.0
"""The slots of one worker, and the attempts that run in them.

    reserve(attempt) -> start(spec) -> Attempt         in this order, each attempt once
    release(query)                                     ends and forgets everything of a query

The first call about a query gives its key, and all later ones must show it. Everything here lives on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from volley.byte_semaphore import ByteSemaphore
from volley.ended_queries import EndedQueries
from volley.errors import DataError, QueryError
from volley.events import TaskProgress
from volley.ids import AttemptId, QueryId
from volley.jvm.calls import serialized_programs
from volley.jvm.java import NOT_PERMITTED, JvmAccess, describe_versions
from volley.jvm.worker_jvm import shared_jvms
from volley.lower.memory import OperatorMemory
from volley.plan.nodes import walk
from volley.plan.python_nodes import PythonNode
from volley.process.log_format import about
from volley.process.loop import Work, run_blocking
from volley.rpc.control import NOT_RESERVED, Progress
from volley.rpc.messages import Failure, SplitBatch, SplitRequest, TaskDone, TaskFailure, TaskSpec
from volley.shuffle.base import ShuffleStore
from volley.splits.datasource import sends_code
from volley.stages.graph import result_schema
from volley.worker.fragment import Running
from volley.worker.listeners import tell_ended, tell_started
from volley.worker.split_queue import SplitQueues
from volley.worker.stores import OneStore, Settings, Stores
from volley.worker.task import failure_of, run_task

_log = logging.getLogger(__name__)

RESULT_BUFFER_BYTES = 64 * 2**20
# A coordinator starts an attempt right after the reservation; one that does not is gone.
RESERVATION_SECONDS = 30.0


class NotReserved(QueryError):
    code = NOT_RESERVED


@dataclass(frozen=True, slots=True)
class CodePolicy:
    """The code of users that the owner of a worker lets it run: Python functions, and programs for a JVM."""

    python: bool = True
    jvm: JvmAccess = NOT_PERMITTED


PYTHON_ONLY = CodePolicy()


class Slots:
    """Runs up to `limit` attempts at a time, each on `cores` cores. Their operators share `memory`.

    Attempts write to `stores`, which may be one store for all sessions. Those with code that the policy does not
    allow fail. `on_end` is told how each attempt ended. While memory `is_short`, one attempt runs at a time.
    """

    def __init__(
        self,
        name: str,
        limit: int,
        cores: int,
        stores: ShuffleStore | Stores,
        result_buffer_bytes: int = RESULT_BUFFER_BYTES,
        memory: OperatorMemory | None = None,
        reservation_seconds: float = RESERVATION_SECONDS,
        code: CodePolicy = PYTHON_ONLY,
        on_end: Callable[[TaskDone | TaskFailure], None] = lambda outcome: None,
        is_short: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = name
        self.code = code
        self.limit = limit
        self._cores = cores
        self.stores: Stores = stores if isinstance(stores, Stores) else OneStore(stores)
        self._result_buffer_bytes = result_buffer_bytes
        self._memory = memory
        self._reservation_seconds = reservation_seconds
        self._on_end = on_end
        self._is_short = is_short
        self._reserved: dict[AttemptId, float] = {}
        self._attempts: dict[AttemptId, Attempt] = {}
        self._queries: dict[QueryId, QueryId] = {}
        self._released = EndedQueries()
        self._draining = False

    @property
    def running(self) -> int:
        return sum(not attempt.ended for attempt in self._attempts.values())

    @property
    def reserved(self) -> int:
        now = time.monotonic()
        self._reserved = {attempt: until for attempt, until in self._reserved.items() if until > now}
        return len(self._reserved)

    @property
    def idle(self) -> bool:
        """Nothing runs or is reserved, and no rows wait to be read."""
        return not self.reserved and not any(attempt.busy for attempt in self._attempts.values())

    @property
    def draining(self) -> bool:
        return self._draining

    def drain(self) -> None:
        """Refuse new reservations. Running attempts continue."""
        self._draining = True

    def admit(self, query: QueryId) -> None:
        """Remember the key of a query that begins here. QueryError if it has begun with another one."""
        if query not in self._released:
            self._queries.setdefault(query, query)
            self.check_key(query)

    def check_key(self, query: QueryId) -> None:
        """QueryError if this query runs here and the caller does not have its key."""
        known = self._queries.get(query)
        if known is not None and not query.has_key_of(known):
            raise QueryError(f"query {query} is not on {self.name}.")

    def reserve(self, attempt: AttemptId) -> bool:
        """Reserve a slot for a limited time. False if none is free, the attempt is known or its query is over."""
        self.check_key(_query(attempt))
        if self._draining or attempt in self._attempts or _query(attempt) in self._released:
            return False
        busy = self.reserved + self.running
        if busy >= self.limit or attempt in self._reserved or (busy and self._is_short()):
            return False
        self.admit(_query(attempt))
        self._reserved[attempt] = time.monotonic() + self._reservation_seconds
        return True

    def start(self, task: TaskSpec) -> Attempt:
        """Run an attempt in its reserved slot. Raises NotReserved if it has none or the reservation expired."""
        self.check_key(_query(task.attempt))
        if not self.reserved or task.attempt not in self._reserved:
            raise NotReserved(f"{task.attempt} has no slot reserved on {self.name}.")
        del self._reserved[task.attempt]
        attempt = Attempt(
            task,
            self.stores,
            self._cores,
            self._memory,
            self._result_buffer_bytes,
            self.code,
            is_alone=lambda: self.running <= 1,
        )
        self._attempts[task.attempt] = attempt
        _log.debug("attempt %s began", task.attempt, extra=about(_query(task.attempt)))
        started = tell_started(self.name, task.attempt)
        attempt.on_end(_log_end)
        attempt.on_end(lambda ended: tell_ended(started, ended.outcome))
        attempt.on_end(lambda ended: self._on_end(ended.outcome))
        return attempt

    def __getitem__(self, attempt: AttemptId) -> Attempt:
        """A started attempt of a query that is not over. Raises QueryError for any other."""
        self.check_key(_query(attempt))
        if attempt not in self._attempts:
            raise QueryError(f"{attempt} is not on {self.name}.")
        return self._attempts[attempt]

    def progress(self, attempt: AttemptId) -> Progress | None:
        """What a running attempt has read so far; None if it is not running."""
        running = self._attempts.get(attempt)
        found = running.progress() if running is not None and not running.ended else None
        return Progress(attempt, found.rows, found.size_bytes) if found is not None else None

    async def give(self, splits: SplitBatch) -> None:
        """Answer the split request of an attempt. Ignored if the attempt is not here any more."""
        self.check_key(_query(splits.attempt))
        if splits.attempt in self._attempts:
            await self._attempts[splits.attempt].give(splits)

    async def cancel(self, attempt: AttemptId) -> None:
        """Cancel an attempt or its reservation. Does nothing if it is not here."""
        self.check_key(_query(attempt))
        self._reserved.pop(attempt, None)
        if attempt in self._attempts:
            await self._attempts[attempt].cancel()

    async def release(self, query: QueryId) -> None:
        """Cancel what runs for the query, free what it holds, and refuse its late reservations."""
        self.check_key(query)
        self._released.add(query)
        self._queries.pop(query, None)
        self._reserved = {attempt: at for attempt, at in self._reserved.items() if _query(attempt) != query}
        mine = [attempt for attempt in self._attempts if _query(attempt) == query]
        ended = [self._attempts.pop(attempt) for attempt in mine]
        await asyncio.gather(*(attempt.cancel() for attempt in ended))
        for asked in {query for attempt in ended for query in attempt.program_queries}:
            shared_jvms().abandon(asked)
        self.stores.release(query)


class Attempt:
    """A `RunningTask` that runs here. Lives on the event loop that started it."""

    def __init__(
        self,
        task: TaskSpec,
        stores: Stores,
        cores: int,
        memory: OperatorMemory | None,
        result_buffer_bytes: int,
        code: CodePolicy,
        is_alone: Callable[[], bool] = lambda: True,
    ) -> None:
        self._code = code
        self.program_queries: frozenset[str] = frozenset()
        """The query whose programs it calls in the JVM beside this worker."""
        self._spec = task
        self._is_alone = is_alone
        self._running: Running | None = None
        self._gate = ByteSemaphore(result_buffer_bytes)
        self._ready: asyncio.Queue[pa.RecordBatch | None] = asyncio.Queue()
        self._requests: asyncio.Queue[SplitRequest | None] = asyncio.Queue()
        self._tell: Callable[[SplitRequest], None] = self._requests.put_nowait
        self._split_queues = SplitQueues(task.attempt, lambda request: self._tell(request))
        self._task = asyncio.create_task(self._run(stores, cores, memory))
        self._task.add_done_callback(lambda _: self._ready.put_nowait(None))
        self._task.add_done_callback(lambda _: self._requests.put_nowait(None))

    @property
    def attempt(self) -> AttemptId:
        return self._spec.attempt

    @property
    def settings(self) -> Settings:
        """The options of its session."""
        return self._spec.settings

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches of a result task."""
        return result_schema(self._spec.plan.output)

    @property
    def ended(self) -> bool:
        return self._task.done()

    @property
    def busy(self) -> bool:
        """Whether it runs, or has rows that were not read yet."""
        return not self.ended or self._gate.held_bytes > 0

    @property
    def outcome(self) -> TaskDone | TaskFailure:
        """How it ended. Valid only after its end."""
        if self._task.cancelled():
            return TaskFailure(self.attempt, Failure.CANCELLED, "CANCELLED", "the attempt was cancelled")
        return self._task.result()

    def progress(self) -> TaskProgress | None:
        """What it has read so far; None before it runs."""
        return TaskProgress(self.attempt, *self._running.read_so_far()) if self._running else None

    def on_request(self, callback: Callable[[SplitRequest], None]) -> None:
        """Call `callback` on the loop for each split request, instead of queueing it for `split_requests`."""
        self._tell = callback

    def on_end(self, callback: Callable[[Attempt], None]) -> None:
        self._task.add_done_callback(lambda _: callback(self))

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        while (batch := await self._ready.get()) is not None:
            yield batch
            self._gate.leave(batch.nbytes)

    async def split_requests(self) -> AsyncIterator[SplitRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def give(self, splits: SplitBatch) -> None:
        self._split_queues.give(splits)

    def fail_feed(self, feed: int, error: Exception) -> None:
        """Fail the pending request for splits of this feed."""
        self._split_queues.fail(feed, error)

    async def done(self) -> TaskDone | TaskFailure:
        await asyncio.wait([self._task])
        return self.outcome

    async def cancel(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, stores: Stores, cores: int, memory: OperatorMemory | None) -> TaskDone | TaskFailure:
        try:
            self._check_code()
            chosen = (self.attempt.query, self.settings)
            if stores.is_open(self.settings):
                store = stores.of(*chosen)
            else:
                store = await run_blocking(Work.STORE, stores.of, *chosen)
            done = await run_task(
                self._spec, store, cores, self._give, memory, self._split_queues, self._set_running
            )
            return self._count_programs(done)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the engine is not an Exception
            return failure_of(self.attempt, error, self._is_alone())

    def _set_running(self, running: Running) -> None:
        self._running = running

    def _check_code(self) -> None:
        # A plan carries pickled functions and sources, and expressions of Java, which are code: only the owner of a
        # worker lets it run code.
        plan = self._spec.plan
        if not self._code.python and (
            sends_code(plan) or any(isinstance(node, PythonNode) for node in walk(plan))
        ):
            raise DataError("this worker does not run Python functions.")
        programs, jvm = serialized_programs(plan), self._code.jvm
        if programs and jvm.problem:
            raise DataError(f"this worker evaluates no expressions in a JVM: {jvm.problem}.")
        # It may have joined after the query was planned. The sidecar of an executor has the versions of its driver.
        if jvm.versions and any(program.versions != jvm.versions for program in programs):
            raise DataError(f"this worker has {describe_versions(jvm.versions)}, unlike the driver.")
        self.program_queries = frozenset(program.query for program in programs)

    def _count_programs(self, done: TaskDone) -> TaskDone:
        """Attempts of one query share programs here, so one of them may report what others have used."""
        if not self.program_queries:
            return done
        counts = [shared_jvms().take_counts(query) for query in self.program_queries]
        metrics = replace(
            done.metrics,
            jvm_rows=sum(rows for rows, _ in counts),
            jvm_seconds=sum(seconds for _, seconds in counts),
        )
        return replace(done, metrics=metrics)

    async def _give(self, batch: pa.RecordBatch) -> None:
        await self._gate.enter(batch.nbytes)
        self._ready.put_nowait(batch)


def _log_end(attempt: Attempt) -> None:
    outcome, extra = attempt.outcome, about(_query(attempt.attempt))
    if isinstance(outcome, TaskDone):
        _log.debug("attempt %s finished, %d rows", attempt.attempt, outcome.rows, extra=extra)
    elif outcome.failure is Failure.CANCELLED:
        _log.debug("attempt %s was cancelled", attempt.attempt, extra=extra)
    else:
        # Only the code: messages about data contain data.
        _log.info("attempt %s failed: %s", attempt.attempt, outcome.code, extra=extra)


def _query(attempt: AttemptId) -> QueryId:
    return attempt.task.stage.query
