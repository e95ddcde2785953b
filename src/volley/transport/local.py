"""Workers in this process: a message is a call, a fetched block is a reference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

import datafusion
import pyarrow as pa

from volley.errors import BlockMissing, QueryError
from volley.gate import ByteGate
from volley.ids import AttemptId, QueryId
from volley.shuffle.base import Block, ShuffleSink, ShuffleStore
from volley.shuffle.memory import MemoryStore
from volley.transport.messages import TaskDone, TaskFailure, TaskSpec, WorkerInfo
from volley.worker.task import failure_of, run_task

RESULT_BUFFER_BYTES = 64 * 2**20


class LocalTransport:
    """A `Transport` over `workers` in-process workers that share `cores`. One for each query."""

    def __init__(self, workers: int, cores: int, result_buffer_bytes: int = RESULT_BUFFER_BYTES) -> None:
        share = max(1, cores // workers)
        self._workers = {
            name: _Worker(name, share, self, result_buffer_bytes)
            for name in (f"local-{number}" for number in range(workers))
        }

    def workers(self) -> Sequence[WorkerInfo]:
        return [worker.info for worker in self._workers.values()]

    async def reserve(self, worker: str, attempt: AttemptId) -> bool:
        return self._workers[worker].reserve(attempt)

    async def start(self, worker: str, task: TaskSpec) -> LocalTask:
        return self._workers[worker].start(task)

    def fetch(self, block: Block) -> Iterator[pa.RecordBatch]:
        holder = self._workers.get(block.location)
        if holder is None:
            raise BlockMissing(f"{block.location}, which holds {block.attempt}, is not there.")
        return holder.store.read(block)

    async def release(self, query: QueryId) -> None:
        for worker in self._workers.values():
            await worker.release(query)

    @property
    def held_bytes(self) -> int:
        """What the workers hold of exchanged data."""
        return sum(worker.store.held_bytes for worker in self._workers.values())


class _Worker:
    def __init__(self, name: str, cores: int, transport: LocalTransport, result_buffer_bytes: int) -> None:
        self.info = WorkerInfo(name, cores, slots=1, engine_version=datafusion.__version__)
        self.store = MemoryStore(name)
        self._view = _StoreView(self.store, transport, name)
        self._result_buffer_bytes = result_buffer_bytes
        self._reserved: set[AttemptId] = set()
        self._tasks: dict[AttemptId, LocalTask] = {}

    def reserve(self, attempt: AttemptId) -> bool:
        if attempt in self._tasks:
            return False
        busy = sum(not task.ended for task in self._tasks.values())
        if len(self._reserved) + busy >= self.info.slots:
            return False
        self._reserved.add(attempt)
        return True

    def start(self, task: TaskSpec) -> LocalTask:
        if task.attempt not in self._reserved:
            raise QueryError(f"{task.attempt} has no room reserved on {self.info.name}.")
        self._reserved.remove(task.attempt)
        running = LocalTask(task, self._view, self.info.cores, self._result_buffer_bytes)
        self._tasks[task.attempt] = running
        return running

    async def release(self, query: QueryId) -> None:
        mine = [attempt for attempt in self._tasks if attempt.task.stage.query == query]
        for attempt in mine:
            await self._tasks.pop(attempt).cancel()
        self._reserved = {attempt for attempt in self._reserved if attempt.task.stage.query != query}
        self.store.release(query)


class _StoreView:
    """The store as one worker sees it: it writes to its own, and reads its own or asks the transport."""

    def __init__(self, own: MemoryStore, transport: LocalTransport, location: str) -> None:
        self._own = own
        self._transport = transport
        self._location = location

    def sink(self, attempt: AttemptId, partitions: int) -> ShuffleSink:
        return self._own.sink(attempt, partitions)

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        return self._own.read(block) if block.location == self._location else self._transport.fetch(block)

    def release(self, query: QueryId) -> None:
        self._own.release(query)

    @property
    def held_bytes(self) -> int:
        return self._own.held_bytes


class LocalTask:
    """A `RunningTask` on the loop that started it."""

    def __init__(self, task: TaskSpec, store: ShuffleStore, cores: int, result_buffer_bytes: int) -> None:
        self._spec = task
        self._gate = ByteGate(result_buffer_bytes)
        self._ready: asyncio.Queue[pa.RecordBatch | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(store, cores))

    @property
    def attempt(self) -> AttemptId:
        return self._spec.attempt

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        while (batch := await self._ready.get()) is not None:
            yield batch
            self._gate.leave(batch.nbytes)

    async def done(self) -> TaskDone | TaskFailure:
        return await asyncio.shield(self._task)

    async def cancel(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, store: ShuffleStore, cores: int) -> TaskDone | TaskFailure:
        try:
            return await run_task(self._spec, store, cores, self._give)
        except Exception as error:
            return failure_of(self._spec.attempt, error)
        finally:
            self._ready.put_nowait(None)

    async def _give(self, batch: pa.RecordBatch) -> None:
        await self._gate.enter(batch.nbytes)
        self._ready.put_nowait(batch)
