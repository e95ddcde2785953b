# SPDX-License-Identifier: Apache-2.0
"""Runs one attempt: plans the fragment, runs it, delivers its rows and reports the outcome.

Planning is CPU work and runs on a thread. Running is awaited on the event loop, so that an attempt can be cancelled in
the middle of an operator. DataFusion stops when a stream and its plan are dropped, so nothing else may hold them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from datafusion import DataFrame, ExecutionPlan

from volley.batches import make_batch
from volley.errors import (
    BlockDamaged,
    BlockMissing,
    DataError,
    EngineError,
    JvmLost,
    OperatorMemoryExhausted,
    PythonWorkerLost,
    QueryError,
    ShuffleRefused,
    SpillDiskFull,
    VolleyError,
)
from volley.events import TaskMetrics
from volley.ids import AttemptId
from volley.lower.engine_errors import Fault, fault_of, plain_message
from volley.lower.local_copies import reads_objects, use_local_copies
from volley.lower.memory import OperatorMemory, can_merge
from volley.lower.operators import lower, select_result
from volley.lower.partition import partitioned_plan
from volley.lower.row_bounds import bound_of
from volley.lower.scope import Inputs, Streamed, arrow_schema
from volley.lower.sessions import hashing_context, planning_context, running_context
from volley.lower.streams import StreamTable
from volley.lower.write import lower_write
from volley.plan.nodes import (
    FeedInput,
    Join,
    PartitionedRows,
    Partitioning,
    StageInput,
    WriteFiles,
    walk,
)
from volley.process.loop import Work, run_blocking
from volley.process.tracing import start_span
from volley.rpc.messages import Failure, InputBlocks, TaskDone, TaskFailure, TaskSpec
from volley.shuffle.base import Block, ShuffleStore
from volley.stages.graph import Output, result_schema
from volley.storage.registry import shared_stores
from volley.worker.async_sink import AsyncSink
from volley.worker.fetch_meter import FetchMeter, Readable
from volley.worker.fragment import Fragment, Running
from volley.worker.micro_batches import MicroBatches, find_filtered_scan
from volley.worker.partitions import PartitionStreams
from volley.worker.python.files import HeldFiles, files_of, with_paths
from volley.worker.python.streams import PythonStreams
from volley.worker.scan import Scans
from volley.worker.split_queue import SplitQueues
from volley.worker.write import write_rows


async def run_task(
    task: TaskSpec,
    store: ShuffleStore,
    cores: int,
    give: Callable[[pa.RecordBatch], Awaitable[None]],
    memory: OperatorMemory | None = None,
    split_queues: SplitQueues | None = None,
    on_running: Callable[[Running], None] = lambda running: None,
) -> TaskDone:
    """Run an attempt to its end. Rows go to the store, or to `give` for a task of the result stage.

    `split_queues` deliver the splits of fed scans. `on_running` is given what runs, for its progress. Raises the error
    that made the attempt fail. A failed or cancelled attempt leaves nothing behind.
    """
    gave = False

    async def give_on(batch: pa.RecordBatch) -> None:
        nonlocal gave
        gave = True
        await give(batch)

    try:
        return await _run_once(task, store, cores, give_on, memory, split_queues, on_running)
    except Exception as error:
        # Retry with merge joins, unless rows were delivered: those cannot be taken back.
        if memory is None or gave or fault_of(error) is not Fault.MEMORY:
            raise
        if not task.sorts_joins or not can_merge(task.plan):
            raise
    memory = replace(memory, merge_joins=True)
    return await _run_once(task, store, cores, give, memory, split_queues, on_running)


async def _run_once(
    task: TaskSpec,
    store: ShuffleStore,
    cores: int,
    give: Callable[[pa.RecordBatch], Awaitable[None]],
    memory: OperatorMemory | None,
    split_queues: SplitQueues | None,
    on_running: Callable[[Running], None],
) -> TaskDone:
    started = time.perf_counter()
    errors: list[Exception] = []
    fetched = FetchMeter()
    shared_stores().add(task.stores)
    with ExitStack() as resources:
        attributes = {"attempt": str(task.attempt), "query": str(task.attempt.query)}
        span = resources.enter_context(start_span("volley.attempt", parent=task.trace, attributes=attributes))
        fetched.traceparent = span.traceparent
        scans = Scans(split_queues, cores, errors)
        resources.callback(scans.close)
        task = await _receive_files(task, split_queues, resources)
        if reads_objects(task.plan):
            plan = await run_blocking(Work.FILES, use_local_copies, task.plan, resources)
            task = replace(task, plan=plan)
        python = PythonStreams(task.attempt, cores, memory, errors)
        partitions = PartitionStreams(cores, memory, errors)
        inputs = _Inputs(task, store, fetched, cores, errors, scans, python, partitions, resources)
        running = await run_blocking(Work.PLAN, _plan, task, inputs, cores, memory, resources, scans, errors)
        on_running(running)
        try:
            await scans.admit(python.tables + partitions.tables)
            if isinstance(task.plan, WriteFiles):
                done = await _write(task, task.plan, running, give, started)
            elif task.output is None:
                done = await _stream(task, running, give, started)
            else:
                done = await _store(task, task.output, running, store, started)
            span.set(rows=done.rows, size_bytes=done.size_bytes)
            return fetched.add_to(done)
        except Exception as error:
            # DataFusion turns errors of its inputs into text; the original says which block is lost.
            if running.input_errors:
                raise running.input_errors[0] from error
            raise
        finally:
            running.drop()
            # Break the cycle of error, traceback, frames and this list: it would keep the files of a damaged block open
            # until Python's garbage collector runs.
            errors.clear()
            python.close()
            partitions.close()
            scans.close()
            await python.wait_closed()
            await partitions.wait_closed()
            await scans.wait_closed()


async def _receive_files(task: TaskSpec, split_queues: SplitQueues | None, resources: ExitStack) -> TaskSpec:
    """The task with the files of its Python functions at hand, if they are on the driver's machine."""
    files = files_of(task.plan)
    if not files:
        return task
    held = HeldFiles(files, split_queues)
    resources.callback(held.close)
    await run_blocking(Work.FILES, held.receive, on_cancel=held.stop)
    return replace(task, plan=with_paths(task.plan))


