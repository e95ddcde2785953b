# SPDX-License-Identifier: Apache-2.0
"""Scans that are fed while they run: in this process, over real transports, with everything that a source may do."""

from __future__ import annotations

import pickle
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructType

from volley.cancellation import CancellationToken
from volley.coordinator.options import RunOptions
from volley.coordinator.result import ResultStream
from volley.coordinator.run import execute
from volley.errors import DataError, QueryError, SourceError, TaskError
from volley.events import Event, EventLog, FeedFinished, FeedStatus, SplitProgress, StageStarted, TaskStarted
from volley.formats.prune import comparisons, may_hold
from volley.ids import AttemptId, QueryId
from volley.plan.expressions import Attribute, Call, Literal
from volley.plan.local_registry import register
from volley.plan.nodes import (
    HERE,
    DataFile,
    Exchange,
    FileScan,
    Filter,
    Limit,
    Node,
    Partitioning,
    SourceScan,
    Union,
)
from volley.plan.types import BOOLEAN, DOUBLE, LONG, STRING
from volley.rpc.messages import SplitBatch, SplitRequest, TaskDone, TaskFailure, TaskSpec
from volley.shuffle.memory import MemoryStore
from volley.splits.files import Piece, encode
from volley.splits.planned_reader import PlannedReader
from volley.stages.cut import make_stages
from volley.stages.limits import PlannerLimits
from volley.testing.contracts import attempt_id
from volley.testing.limits import DISTRIBUTED
from volley.testing.sources import Numbers
from volley.transport.base import RunningTask
from volley.transport.local import LocalTransport
from volley.worker.split_queue import SplitQueue, Stopped

ID, SPLIT, PID = (Attribute(number, name, LONG) for number, name in ((1, "id"), (2, "split"), (3, "pid")))
WORKERS = 3


def numbers(**options: Any) -> SourceScan:
    source = Numbers({key: str(value) for key, value in options.items()})
    schema = StructType()
    for name in ("id", "split", "pid"):
        schema = schema.add(name, LongType())
    reader = f"{HERE}{register(pickle.dumps(source))}:{schema.json()}"
    return SourceScan("numbers", reader, ("id", "split", "pid"), (ID, SPLIT, PID))


def start(
    plan: Node,
    workers: int = WORKERS,
    timeout_seconds: float = 60,
    events: EventLog | None = None,
    transport: LocalTransport | None = None,
    limits: PlannerLimits = DISTRIBUTED,
) -> ResultStream:
    return execute(
        make_stages(plan, workers, limits),
        transport or LocalTransport(workers, 2, MemoryStore),
        RunOptions(
            query=QueryId.new(),
            token=CancellationToken(),
            timeout_seconds=timeout_seconds,
            attempts=3,
            events=events or EventLog(),
            limits=limits,
        ),
    )


class BrokenChannels(LocalTransport):
    """Tasks run, but nothing about splits gets through."""

    def __init__(self, breaks: str) -> None:
        super().__init__(WORKERS, 2, MemoryStore)
        self._breaks = breaks

    async def start(self, worker: str, task: TaskSpec) -> RunningTask:
        return BrokenChannel(await super().start(worker, task), self._breaks)


@dataclass
class BrokenChannel:
    inner: RunningTask
    breaks: str

    @property
    def attempt(self) -> AttemptId:
        return self.inner.attempt

    def batches(self) -> AsyncIterator[pa.RecordBatch]:
        return self.inner.batches()

    async def done(self) -> TaskDone | TaskFailure:
        return await self.inner.done()

    async def split_requests(self) -> AsyncIterator[SplitRequest]:
        async for request in self.inner.split_requests():
            if self.breaks == "requests":
                raise OSError("torn")
            yield replace(request, feed=99) if self.breaks == "wrong feed" else request

    async def give(self, splits: SplitBatch) -> None:
        raise OSError("torn")

    async def cancel(self) -> None:
        await self.inner.cancel()


def column(stream: ResultStream, place: int = 0) -> list[Any]:
    with stream:
        return [value for batch in stream for value in batch.column(place).to_pylist()]


def fed(stream: ResultStream) -> FeedStatus:
    (event,) = (event for event in stream.events if isinstance(event, FeedFinished))
    return event.status


