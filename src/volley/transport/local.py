# SPDX-License-Identifier: Apache-2.0
"""Workers in this process: a message is a method call, a fetched block is a reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set

import datafusion
import pyarrow as pa

from volley.errors import BlockMissing
from volley.events import Distance
from volley.fetch_counters import current_fetch_counters
from volley.ids import AttemptId, QueryId
from volley.lower.memory import OperatorMemory
from volley.rpc.messages import Failure, TaskFailure, TaskSpec, WorkerInfo
from volley.shuffle.base import Block, SharedStore, ShuffleSink, ShuffleStore
from volley.shuffle.shared_store import QueryLease, WorkerView
from volley.transport.base import RunningTask
from volley.transport.failed_task import FailedTask
from volley.worker.slots import RESULT_BUFFER_BYTES, NotReserved, Slots


class LocalTransport:
    """A `Transport` over `workers` in-process workers that share `cores`. One per query."""

    def __init__(
        self,
        workers: int,
        cores: int,
        store: Callable[[str], ShuffleStore],
        result_buffer_bytes: int = RESULT_BUFFER_BYTES,
        shared: SharedStore | None = None,
        serving: ShuffleStore | None = None,
        memory: OperatorMemory | None = None,
    ) -> None:
        """`store` makes the store of the worker with the given name. `shared` and `serving` replace it with one store
        for all workers; `serving` is a store of this process that other processes read too. Operators of all workers
        share `memory`; None for no limit."""
        share = max(1, cores // workers)
        self._data = QueryLease(shared) if shared else None
        self._common = WorkerView(shared) if shared else serving
        self._workers = {
            name: _Worker(name, share, self._common or store(name), self, result_buffer_bytes, memory)
            for name in (f"local-{number}" for number in range(workers))
        }

    def workers(self) -> Sequence[WorkerInfo]:
        return [worker.info for worker in self._workers.values()]

    def holders(self) -> Set[str]:
        return self._workers.keys()

    async def reserve(self, worker: str, attempt: AttemptId) -> bool:
        return self._workers[worker].slots.reserve(attempt)

    async def start(self, worker: str, task: TaskSpec) -> RunningTask:
        if self._data and task.output is not None:
            await self._data.begin(task.attempt.task.stage.query)
        try:
            return self._workers[worker].slots.start(task)
        except NotReserved as error:
            return FailedTask(TaskFailure(task.attempt, Failure.WORKER, error.code, error.message))

    async def open_ingest(self, query: QueryId) -> None:
        return None

    def fetch(self, block: Block) -> Iterator[pa.RecordBatch]:
        if self._common:
            return self._common.read(block)
        holder = self._workers.get(block.location)
        if holder is None:
            raise BlockMissing(f"{block.location}, which holds {block.attempt}, does not exist.")
        return holder.store.read(block)

    async def release(self, query: QueryId) -> None:
        for worker in self._workers.values():
            await worker.slots.release(query)
        if self._data:
            await self._data.release(query)

    @property
    def common(self) -> bool:
        """Whether all workers use one store, so that each can read everything."""
        return self._common is not None

    @property
    def held_bytes(self) -> int:
        """The exchanged data that the workers hold."""
        return sum(worker.store.held_bytes for worker in self._workers.values())


class _Worker:
    def __init__(
        self,
        name: str,
        cores: int,
        store: ShuffleStore,
        transport: LocalTransport,
        result_buffer_bytes: int,
        memory: OperatorMemory | None,
    ) -> None:
        self.info = WorkerInfo(name, cores, slots=1, engine_version=datafusion.__version__)
        self.store = store
        view = _StoreView(store, transport, name)
        self.slots = Slots(name, self.info.slots, cores, view, result_buffer_bytes, memory)


class _StoreView:
    """The store as one worker sees it: it writes its own blocks, and reads others through the transport."""

    def __init__(self, own: ShuffleStore, transport: LocalTransport, location: str) -> None:
        self._own = own
        self._transport = transport
        self._location = location

    @property
    def is_blocking(self) -> bool:
        return self._own.is_blocking

    def sink(self, attempt: AttemptId, partitions: int) -> ShuffleSink:
        return self._own.sink(attempt, partitions)

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        mine = self._transport.common or block.location == self._location
        return self._own.read(block) if mine else self._transport.fetch(block)

    def read_many(self, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
        if self._transport.common:
            yield from self._own.read_many(blocks)
            return
        counters = current_fetch_counters()
        for block in blocks:
            for batch in self.read(block):
                counters.count_data(Distance.LOCAL, batch.nbytes, batch.nbytes)
                yield batch

    def release(self, query: QueryId) -> None:
        self._own.release(query)

    @property
    def held_bytes(self) -> int:
        return self._own.held_bytes
