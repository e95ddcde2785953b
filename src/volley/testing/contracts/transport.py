# SPDX-License-Identifier: Apache-2.0
"""The contract of `Transport`, and the tasks that its suite runs."""

from __future__ import annotations

import asyncio
import pickle
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from volley.errors import BlockMissing
from volley.ids import AttemptId, QueryId
from volley.plan.expressions import Call, Literal
from volley.plan.nodes import (
    DataFile,
    FeedInput,
    FileScan,
    Filter,
    Node,
    Partitioning,
    Project,
    StageInput,
    Union,
)
from volley.plan.types import BOOLEAN, LONG
from volley.rpc.codec import decode, encode
from volley.rpc.control import Pushed
from volley.rpc.messages import (
    PROTOCOL_VERSION,
    Failure,
    InputBlocks,
    SplitBatch,
    TaskDone,
    TaskFailure,
    TaskSpec,
)
from volley.shuffle.base import Block
from volley.splits.files import FileSource
from volley.stages.graph import Output
from volley.testing.contracts.attempts import NUMBER, attempt_id, batch_of, in_a_query, numbers, query_id
from volley.testing.limits import DISTRIBUTED
from volley.transport.base import IngestEndpoint, ReportsProgress, RunningTask, Transport

Value = TypeVar("Value")