def split_rows(plan: Node, piece: Piece) -> list[pa.RecordBatch]:
    return [batch for batch in PlannedReader(plan).read(encode(piece), (), ()) if batch.num_rows]


def hashed(child: Node) -> Node:
    return Exchange(Partitioning.HASH, WORKERS, (ID,), (), child)


class TestSources:
    @pytest.mark.parametrize("workers", [1, 3])
    def test_every_split_is_read_once(self, workers: int) -> None:
        stream = start(numbers(splits=200, rows=7), workers)
        assert sorted(column(stream)) == list(range(1400))
        event = fed(stream)
        assert (event.found, event.done, event.queued, event.running) == (200, 200, 0, 0)
        assert event.final
        assert sum(event.by_task) == 200

    def test_what_it_gives_can_be_exchanged(self) -> None:
        stream = start(hashed(numbers(splits=50, rows=10)))
        assert sorted(column(stream)) == list(range(500))

    def test_nothing_found_is_an_empty_relation(self) -> None:
        assert column(start(numbers(splits=0))) == []

    def test_a_task_is_added_when_there_is_work_for_it_and_not_before(self, tmp_path: Path) -> None:
        gate = tmp_path / "gate"
        started: list[TaskStarted] = []

        def listen(event: Event) -> None:
            if isinstance(event, TaskStarted):
                started.append(event)
                if len(started) == WORKERS:
                    gate.touch()

        # Readers wait, so splits pile up, so tasks are added; the last one that can be opens the gate.
        stream = start(numbers(splits=100, wait_for=gate), events=EventLog(listen))
        assert sorted(column(stream)) == list(range(1000))
        begun = next(event for event in stream.events if isinstance(event, StageStarted))
        assert (begun.tasks, begun.planned_tasks) == (1, WORKERS)

        few = start(numbers(splits=1))
        assert sorted(column(few)) == list(range(10))
        assert len([event for event in few.events if isinstance(event, TaskStarted)]) == 1

    def test_an_error_of_discovery_ends_the_query_at_once_with_its_cause(self, tmp_path: Path) -> None:
        # The readers wait for a file that never comes: only the error can end this.
        stream = start(numbers(splits=100, raise_after=50, wait_for=tmp_path / "never"))
        with pytest.raises(SourceError, match="failed after 50 splits") as info:
            column(stream)
        assert isinstance(info.value.__cause__, OSError)
        assert info.value.code == "DISCOVERY_FAILED"
        (tmp_path / "never").touch()

    @pytest.mark.parametrize("breaks", ["requests", "answers", "wrong feed"])
    def test_an_error_while_feeding_ends_the_query_at_once(self, breaks: str) -> None:
        # The task waits for splits that never come: only the error can end this before the deadline.
        with pytest.raises(TaskError, match="splits could not be served"):
            column(start(numbers(splits=100), transport=BrokenChannels(breaks)))

    def test_garbage_of_discovery_is_an_error(self) -> None:
        with pytest.raises(SourceError, match="object instead of an InputPartition"):
            column(start(numbers(garbage="object")))

    @pytest.mark.parametrize("workers", [1, 3])
    def test_an_endless_source_under_a_limit_finishes(self, workers: int, tmp_path: Path) -> None:
        stream = start(Limit(100, 0, True, numbers(splits="endless", calls=tmp_path)), workers)
        assert len(column(stream)) == 100
        assert (tmp_path / "closed").exists()

    def test_closing_the_result_stops_discovery(self, tmp_path: Path) -> None:
        stream = start(numbers(splits="endless", calls=tmp_path))
        assert next(stream).num_rows
        stream.close()
        assert (tmp_path / "closed").exists()

    def test_a_source_that_hangs_ends_with_the_deadline(self, tmp_path: Path) -> None:
        stream = start(numbers(splits=10, hang_after=5, calls=tmp_path), timeout_seconds=1)
        with pytest.raises(QueryError) as info:
            column(stream)
        assert info.value.code == "DEADLINE_EXCEEDED"
        assert (tmp_path / "closed").exists()

    def test_rows_of_the_first_split_arrive_before_the_second_is_found(self, tmp_path: Path) -> None:
        # Discovery hangs behind the first split; its rows are here all the same.
        stream = start(numbers(splits=10, hang_after=1))
        with stream:
            assert next(stream).column(0).to_pylist() == list(range(10))

    def test_rows_of_a_filter_arrive_before_the_second_split_is_found(self) -> None:
        condition = Call("LessThan", (ID, Literal(3, LONG)), BOOLEAN)
        with start(Filter(condition, numbers(splits=10, hang_after=1))) as stream:
            assert next(stream).column(0).to_pylist() == [0, 1, 2]

    def test_one_split_may_have_more_rows_than_a_queue_holds(self) -> None:
        stream = start(numbers(splits=1, rows=2_000_000))
        with stream:
            assert sum(batch.num_rows for batch in stream) == 2_000_000

    def test_a_source_that_hangs_does_not_hold_up_another(self) -> None:
        two = Union((ID, SPLIT, PID), (numbers(splits=5, hang_after=0), numbers(splits=7)))
        found: list[int] = []
        with start(two, workers=1) as stream:
            while len(found) < 70:
                found += next(stream).column(0).to_pylist()
        assert sorted(found) == list(range(70))

    def test_progress_of_splits_is_reported_while_they_are_read(self) -> None:
        told = threading.Event()

        def listen(event: Event) -> None:
            # Of two readers one has just begun its last split when it asks for more, the other the one before.
            if isinstance(event, SplitProgress) and event.splits.found == 5 and event.splits.done >= 3:
                assert event.splits.queued == 0
                assert event.splits.running + event.splits.done == 5
                told.set()

        with start(numbers(splits=10, hang_after=5), workers=1, events=EventLog(listen)):
            assert told.wait(120)

    @pytest.mark.slow
    def test_a_heavy_tail_is_spread_evenly_over_real_workers(self) -> None:
        stream = start(numbers(splits=1000, tail="yes", size_pause=0.002), workers=4)
        assert sorted(column(stream)) == list(range(10_000))
        loads = fed(stream).bytes_by_task
        assert len(loads) == 4
        assert max(loads) <= 1.2 * min(loads)


