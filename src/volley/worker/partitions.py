# SPDX-License-Identifier: Apache-2.0
"""The `PartitionedRows` of a running task: each of Spark's partitions is a plan of its own, and a thread runs it.

    partition 0   plan, one stream   ---->  values of its rows   ---->
    partition 1   plan, one stream   ---->  values of its rows   ---->  queue  ---->  plan above
                                                                       bounded       DataFusion stream

As many partitions run at a time as the task has cores; one if a value depends on the partitions before. If the order of
partitions matters, each has a queue of its own, and these are read as one stream.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pyarrow as pa
from datafusion import SessionContext

from volley.batches import make_batch
from volley.errors import EngineError, QueryError
from volley.lower.memory import OperatorMemory
from volley.lower.operators import lower_partition
from volley.lower.scope import Streamed, arrow_schema
from volley.lower.sessions import planning_context, running_context
from volley.lower.streams import StreamTable
from volley.plan.nodes import PartitionedRows
from volley.plan.spark_partitions import nth_partition, partition_count
from volley.stages.row_counts import RowCounts
from volley.worker.batch_queue import BatchQueue, PartitionQueue
from volley.worker.engine_threads import engine_threads
from volley.worker.partition_values import PartitionValues
from volley.worker.pass_table import Passes, PassTable
from volley.worker.split_queue import Stopped

_QUEUE_BYTES = 32 * 2**20
_END_SECONDS = 2.0


class PartitionStreams:
    """All `PartitionedRows` of one run of an attempt. `errors` collects what their plans raise."""

    def __init__(self, cores: int, memory: OperatorMemory | None, errors: list[Exception]) -> None:
        self._cores = cores
        self._memory = memory
        self._errors = errors
        self._threads = engine_threads()
        self._passes = Passes()
        self.tables = 0
        """How many there are, which all may wait for rows at the same time."""

    def table(self, node: PartitionedRows) -> StreamTable:
        """The rows, for the plan above. Nothing runs before they are read."""
        self.tables += 1
        width = 1 if node.in_order else max(1, min(self._cores, partition_count(node)))
        # Made here, because DataFusion cannot make a session on its own threads, on which a pass begins.
        context = running_context(1, self._memory)
        begin = partial(self._passes.start, partial(self._pass, node, context, width))
        streams = 1 if node.ordered else width
        return PassTable(arrow_schema(node.output), streams, begin, self._threads).streams()

    def _pass(self, node: PartitionedRows, context: SessionContext, width: int) -> _Pass:
        return _Pass(self, node, context, self._memory, width, self._errors)

    def close(self) -> None:
        """Tell the threads to stop. Each does so at its next batch."""
        self._passes.close()

    async def wait_closed(self) -> None:
        await self._passes.wait_closed(_END_SECONDS)


class _Pass:
    """One pass over all partitions."""

    def __init__(
        self,
        owner: PartitionStreams,
        node: PartitionedRows,
        context: SessionContext,
        memory: OperatorMemory | None,
        width: int,
        errors: list[Exception],
    ) -> None:
        count = partition_count(node)
        self.output = (
            PartitionQueue(_QUEUE_BYTES, count, width) if node.ordered else BatchQueue(_QUEUE_BYTES, count)
        )
        self._owner = owner
        self._node = node
        self._context = context
        self._memory = memory
        self._errors = errors
        self._schema = arrow_schema(node.output)
        self._values = PartitionValues(tuple(value.child for value in node.values))
        self._numbers = iter(range(count))
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, name=f"volley-partition-{number}", daemon=True)
            for number in range(width)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self.output.close()

    @property
    def busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        try:
            while (number := self._next()) is not None:
                queue = self.output.of(number) if isinstance(self.output, PartitionQueue) else self.output
                for batch in self._rows(number):
                    queue.put(batch)
                queue.end_reader()
        except Stopped:
            pass
        except Exception as error:
            self._errors.append(error)
            self.output.fail(error)

    def _next(self) -> int | None:
        with self._lock:
            return next(self._numbers, None)

    def _rows(self, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of a partition with their values."""
        values = self._values.begin(self._node.first + number)
        width = len(arrow_schema(self._node.plan.output))
        for batch in self._plan_rows(number):
            columns = [*batch.columns[:width], *(value.take(batch) for value in values)]
            yield make_batch(columns, self._schema, batch.num_rows)

    def _plan_rows(self, number: int) -> Iterator[pa.RecordBatch]:
        # Without columns DataFusion would lose the rows.
        rows = RowCounts().keep(nth_partition(self._node.plan, number))
        with ExitStack() as resources:
            frame = lower_partition(rows, planning_context(1, self._memory), self._inputs, resources)
            plan = frame.execution_plan()
            if plan.partition_count != 1:
                raise EngineError(f"rows in order came in {plan.partition_count} streams instead of one.")
            for batch in self._context.execute(plan, 0):
                if (found := batch.to_pyarrow()).num_rows:
                    yield found

    def _inputs(self, node: Streamed) -> StreamTable:
        if not isinstance(node, PartitionedRows):
            raise QueryError(f"a partition of Spark's does not read {type(node).__name__}.")
        return self._owner.table(node)