class TransportContract:
    """The contract of `Transport`. Subclasses provide `make_transport(workers)`.

    Every message passes through the codec, so that no transport can rely on anything else.
    """

    streams_results = True
    """Whether the rows of a result task arrive while it runs, rather than when it has ended."""

    def push(self, endpoint: IngestEndpoint, attempt: AttemptId, batches: Sequence[pa.RecordBatch]) -> Pushed:
        """Push rows in two partitions, as another process does. Overridden if only certain processes can."""
        sent: IngestEndpoint = pickle.loads(pickle.dumps(endpoint))
        return sent.push(attempt, 2, batches[0].schema, iter(batches))

    def run(
        self,
        make_transport: Callable[[int], Transport],
        story: Callable[[Transport], Coroutine[Any, Any, Value]],
        workers: int = 2,
    ) -> Value:
        async def told() -> Value:
            transport = make_transport(workers)
            try:
                return await asyncio.wait_for(story(transport), timeout=120)
            finally:
                await transport.release(query_id())

        with in_a_query():
            return asyncio.run(told())

    def test_workers_have_names_and_speak_the_protocol(
        self, make_transport: Callable[[int], Transport]
    ) -> None:
        async def story(transport: Transport) -> None:
            workers = transport.workers()
            assert len({worker.name for worker in workers}) == 2
            assert {worker.protocol_version for worker in workers} == {PROTOCOL_VERSION}

        self.run(make_transport, story)

    def test_whoever_runs_attempts_can_run_one_and_whoever_made_a_block_holds_it(
        self, make_transport: Callable[[int], Transport]
    ) -> None:
        async def story(transport: Transport) -> None:
            before = transport.workers()
            done = await commit_task(transport, stage_task(numbers(10), Output(Partitioning.SINGLE), 0))
            assert (done.made_by or before[0].name) in transport.holders()
            assert list(transport.workers()) == list(before)
            assert all(worker.cores > 0 and worker.slots > 0 for worker in before)

        self.run(make_transport, story)

    def test_a_task_without_a_reservation_fails_and_may_be_tried_elsewhere(
        self, make_transport: Callable[[int], Transport]
    ) -> None:
        async def story(transport: Transport) -> None:
            running = await transport.start(transport.workers()[0].name, result_task(numbers(1)))
            assert await _rows(running) == []
            assert [want async for want in running.split_requests()] == []
            failure = await running.done()
            assert isinstance(failure, TaskFailure)
            assert (failure.attempt, failure.failure) == (running.attempt, Failure.WORKER)
            await running.cancel()
            assert await transport.reserve(transport.workers()[1].name, failure.attempt)

        self.run(make_transport, story)

    def test_rows_that_somebody_else_computes_are_read_until_the_release(
        self, make_transport: Callable[[int], Transport]
    ) -> None:
        async def story(transport: Transport) -> None:
            endpoint = await transport.open_ingest(query_id())
            if endpoint is None:
                # The workers are in this process, so `hold` works.
                return
            batches = (batch_of(1, 2), batch_of(3))
            pushed = await asyncio.to_thread(self.push, endpoint, attempt_id(task=7), batches)
            assert (pushed.attempt, len(pushed.blocks)) == (attempt_id(task=7), 2)
            values = [value for block in pushed.blocks for value in _column(transport, block)]
            assert sorted(values) == [1, 2, 3]
            assert pushed.holder in transport.holders()
            reader = TaskSpec(
                attempt_id(stage=1),
                StageInput(0, (NUMBER,)),
                None,
                False,
                (InputBlocks(0, pushed.blocks),),
            )
            assert sorted(await _rows(await start_task(transport, reader, worker=1))) == [1, 2, 3]
            await transport.release(query_id())
            for block in pushed.blocks:
                with pytest.raises(BlockMissing):
                    _column(transport, block)

        self.run(make_transport, story)

    def test_a_full_worker_refuses_and_has_room_again(
        self, make_transport: Callable[[int], Transport]
    ) -> None:
        async def story(transport: Transport) -> None:
            worker = transport.workers()[0]
            tasks = [result_task(numbers(1), number) for number in range(worker.slots + 1)]
            for task in tasks[:-1]:
                assert await transport.reserve(worker.name, task.attempt)
            assert not await transport.reserve(worker.name, tasks[-1].attempt)
            running = await transport.start(worker.name, tasks[0])
            await _rows(running)
            await running.done()
            assert await transport.reserve(worker.name, tasks[-1].attempt)

        self.run(make_transport, story)

    def test_a_result_task_gives_its_rows(self, make_transport: Callable[[int], Transport]) -> None:
        async def story(transport: Transport) -> None:
            running = await start_task(transport, result_task(numbers(100_000)))
            rows = await _rows(running)
            done = await running.done()
            assert isinstance(done, TaskDone)
            assert sorted(rows) == list(range(100_000))
            assert (done.rows, done.blocks) == (100_000, ())
            assert any(
                name == "output_rows" for operator in done.metrics.operators for name, _ in operator.values
            )

        self.run(make_transport, story)

    def test_rows_without_columns_keep_their_number(self, make_transport: Callable[[int], Transport]) -> None:
        async def story(transport: Transport) -> None:
            output = Output(Partitioning.ROUND_ROBIN, 2)
            done = await commit_task(transport, stage_task(Project((), numbers(100_000)), output, 0))
            assert done.rows == 100_000
            plan = StageInput(0, ())
            reader = TaskSpec(attempt_id(stage=1), plan, None, False, (InputBlocks(0, done.blocks),))
            running = await start_task(transport, reader, worker=1)
            assert sum([batch.num_rows async for batch in running.batches()]) == 100_000

        self.run(make_transport, story)

    def test_partitions_together_hold_every_row_once(
        self, make_transport: Callable[[int], Transport]
    ) -> None:
        async def story(transport: Transport) -> None:
            output = Output(Partitioning.HASH, 4, (NUMBER,))
            first = await commit_task(transport, stage_task(numbers(1000), output, 0))
            second = await commit_task(transport, stage_task(numbers(1000), output, 1), worker=1)
            ours, theirs = ([_column(transport, block) for block in done.blocks] for done in (first, second))
            assert sorted(value for values in ours for value in values) == list(range(1000))
            # The same key goes to the same partition, whichever task partitions it.
            assert [set(values) for values in ours] == [set(values) for values in theirs]
            assert all(0 < len(values) < 1000 for values in ours)

        self.run(make_transport, story)

    def test_a_task_reads_what_another_worker_wrote(self, make_transport: Callable[[int], Transport]) -> None:
        async def story(transport: Transport) -> None:
            done = await commit_task(transport, stage_task(numbers(10), Output(Partitioning.SINGLE), 0))
            reader = TaskSpec(
                attempt_id(stage=1),
                StageInput(0, (NUMBER,)),
                None,
                False,
                (InputBlocks(0, done.blocks),),
            )
            running = await start_task(transport, reader, worker=1)
            assert sorted(await _rows(running)) == list(range(10))

        self.run(make_transport, story)

    def test_bad_data_is_a_failure_that_another_attempt_cannot_mend(
        self, make_transport: Callable[[int], Transport]
    ) -> None:
        async def story(transport: Transport) -> None:
            scan = FileScan("parquet", (DataFile("/nowhere/at/all.parquet", 1, 1),), (NUMBER,), (), ())
            task = replace(result_task(scan), attempt=attempt_id())
            running = await start_task(transport, task)
            assert await _rows(running) == []
            failure = await running.done()
            assert isinstance(failure, TaskFailure)
            assert failure.attempt.task == attempt_id().task
            assert failure.failure is Failure.DATA
            assert "/nowhere/at/all.parquet" in failure.message

        self.run(make_transport, story)

    def test_a_missing_input_is_a_failure_and_not_an_empty_input(
        self, make_transport: Callable[[int], Transport]
    ) -> None:
        async def story(transport: Transport) -> None:
            done = await commit_task(transport, stage_task(numbers(10), Output(Partitioning.SINGLE), 0))
            await transport.release(query_id())
            # Without a key, like all ids of these tests.
            other = QueryId(QueryId.new().value)
            reader = TaskSpec(
                attempt_id(stage=1, query=other.value),
                StageInput(0, (NUMBER,)),
                None,
                False,
                (InputBlocks(0, done.blocks),),
            )
            running = await start_task(transport, reader)
            assert await _rows(running) == []
            assert isinstance(await running.done(), TaskFailure)
            await transport.release(other)

        self.run(make_transport, story)

    def test_a_task_reads_the_splits_that_it_is_given_while_it_runs(
        self, make_transport: Callable[[int], Transport]
    ) -> None:
        async def story(transport: Transport, splits: list[bytes], scan: FileScan) -> None:
            running = await start_task(transport, result_task(FeedInput(0, replace(scan, files=()))))
            rows = asyncio.ensure_future(_rows(running))
            place, asked = 0, 0
            async for want in running.split_requests():
                want = decode(encode(want))
                assert (want.attempt.task, want.feed, want.after) == (running.attempt.task, 0, place)
                assert want.credits > 0
                asked += 1
                given = tuple(splits[place : place + 1])
                await running.give(
                    SplitBatch(want.attempt, 0, place, given, place + 1, place + 1 >= len(splits))
                )
                place += 1
            assert sorted(await rows) == list(range(40))
            assert asked == len(splits) == 4
            assert isinstance(await running.done(), TaskDone)

        with number_files(4, 10) as scan:
            splits = [split.payload for split in FileSource(scan, 4, DISTRIBUTED).splits()]
            self.run(make_transport, lambda transport: story(transport, splits, scan))

    def test_a_task_that_tells_its_progress_does_so_while_it_runs(
        self, make_transport: Callable[[int], Transport]
    ) -> None:
        async def story(transport: Transport, splits: list[bytes], scan: FileScan) -> None:
            fed = FeedInput(0, replace(scan, files=()))
            kept = Filter(Call("GreaterThan", (NUMBER, Literal(5, LONG)), BOOLEAN), fed)
            running = await start_task(transport, result_task(kept))
            if isinstance(running, ReportsProgress):
                rows = asyncio.ensure_future(_rows(running))
                want = await anext(running.split_requests())
                # The second split never comes, so the task runs until it is cancelled.
                await running.give(SplitBatch(want.attempt, 0, 0, (splits[0],), 1, False))
                while (progress := running.progress()) is None or not progress.rows:
                    await asyncio.sleep(0.01)
                assert (progress.attempt, progress.rows) == (running.attempt, 10)
                await running.cancel()
                await rows
            else:
                await running.cancel()

        with number_files(2, 10) as scan:
            splits = [split.payload for split in FileSource(scan, 2, DISTRIBUTED).splits()]
            self.run(make_transport, lambda transport: story(transport, splits, scan))

    def test_a_task_that_waits_for_splits_can_be_cancelled(
        self, make_transport: Callable[[int], Transport]
    ) -> None:
        async def story(transport: Transport) -> None:
            running = await start_task(
                transport, result_task(FeedInput(0, FileScan("parquet", (), (NUMBER,), (), ())))
            )
            wants = running.split_requests()
            await anext(wants)
            await running.cancel()
            assert [want async for want in wants] == []
            failure = await running.done()
            assert isinstance(failure, TaskFailure)
            assert failure.failure is Failure.CANCELLED
            await running.give(SplitBatch(running.attempt, 0, 0, (), 0, True))

        self.run(make_transport, story)

    def test_a_result_that_nobody_takes_stops_its_task_until_it_is_cancelled(
        self, make_transport: Callable[[int], Transport]
    ) -> None:
        async def story(transport: Transport) -> None:
            running = await start_task(transport, result_task(numbers(10**15)))
            if self.streams_results:
                assert (await anext(running.batches())).num_rows
            await running.cancel()
            failure = await running.done()
            assert isinstance(failure, TaskFailure)
            assert failure.failure is Failure.CANCELLED

        self.run(make_transport, story)

    def test_a_task_can_be_cancelled_in_the_middle_of_an_operator(
        self, make_transport: Callable[[int], Transport]
    ) -> None:
        async def story(transport: Transport) -> None:
            # After one row it scans more rows than anybody can wait for, and returns none of them.
            none = Filter(Call("LessThan", (NUMBER, Literal(0, LONG)), BOOLEAN), numbers(10**15))
            running = await start_task(transport, result_task(Union((NUMBER,), (numbers(1), none))))
            if self.streams_results:
                assert (await anext(running.batches())).num_rows == 1
            await running.cancel()
            failure = await running.done()
            assert isinstance(failure, TaskFailure)
            assert failure.failure is Failure.CANCELLED

        self.run(make_transport, story)

    def test_an_attempt_runs_once(self, make_transport: Callable[[int], Transport]) -> None:
        async def story(transport: Transport) -> None:
            task = stage_task(numbers(1), Output(Partitioning.SINGLE), 0)
            await commit_task(transport, task)
            assert not await transport.reserve(transport.workers()[0].name, task.attempt)

        self.run(make_transport, story)

    def test_release_ends_and_frees_everything(self, make_transport: Callable[[int], Transport]) -> None:
        async def story(transport: Transport) -> None:
            done = await commit_task(transport, stage_task(numbers(10), Output(Partitioning.SINGLE), 0))
            running = await start_task(transport, result_task(numbers(10**15), 1), worker=1)
            await transport.release(query_id())
            assert isinstance(await running.done(), TaskFailure)
            with pytest.raises(BlockMissing):
                _column(transport, done.blocks[0])

        self.run(make_transport, story)