class TestIntake:
    """What a worker does with the answers to its wants."""

    def test_it_asks_when_it_has_given_out_the_last(self) -> None:
        asked: list[int] = []

        def ask(after: int, credits: int, read: int) -> None:
            asked.append(after)
            if after == 0:
                assert credits == 1
                # Another thread, as it would be: it comes in when this one waits.
                threading.Thread(target=split_queue.give, args=(splits(0, 9, b"a", b"b"),)).start()

        split_queue = SplitQueue(ask)
        assert split_queue.take() == b"a"
        assert asked == [0]
        assert split_queue.take() == b"b"
        assert asked == [0, 9]
        split_queue.give(splits(9, 12, b"c", over=True))
        assert (split_queue.take(), split_queue.take()) == (b"c", None)
        assert len(asked) == 2

    def test_an_answer_to_another_request_is_ignored(self) -> None:
        asked = threading.Event()
        split_queue = SplitQueue(lambda after, credits, read: asked.set())
        split_queue.give(splits(0, 3, b"never asked for"))
        taken: list[bytes | None] = []
        taker = threading.Thread(target=lambda: taken.extend([split_queue.take(), split_queue.take()]))
        taker.start()
        # A run before this one had come further, and its answer comes late.
        assert asked.wait(120)
        split_queue.give(splits(50, 60, b"late"))
        split_queue.give(splits(0, 3, b"right", over=True))
        taker.join(120)
        assert taken == [b"right", None]

    def test_an_error_wakes_who_waits(self) -> None:
        asked = threading.Event()
        split_queue = SplitQueue(lambda after, credits, read: asked.set())

        def fail() -> None:
            assert asked.wait(120)
            split_queue.fail(ConnectionError("silent"))

        threading.Thread(target=fail).start()
        with pytest.raises(ConnectionError, match="silent"):
            split_queue.take()

    def test_close_wakes_who_waits(self) -> None:
        split_queue = SplitQueue(lambda after, credits, read: None)
        threading.Timer(0.01, split_queue.close).start()
        with pytest.raises(Stopped):
            split_queue.take()


def splits(since: int, after: int, *payloads: bytes, over: bool = False) -> SplitBatch:
    return SplitBatch(attempt_id(), 0, since, payloads, after, over)


