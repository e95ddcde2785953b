# SPDX-License-Identifier: Apache-2.0
"""Stages at the borders of the native side: outputs that others read, and outputs that others have made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace

import pyarrow as pa
import pytest

from volley.cancellation import CancellationToken
from volley.config import Config
from volley.coordinator.materialized_result import MaterializedResult
from volley.coordinator.options import RunOptions
from volley.coordinator.run import execute, materialize
from volley.errors import BlockMissing, DataError, DeadlineExceeded, QueryCancelled
from volley.events import EventLog, QueryFinished, StageFinished, TaskFailed, TaskMetrics
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.lower.scope import arrow_schema
from volley.plan.expressions import Attribute, Call, Literal
from volley.plan.nodes import (
    Aggregate,
    BuildSide,
    DataFile,
    Exchange,
    FileScan,
    Filter,
    Join,
    JoinKind,
    MaterializedInput,
    Node,
    Partitioning,
    Range,
    Union,
)
from volley.plan.types import BOOLEAN, LONG
from volley.rpc.control import Push
from volley.rpc.messages import TaskDone, TaskSpec, WorkerInfo
from volley.shuffle.base import ShuffleStore
from volley.shuffle.factory import serving_store
from volley.shuffle.location import Location
from volley.shuffle.memory import MemoryStore
from volley.stages.cut import make_stages, partition_result
from volley.testing.limits import UNMERGED
from volley.transport.base import RunningTask
from volley.transport.local import LocalTransport
from volley.worker.ingest import receive

NUMBER = Attribute(1, "n", LONG, False)
WORKERS = 3
HANDED = QueryId("handed")


def numbers(count: int) -> Node:
    return Range(0, count, 1, (NUMBER,))


# ----------------------------------------------------------------------------------------- outputs that others read


class Kept:
    def __init__(
        self, plan: Node, transport: LocalTransport | None = None, timeout_seconds: float = 60
    ) -> None:
        self.transport = transport or LocalTransport(WORKERS, 3, MemoryStore)
        self.token, self.log = CancellationToken(), EventLog()
        self.output: MaterializedResult = materialize(
            partition_result(make_stages(plan, WORKERS, UNMERGED), readers=4),
            self.transport,
            RunOptions(
                query=QueryId.new(),
                token=self.token,
                timeout_seconds=timeout_seconds,
                attempts=2,
                events=self.log,
                limits=UNMERGED,
            ),
        )

    def ending(self) -> str | None:
        (end,) = [event for event in self.log.events if isinstance(event, QueryFinished)]
        return end.code


def test_an_output_is_kept_until_it_is_closed() -> None:
    query = Kept(numbers(100_000))
    blocks = [block for task in query.output.manifest().blocks for block in task]
    assert len(blocks) == 8
    assert sum(block.rows > 0 for block in blocks) > 4
    rows = [value for block in blocks for batch in query.transport.fetch(block) for value in batch.column(0)]
    assert sorted(value.as_py() for value in rows) == list(range(100_000))
    assert query.transport.held_bytes > 0
    assert query.output.early_end() is None
    query.output.close()
    assert query.transport.held_bytes == 0
    assert query.ending() is None


def test_an_output_without_rows_is_kept_too() -> None:
    never = Filter(Call("LessThan", (NUMBER, Literal(0, LONG)), BOOLEAN), numbers(10))
    query = Kept(never)
    assert sum(block.rows for task in query.output.manifest().blocks for block in task) == 0
    query.output.close()


def test_what_is_dropped_is_not_kept() -> None:
    query = Kept(numbers(1000))
    query.output.manifest()
    del query.output
    deadline = time.monotonic() + 30
    while query.transport.held_bytes:
        assert time.monotonic() < deadline


def test_a_failure_is_raised_and_leaves_nothing() -> None:
    query = Kept(FileScan("parquet", (DataFile("/no such file", 1, 1),), (NUMBER,), (), ()))
    with pytest.raises(DataError, match="no such file"):
        query.output.manifest()
    assert query.transport.held_bytes == 0


def test_cancelling_ends_a_materialized_result() -> None:
    query = Kept(numbers(1000))
    query.output.manifest()
    stopped: list[bool] = []
    query.output.on_cancel(lambda: stopped.append(True))
    query.token.cancel("enough")
    query.output.close()
    assert stopped == [True]
    assert isinstance(query.output.early_end(), QueryCancelled)
    assert query.transport.held_bytes == 0


def test_its_deadline_counts_while_others_read() -> None:
    query = Kept(numbers(1000), timeout_seconds=0.5)
    query.output.manifest()
    deadline = time.monotonic() + 30
    while query.transport.held_bytes:
        assert time.monotonic() < deadline
    query.output.close()
    assert isinstance(query.output.early_end(), DeadlineExceeded)


class OneLeaves(LocalTransport):
    """The first worker that gets a task has gone when that is done, with all that it holds."""

    def __init__(self) -> None:
        super().__init__(WORKERS, 3, MemoryStore)
        self.gone = ""

    def workers(self) -> Sequence[WorkerInfo]:
        return [worker for worker in super().workers() if worker.name != self.gone]

    def holders(self) -> Set[str]:
        return super().holders() - {self.gone}

    async def start(self, worker: str, task: TaskSpec) -> RunningTask:
        running = await super().start(worker, task)
        if not self.gone:
            await running.done()
            self.gone = worker
        return running


def test_what_was_lost_on_the_way_is_computed_again() -> None:
    transport = OneLeaves()
    query = Kept(numbers(1000), transport)
    blocks = [block for task in query.output.manifest().blocks for block in task]
    assert transport.gone
    assert all(block.location != transport.gone for block in blocks)
    assert sum(block.rows for block in blocks) == 1000
    query.output.close()


# ------------------------------------------------------------------------------------- outputs that others have made


class StoresOfWorkers(LocalTransport):
    """Workers whose stores others write to."""

    def __init__(self, serving: ShuffleStore | None = None) -> None:
        self.stores: dict[str, ShuffleStore] = {}
        super().__init__(WORKERS, 3, self._new_store, serving=serving)
        if serving is not None:
            self.stores = dict.fromkeys(self.holders(), serving)

    def _new_store(self, location: str) -> ShuffleStore:
        self.stores[location] = MemoryStore(location)
        return self.stores[location]


def handed(transport: StoresOfWorkers, task: int, values: Sequence[int], worker: str = "local-0") -> TaskDone:
    """What a task of somebody else put into the store of a worker."""
    attempt = AttemptId(TaskId(StageId(HANDED, 0), task), 0)
    schema = arrow_schema((NUMBER,))
    batches = [pa.record_batch([pa.array([value], pa.int64())], schema=schema) for value in values]
    blocks = receive(Push("", attempt, WORKERS), batches, transport.stores[worker])
    size_bytes = sum(block.size_bytes for block in blocks)
    return TaskDone(attempt, blocks, TaskMetrics(len(values), size_bytes, 0.0), worker)


def not_negative(rows: Node) -> Node:
    return Filter(Call("GreaterThanOrEqual", (NUMBER, Literal(0, LONG)), BOOLEAN), rows)


def distinct(rows: Node) -> Node:
    return Aggregate((NUMBER,), (), (), (NUMBER,), Exchange(Partitioning.HASH, WORKERS, (NUMBER,), (), rows))


def joined(rows: Node) -> Node:
    """With a side that every task reads whole."""
    other = Attribute(2, "m", LONG, False)
    few = Range(0, 12, 1, (other,))
    return Join(JoinKind.SEMI, (NUMBER,), (other,), None, BuildSide.RIGHT, rows, few)


def joined_to(rows: Node) -> Node:
    """As the side that every task reads whole."""
    other = Attribute(2, "m", LONG, False)
    many = Range(0, 12, 1, (other,))
    return Join(JoinKind.SEMI, (other,), (NUMBER,), None, BuildSide.RIGHT, many, rows)


def run(
    transport: LocalTransport,
    given: Sequence[TaskDone],
    log: EventLog | None = None,
    plan_over: Callable[[Node], Node] = not_negative,
) -> list[int]:
    plan = plan_over(MaterializedInput(7, len(given), WORKERS, (NUMBER,)))
    stream = execute(
        make_stages(plan, WORKERS, UNMERGED),
        transport,
        RunOptions(
            query=QueryId.new(),
            token=CancellationToken(),
            timeout_seconds=60,
            attempts=3,
            events=log or EventLog(),
            limits=UNMERGED,
            materialized_inputs={7: given},
        ),
    )
    return sorted(value for batch in stream for value in batch.column(0).to_pylist())


def test_a_stage_that_has_run_elsewhere_is_read() -> None:
    transport, log = StoresOfWorkers(), EventLog()
    given = [handed(transport, 5, range(10)), handed(transport, 8, range(5, 20), "local-1")]
    # An attempt that nobody has reported: its rows are there, and in no answer.
    handed(transport, 9, [77])
    assert run(transport, given, log) == sorted([*range(10), *range(5, 20)])
    first = next(event for event in log.events if isinstance(event, StageFinished))
    assert (first.stage.stage, first.rows) == (0, 25)


def test_its_rows_are_exchanged_like_others() -> None:
    """They are dealt evenly where they wait: whoever needs them otherwise has to move them."""
    transport = StoresOfWorkers()
    given = [handed(transport, 5, range(10)), handed(transport, 8, range(5, 20), "local-1")]
    assert run(transport, given, plan_over=distinct) == list(range(20))
    assert run(transport, given, plan_over=joined) == sorted([*range(10), *range(5, 12)])
    assert run(transport, given, plan_over=joined_to) == list(range(12))
    assert run(transport, given, plan_over=lambda rows: Union((NUMBER,), (rows, numbers(3)))) == sorted(
        [*range(10), *range(5, 20), *range(3)]
    )


def test_batches_are_dealt_evenly() -> None:
    transport = StoresOfWorkers()
    assert [block.rows for block in handed(transport, 0, range(7)).blocks] == [3, 2, 2]
    assert [block.rows for block in handed(transport, 2, range(7)).blocks] == [2, 2, 3]


def test_nothing_was_handed_over() -> None:
    nobody = TaskDone(AttemptId(TaskId(StageId(HANDED, 0), 0), 0), (), TaskMetrics(0, 0, 0.0))
    assert run(LocalTransport(WORKERS, 3, MemoryStore), [nobody]) == []


def test_losing_a_materialized_input_ends_the_query() -> None:
    """It is known whose output is lost, and that nobody here can compute it again."""
    store = serving_store(Config.read({}), Location.here("here:0"))
    transport = StoresOfWorkers(serving=store)
    given = [handed(transport, task, range(10)) for task in (1, 2)]
    damaged = replace(given[1], blocks=tuple(replace(block, checksum=1) for block in given[1].blocks))
    for outputs in ([given[0], damaged], [replace(output, made_by="gone") for output in given]):
        log = EventLog()
        with pytest.raises(BlockMissing, match="rows of Spark or of a cached frame were lost"):
            run(transport, outputs, log)
        assert sum(isinstance(event, TaskFailed) for event in log.events) <= WORKERS
        store.release(HANDED)
    store.close()


def test_a_sender_that_breaks_off_leaves_nothing() -> None:
    store = MemoryStore("here")
    attempt = AttemptId(TaskId(StageId(HANDED, 0), 0), 0)

    def broken() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [1]})
        raise OSError("the line is dead")

    with pytest.raises(OSError, match="dead"):
        receive(Push("", attempt, 2), broken(), store)
    assert store.held_bytes == 0