async def _stream(
    task: TaskSpec, running: Running, give: Callable[[pa.RecordBatch], Awaitable[None]], started: float
) -> TaskDone:
    count = _Count()
    schema = result_schema(task.plan.output)

    async def pass_on(_: int, batch: pa.RecordBatch) -> None:
        count.add(batch)
        await give(_conform(batch, schema))

    await running.run(pass_on)
    seconds = time.perf_counter() - started
    return TaskDone(task.attempt, (), TaskMetrics(count.rows, count.size_bytes, seconds, running.metrics()))


async def _write(
    task: TaskSpec,
    node: WriteFiles,
    running: Running,
    give: Callable[[pa.RecordBatch], Awaitable[None]],
    started: float,
) -> TaskDone:
    """Write the rows into files. The client gets the list of files."""
    count = _Count()
    files = await write_rows(node, task.attempt, running.streams, running.run)
    if files is not None:
        count.add(files)
        await give(files)
    seconds = time.perf_counter() - started
    return TaskDone(task.attempt, (), TaskMetrics(count.rows, count.size_bytes, seconds, running.metrics()))


async def _store(
    task: TaskSpec, output: Output, running: Running, store: ShuffleStore, started: float
) -> TaskDone:
    sink = AsyncSink(store)
    await sink.open(task.attempt, output.partitions)
    width = len(arrow_schema(task.plan.output))
    turn = 0

    async def write(stream: int, batch: pa.RecordBatch) -> None:
        nonlocal turn
        match output.partitioning:
            case Partitioning.HASH:
                await sink.write(stream, _first_columns(batch, width))
            case Partitioning.ROUND_ROBIN:
                target, turn = turn, (turn + 1) % output.partitions
                await sink.write(target, batch)
            case _:
                await sink.write(0, batch)

    try:
        await running.run(write)
        blocks = await sink.commit()
    except BaseException:
        await sink.abort()
        raise
    rows = sum(block.rows for block in blocks)
    size_bytes = sum(block.size_bytes for block in blocks)
    spilled_bytes = sum(block.spilled_bytes for block in blocks)
    seconds = time.perf_counter() - started
    metrics = TaskMetrics(rows, size_bytes, seconds, running.metrics(), spilled_bytes)
    return TaskDone(task.attempt, blocks, metrics)


def failure_of(attempt: AttemptId, error: BaseException, alone: bool = True) -> TaskFailure:
    """Classify the error that ended an attempt. `alone`: no other attempt shared the worker's memory."""
    code = error.code if isinstance(error, VolleyError) else type(error).__name__
    fault = fault_of(error)
    if isinstance(error, BlockMissing):
        kind = Failure.LOST_INPUT
    elif fault is Fault.MEMORY:
        # If other attempts used memory too, a retry may have more of it.
        kind, code = (Failure.MEMORY if alone else Failure.WORKER), OperatorMemoryExhausted.code
    elif fault is Fault.DISK:
        kind, code = Failure.WORKER, SpillDiskFull.code
    elif fault is Fault.DATA or isinstance(error, DataError | pa.ArrowException):
        kind = Failure.DATA
    elif isinstance(error, PythonWorkerLost | JvmLost) or fault is Fault.JVM:
        # Code that crashed twice is replayed on Spark.
        kind = Failure.WORKER if attempt.attempt == 0 else Failure.DATA
        code = JvmLost.code if fault is Fault.JVM else code
    elif isinstance(error, OSError | MemoryError | SpillDiskFull | ShuffleRefused):
        kind = Failure.WORKER
    else:
        kind, code = Failure.INTERNAL, EngineError.code if fault is Fault.DEFECT else code
    lost = error.attempt if isinstance(error, BlockMissing) else None
    return TaskFailure(attempt, kind, code, plain_message(error), lost, isinstance(error, BlockDamaged))


