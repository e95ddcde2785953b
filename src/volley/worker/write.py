# SPDX-License-Identifier: Apache-2.0
"""An attempt that writes files: into a directory of its own, which it removes again unless it succeeds.

Encoding computes, so it happens on threads; each stream of rows has one, and at most one batch waits there.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from volley.ids import AttemptId
from volley.loop import run_blocking
from volley.plan.nodes import WriteFiles
from volley.stages.graph import result_schema
from volley.worker.files import FileWriter, Written, manifest

Give = Callable[[int, pa.RecordBatch], Awaitable[None]]


async def write_rows(
    node: WriteFiles, attempt: AttemptId, streams: int, run: Callable[[Give], Awaitable[None]]
) -> pa.RecordBatch | None:
    """Run the rows into files; one row for each file that holds any, None when there is none.

    The staging directory must be there: an attempt that comes after its query is over finds it gone, and fails.
    """
    directory = Path(node.directory) / f"{attempt.task.stage.epoch}-{attempt.task.task}-{attempt.attempt}"
    directory.mkdir()
    writers = [FileWriter(node, directory, stream) for stream in range(1 if node.single else max(1, streams))]
    locks = [threading.Lock() for _ in writers]
    threads = ThreadPoolExecutor(len(writers), thread_name_prefix="volley-write")

    def write(stream: int, batch: pa.RecordBatch) -> None:
        with locks[stream]:
            writers[stream].write(batch)

    def close() -> list[Written]:
        return [file for writer in writers for file in writer.close()]

    async def give(stream: int, batch: pa.RecordBatch) -> None:
        await run_blocking(threads, write, stream % len(writers), batch)

    try:
        await run(give)
        written: list[Written] = await run_blocking(threads, close)
    except BaseException:
        for writer in writers:
            # What broke the writer may keep it from closing, too; its directory goes in any case.
            with suppress(OSError, pa.ArrowException):
                writer.abort()
        shutil.rmtree(directory, ignore_errors=True)
        raise
    finally:
        threads.shutdown(wait=False)
    return manifest(written, result_schema(node.output)) if written else None
