# SPDX-License-Identifier: Apache-2.0
"""Fed scans that wait for rows must leave DataFusion a thread to open the files that the rows are in."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from volley.worker.engine_threads import THREADS, EngineThreads

PROGRAM = """
import sys, tempfile
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from volley.cancellation import CancellationToken
from volley.coordinator.options import RunOptions
from volley.coordinator.run import execute
from volley.events import EventLog, FeedFinished
from volley.ids import QueryId
from volley.plan.expressions import AggregateCall, AggregateMode, Attribute, Call, Literal
from volley.plan.nodes import Aggregate, DataFile, FileScan, Union
from volley.plan.types import LONG
from volley.shuffle.memory import MemoryStore
from volley.stages.cut import make_stages
from volley.testing.limits import DISTRIBUTED
from volley.transport.local import LocalTransport

with tempfile.TemporaryDirectory() as directory:
    files = []
    for number in range(7):
        path = Path(directory) / f"{number}.parquet"
        pq.write_table(pa.table({"id": pa.array(range(number, 20000 * (number + 1), 7), pa.int64())}), path)
        files.append(DataFile(str(path), path.stat().st_size, 0))
    column, count = Attribute(1, "id", LONG), Attribute(9, "count", LONG)
    scan = FileScan("parquet", tuple(files), (column,), (), ())
    other = FileScan("parquet", tuple(files), (Attribute(2, "id", LONG),), (), ())
    call = AggregateCall(Call("Count", (Literal(1, LONG),), LONG), AggregateMode.PARTIAL, False, None, count.id)
    plan = Aggregate((), (call,), (count,), (count,), Union((column,), (scan, other)))
    options = RunOptions(
        query=QueryId.new(),
        token=CancellationToken(),
        timeout_seconds=50,
        attempts=1,
        events=EventLog(),
        limits=DISTRIBUTED,
    )
    with execute(make_stages(plan, 3, DISTRIBUTED), LocalTransport(3, 2, MemoryStore), options) as stream:
        rows = [value for batch in stream for value in batch.column(0).to_pylist()]
    assert any(isinstance(event, FeedFinished) for event in options.events.events)
    print(sum(rows))
"""


def test_scans_that_wait_leave_threads_to_open_files() -> None:
    """In its own process, because DataFusion's threads start once: twelve streams of three tasks on four threads."""
    program = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, THREADS: "4"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    expected = 2 * sum(len(range(n, 20000 * (n + 1), 7)) for n in range(7))
    assert program.stdout.strip() == str(expected), program.stderr


def test_scans_beyond_the_limit_wait_for_those_that_run() -> None:
    async def check() -> None:
        threads = EngineThreads(8)
        await asyncio.wait_for(threads.admit(5), 5)
        waiting = asyncio.create_task(threads.admit(1))
        await asyncio.wait_for(threads.admit(0), 5)
        assert not waiting.done()
        threads.leave(5)
        await asyncio.wait_for(waiting, 5)

    asyncio.run(check())


def test_only_the_first_stream_of_a_scan_exceeds_the_limit() -> None:
    threads = EngineThreads(4)
    assert [threads.try_hold() for _ in range(3)] == [True, True, False]
    threads.hold()
    threads.release()
    threads.release()
    assert threads.try_hold()