@contextmanager
def number_files(files: int, rows: int) -> Iterator[FileScan]:
    """A scan of `files` files with `rows` numbers each, counting from 0."""
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory) / f"{number}.parquet" for number in range(files)]
        for number, path in enumerate(paths):
            values = pa.array(range(number * rows, (number + 1) * rows), pa.int64())
            pq.write_table(pa.table({"n": values}), path)
        found = tuple(DataFile(str(path), path.stat().st_size, 0) for path in paths)
        yield FileScan("parquet", found, (NUMBER,), (), ())


def result_task(plan: Node, task: int = 0) -> TaskSpec:
    return TaskSpec(attempt_id(task, stage=9), plan, None, False, ())


def stage_task(plan: Node, output: Output, task: int) -> TaskSpec:
    return TaskSpec(attempt_id(task), plan, output, False, ())


async def start_task(transport: Transport, task: TaskSpec, worker: int = 0) -> RunningTask:
    name = transport.workers()[worker].name
    assert await transport.reserve(name, task.attempt)
    return await transport.start(name, decode(encode(task)))


async def commit_task(transport: Transport, task: TaskSpec, worker: int = 0) -> TaskDone:
    done: Awaitable[TaskDone | TaskFailure] = (await start_task(transport, task, worker)).done()
    outcome = decode(encode(await done))
    assert isinstance(outcome, TaskDone), outcome
    return outcome


async def _rows(running: RunningTask) -> list[int]:
    values: list[int] = []
    async for batch in running.batches():
        values += batch.column(0).to_pylist()
    return values


def _column(transport: Transport, block: Block) -> list[int]:
    return [value for batch in transport.fetch(block) for value in batch.column(0).to_pylist()]