# ---------------------------------------------------------------------------------------------- planning


def _plan(
    task: TaskSpec,
    inputs: Inputs,
    cores: int,
    memory: OperatorMemory | None,
    resources: ExitStack,
    scans: Scans,
    errors: list[Exception],
) -> Running:
    output = task.output
    hashed = output is not None and output.partitioning is Partitioning.HASH
    # A hash-partitioned plan has one stream per output partition; other plans have one per core.
    width = output.partitions if output is not None and hashed else cores
    # Only plans with joins gain from collecting small build sides; a hashed one is then planned twice.
    joins = any(isinstance(node, Join) for node in walk(task.plan))
    planning = (hashing_context if hashed and not joins else planning_context)(width, memory)
    running = running_context(width, memory)

    if isinstance(task.plan, WriteFiles):
        rows = lower(task.plan.child, planning, inputs, resources, cores)
        return Fragment(running, lower_write(rows, task.plan), errors)
    if output is None and (node := find_filtered_scan(task.plan)) is not None:
        return MicroBatches(task.plan, node, scans, cores, memory, errors)
    frame = lower(task.plan, planning, inputs, resources, cores)
    if output is None:
        return Fragment(running, _executable(select_result(frame, task.plan), task), errors)
    if not hashed:
        return Fragment(running, _executable(frame, task), errors)
    plan = partitioned_plan(frame, hashing_context(width, memory), output.keys, output.partitions)
    return Fragment(running, plan, errors)


@dataclass(frozen=True)
class _Inputs:
    """Where the rows of a task come from: other stages, feeds and Python functions."""

    task: TaskSpec
    store: Readable
    fetched: FetchMeter
    cores: int
    errors: list[Exception]
    scans: Scans
    python: PythonStreams
    partitions: PartitionStreams
    resources: ExitStack

    def __call__(self, node: Streamed) -> StreamTable:
        match node:
            case FeedInput():
                return self.scans.table(node)
            case StageInput():
                store = self.fetched.measure(self.store, node.stage)
                return _input_table(self.task.inputs, store, self.cores, self.errors, node)
            case PartitionedRows():
                return self.partitions.table(node)
            case _:
                return self.python.table(node, self, self.resources)


def _executable(frame: DataFrame, task: TaskSpec) -> ExecutionPlan:
    plan = frame.execution_plan()
    if task.ordered and plan.partition_count != 1:
        raise QueryError(
            f"{task.attempt}: ordered rows came in {plan.partition_count} streams instead of one."
        )
    return plan


def _input_table(
    inputs: tuple[InputBlocks, ...],
    store: Readable,
    cores: int,
    errors: list[Exception],
    node: StageInput,
) -> StreamTable:
    blocks = next(item.blocks for item in inputs if item.stage == node.stage)
    schema = arrow_schema(node.output)
    held = [block for block in blocks if block.rows]
    # Each sorted block stays a stream of its own; other blocks are read by one stream per core.
    width = len(held) if node.sorted_by else min(cores, len(held))
    streams = [partial(_read, store, held[i::width], schema, errors) for i in range(width)]
    bound = bound_of(sum(block.rows for block in held), sum(block.size_bytes for block in held))
    return StreamTable(schema, streams, bound)


def _read(
    store: Readable, blocks: list[Block], schema: pa.Schema, errors: list[Exception]
) -> Iterator[pa.RecordBatch]:
    try:
        for batch in store.read_many(blocks):
            # Match columns by position: a stage with several readers has only one set of names.
            yield _conform(batch, schema)
    except (VolleyError, OSError) as error:
        errors.append(error)
        raise


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Apply the planned schema. Types must match exactly; nullability, which DataFusion derives itself, need not."""
    try:
        return make_batch(batch.columns, schema, batch.num_rows)
    except pa.ArrowException as error:
        raise EngineError(f"rows do not have the planned types: {error}.") from error


def _first_columns(batch: pa.RecordBatch, width: int) -> pa.RecordBatch:
    return batch if batch.num_columns == width else batch.select(range(width))


@dataclass
class _Count:
    rows: int = 0
    size_bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self.size_bytes += batch.nbytes