class TestFiles:
    def scan(
        self, directory: Path, tables: list[pa.Table], columns: tuple[Attribute, ...], **write: Any
    ) -> FileScan:
        files = []
        for number, table in enumerate(tables):
            path = directory / f"{number}.parquet"
            pq.write_table(table, path, **write)
            files.append(DataFile(str(path), path.stat().st_size, 0))
        return FileScan("parquet", tuple(files), columns, (), ())

    def test_one_large_file_is_read_by_all_workers(self, tmp_path: Path) -> None:
        table = pa.table({"id": pa.array(range(100_000), pa.int64())})
        scan = self.scan(tmp_path, [table], (ID,), row_group_size=1000, use_dictionary=False)
        stream = start(scan, limits=replace(DISTRIBUTED, min_split_bytes=20_000))
        assert sorted(column(stream)) == list(range(100_000))
        event = fed(stream)
        assert event.found >= 6 * WORKERS
        assert event.size_bytes == scan.files[0].size_bytes
        assert len([event for event in stream.events if isinstance(event, TaskStarted)]) == WORKERS

    def test_with_one_task_files_are_not_fed(self, tmp_path: Path) -> None:
        scan = self.scan(tmp_path, [pa.table({"id": pa.array([1, 2], pa.int64())})], (ID,))
        stream = start(scan)
        assert column(stream) == [1, 2]
        assert not [event for event in stream.events if isinstance(event, FeedFinished)]

    def test_a_broken_file_is_bad_data(self, tmp_path: Path) -> None:
        tables = [pa.table({"id": pa.array([number], pa.int64())}) for number in range(3)]
        scan = self.scan(tmp_path, tables, (ID,))
        Path(scan.files[1].path).write_bytes(b"x" * scan.files[1].size_bytes)
        with pytest.raises(DataError, match="cannot be read as Parquet"):
            column(start(scan))

    def test_values_of_the_path_missing_columns_and_no_columns(self, tmp_path: Path) -> None:
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table({"ID": pa.array(range(5), pa.int32())}), path)
        file = DataFile(str(path), path.stat().st_size, 0, ("x",))
        day, gone = Attribute(7, "day", STRING), Attribute(8, "gone", DOUBLE)
        (batch,) = split_rows(FileScan("parquet", (), (day, ID, gone), (day,), ()), Piece((file,)))
        assert batch.to_pydict() == {"c7": ["x"] * 5, f"c{ID.id}": [0, 1, 2, 3, 4], "c8": [None] * 5}
        assert batch.schema.types == [pa.string_view(), pa.int64(), pa.float64()]
        for columns, width in (((day,), 1), ((gone,), 1), ((), 0)):
            scan = FileScan("parquet", (), columns, (day,) if day in columns else (), ())
            (batch,) = split_rows(scan, Piece((file,)))
            assert (batch.num_rows, batch.num_columns) == (5, width)

    @pytest.mark.parametrize("parts", [1, 2, 3, 7, 40])
    def test_parts_of_a_file_have_each_row_once_in_whatever_process_they_are_read(
        self, tmp_path: Path, parts: int
    ) -> None:
        table = pa.table({"id": pa.array(range(1000), pa.int64())})
        scan = self.scan(tmp_path, [table], (ID,), row_group_size=60)
        odd = Filter(Call("GreaterThan", (ID, Literal(9, LONG)), BOOLEAN), replace(scan, files=()))
        by_part = [
            [
                value
                for batch in split_rows(odd, Piece(scan.files, part, parts))
                for value in batch[0].to_pylist()
            ]
            for part in range(parts)
        ]
        assert sorted(value for values in by_part for value in values) == list(range(10, 1000))
        # One that took the rows of the others would have left nothing for them.
        assert sum(1 for values in by_part if values) > min(parts, 17) / 2

    def test_floats_are_not_pruned(self, tmp_path: Path) -> None:
        value = Attribute(7, "value", DOUBLE)
        path = tmp_path / "f.parquet"
        pq.write_table(pa.table({"value": [1.0, float("nan")]}), path)
        group = pq.read_metadata(path).row_group(0)
        # NaN is Spark's largest number, and the statistics do not have it.
        above = Call("GreaterThan", (value, Literal(5.0, DOUBLE)), BOOLEAN)
        assert may_hold(group, "value", "GreaterThan", [5.0])
        assert list(comparisons([above])) == []
