# SPDX-License-Identifier: Apache-2.0
"""The Python operators of a running task: each ends a plan of its own, and is a table for the plan above.

    plan below  --batches-->  channel  -->  sender  -->  Python worker  -->  reader  -->  queue  -->  plan above
      on the event loop                     thread        process            thread               DataFusion stream

To a function, each of these streams is a task. There is at most one per core, and only one if the rows are in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
from datafusion import DataFrame, SessionContext

from volley.errors import DataError, EngineError, PythonWorkerLost
from volley.ids import AttemptId
from volley.lower.memory import OperatorMemory
from volley.lower.operators import lower
from volley.lower.scope import Inputs
from volley.lower.sessions import planning_context, running_context
from volley.lower.streams import StreamTable
from volley.plan.nodes import CachedRows, FileScan, Filter, Node, Project, Range, Union, walk
from volley.plan.python_nodes import PythonNode
from volley.process.loop import Work, run_blocking
from volley.worker.batch_queue import BatchQueue
from volley.worker.engine_threads import engine_threads
from volley.worker.fragment import Fragment
from volley.worker.pass_table import Passes, PassTable
from volley.worker.python.batching import Gathered
from volley.worker.python.channel import Channel
from volley.worker.python.conversions import Converted, convert
from volley.worker.python.groups import GroupQueue, cut_groups
from volley.worker.python.processes import shared_python_workers
from volley.worker.python.program_run import ProgramRun
from volley.worker.python.protocol import TaskIdentity
from volley.worker.python.ranges import divide_range
from volley.worker.split_queue import Stopped

_QUEUE_BYTES = 32 * 2**20
_END_SECONDS = 5.0
# What a batch costs on its way to a function does not depend on its rows.
_CROSSING_ROWS = 2**16
_STREAMING = (Project, Filter, Range, Union, FileScan, CachedRows)


class PythonStreams:
    """All Python operators of one run of an attempt. `errors` collects what their plans and functions raise.

    Created on the event loop on which the plans below them run.
    """

    def __init__(
        self, attempt: AttemptId, cores: int, memory: OperatorMemory | None, errors: list[Exception]
    ) -> None:
        self._attempt = attempt
        self._cores = cores
        self._memory = memory
        self._errors = errors
        self._loop = asyncio.get_running_loop()
        self._passes = Passes()
        self._streams = 0
        self._threads = engine_threads()
        self.tables = 0
        """How many operators there are, which all may wait for rows at the same time."""

    def table(self, node: PythonNode, inputs: Inputs, resources: ExitStack) -> StreamTable:
        """The rows of an operator, for the plan above it. Nothing runs before they are read."""
        self.tables += 1
        if self.tables > self._threads.table_limit:
            raise DataError(f"a task has more than {self._threads.table_limit} operators that call Python.")
        operator = convert(node)
        plan = operator.plan
        if not operator.single and operator.groups is None:
            plan = divide_range(plan, self._cores)
        batch_rows = crossing_rows(plan, operator.program.batch_rows)
        planning = planning_context(self._cores, self._memory, batch_rows)
        frame = lower(plan, planning, inputs, resources, self._cores)
        # Made here, because DataFusion cannot make a session on its own threads, on which a pass begins.
        context = running_context(self._cores, self._memory, batch_rows)
        width = self._width(operator, frame)
        begin = partial(self._passes.start, partial(self._pass, operator, frame, context, width))
        return PassTable(operator.schema, width, begin, self._threads).streams()

    def _width(self, operator: Converted, frame: DataFrame) -> int:
        if operator.single:
            return 1
        # Groups are dealt to all streams.
        return self._cores if operator.groups is not None else self._streams_of(frame)

    def _streams_of(self, frame: DataFrame) -> int:
        return max(1, min(self._cores, int(frame.execution_plan().partition_count)))

    def _pass(self, operator: Converted, frame: DataFrame, context: SessionContext, width: int) -> _Pass:
        first = self._attempt.task.task * 1024 + self._streams
        self._streams += width
        tasks = [
            TaskIdentity(self._attempt.task.stage.stage, first + number, self._attempt.attempt)
            for number in range(width)
        ]
        return _Pass(operator, frame, context, tasks, self._errors, self._loop)

    def close(self) -> None:
        """Stop everything. Workers that still run are killed."""
        self._passes.close()

    async def wait_closed(self) -> None:
        await self._passes.wait_closed(_END_SECONDS)


def crossing_rows(plan: Node, batch_rows: int) -> int | None:
    """How many rows DataFusion's batches have: several of Spark's `batch_rows`. None: as in other plans."""
    if not 0 < batch_rows <= _CROSSING_ROWS:
        return None
    if not all(isinstance(node, _STREAMING) for node in walk(plan)):
        return None  # joins and the like are faster with batches that fit into caches
    return _CROSSING_ROWS // batch_rows * batch_rows


class _Pass:
    """One pass over an operator's rows."""

    def __init__(
        self,
        operator: Converted,
        frame: DataFrame,
        context: SessionContext,
        tasks: list[TaskIdentity],
        errors: list[Exception],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.output = BatchQueue(_QUEUE_BYTES, len(tasks))
        self._frame = frame
        self._context = context
        self._errors = errors
        self._loop = loop
        self._grouping: _Grouping | None = None
        if operator.groups is None:
            self._inputs = [Channel(loop, _QUEUE_BYTES) for _ in tasks]
            items: list[Iterator[Any]] = [channel.batches() for channel in self._inputs]
        else:
            self._inputs = [Channel(loop, _QUEUE_BYTES)]
            self._grouping = _Grouping(self._inputs[0], operator.groups, self.fail)
            items = [self._grouping.queue.groups() for _ in tasks]
        self._streams = [
            _Stream(operator, task, mine, self.output, self.fail)
            for task, mine in zip(tasks, items, strict=True)
        ]
        self._drive: asyncio.Task[None] | None = None
        self._closed = False
        self._ended = False

    def start(self) -> None:
        if self._grouping is not None:
            self._grouping.thread.start()
        for stream in self._streams:
            stream.thread.start()
        self._loop.call_soon_threadsafe(self._start_plan)

    def fail(self, error: Exception) -> None:
        """End the pass with an error. Only the first one counts."""
        self._errors.append(error)
        self.output.fail(error)
        self.close()

    def close(self) -> None:
        self._closed = True
        self.output.close()
        for channel in self._inputs:
            channel.close()
        if self._grouping is not None:
            self._grouping.queue.close()
        for stream in self._streams:
            stream.close()
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the plan
            self._loop.call_soon_threadsafe(self._stop_plan)

    @property
    def busy(self) -> bool:
        threads = [stream.thread for stream in self._streams]
        if self._grouping is not None:
            threads.append(self._grouping.thread)
        return not self._ended or any(thread.is_alive() for thread in threads)

    def _start_plan(self) -> None:
        if self._closed:
            self._ended = True
        else:
            self._drive = asyncio.create_task(self._run())
            self._drive.add_done_callback(self._end)

    def _stop_plan(self) -> None:
        if self._drive is None:
            self._ended = True
        else:
            self._drive.cancel()

    async def _run(self) -> None:
        async def give(number: int, batch: pa.RecordBatch) -> None:
            await self._inputs[number % len(self._inputs)].put(batch)

        # A plan runs once. DataFusion cannot plan on its own threads, on which a pass begins.
        plan = await run_blocking(Work.PLAN, self._frame.execution_plan)
        fragment = Fragment(self._context, plan, self._errors)
        del plan
        try:
            await fragment.run(give)
        finally:
            fragment.drop()

    def _end(self, drive: asyncio.Task[None]) -> None:
        self._drive = None
        self._ended = True
        error = None if drive.cancelled() else drive.exception()
        if error is None:
            for channel in self._inputs:
                channel.end()
        else:
            # A panic of the engine is not an Exception.
            self.fail(error if isinstance(error, Exception) else EngineError(str(error)))


class _Grouping:
    """The thread that cuts sorted rows into groups, and the queue from which all streams take them."""

    def __init__(self, rows: Channel, keys: tuple[int, ...], fail: Callable[[Exception], None]) -> None:
        self._rows = rows
        self._keys = keys
        self._fail = fail
        self.queue = GroupQueue(_QUEUE_BYTES)
        self.thread = threading.Thread(target=self._cut, name="volley-python-groups", daemon=True)

    def _cut(self) -> None:
        try:
            for group in cut_groups(self._rows.batches(), self._keys):
                self.queue.put(group)
            self.queue.end()
        except Stopped:
            pass
        except Exception as error:
            self._fail(error)


class _Stream:
    """The rows or groups of one stream through one Python worker."""

    def __init__(
        self,
        operator: Converted,
        task: TaskIdentity,
        items: Iterator[Any],
        output: BatchQueue,
        fail: Callable[[Exception], None],
    ) -> None:
        self._conversion = operator.conversion()
        self._needs_rows = operator.needs_rows
        self._shares_items = operator.groups is not None
        self._run = ProgramRun(shared_python_workers(), operator.program, task)
        self._items = items
        self._output = output
        self._fail = fail
        self.thread = threading.Thread(target=self._receive, name="volley-python-receive", daemon=True)

    def close(self) -> None:
        self._run.close()

    def _receive(self) -> None:
        try:
            first = next(self._items, None)
            if first is not None or not self._needs_rows:
                items = chain([] if first is None else [first], self._items)
                gathered = Gathered(self._output.put)
                for results in self._run.results(lambda out: self._conversion.send(items, out)):
                    for batch in self._conversion.receive(results):
                        gathered.add(batch)
                for batch in self._conversion.finish():
                    gathered.add(batch)
                gathered.flush()
                if not self._run.read_all:
                    self._drain()
        except Stopped:
            pass
        except Exception as error:
            self._fail(error)
        finally:
            self._output.end_reader()

    def _drain(self) -> None:
        """Drain the rows that a function did not read: other streams may wait for theirs in the plan below."""
        if self._shares_items:
            raise PythonWorkerLost("Python worker ended before it had read all groups.")
        self._run.wait_sent()
        for _ in self._items:
            pass
