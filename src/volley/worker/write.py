# SPDX-License-Identifier: Apache-2.0
"""An attempt that writes files, into its own directory. It removes the directory unless it succeeds.

Encoding is CPU work, so it runs on threads: one per stream of rows, with at most one batch in flight.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from volley.ids import AttemptId
from volley.plan.nodes import WriteFiles
from volley.process.loop import Work, run_blocking
from volley.stages.graph import result_schema
from volley.worker.file_writer import FileWriter, Written, manifest
from volley.worker.upload import Uploader

Give = Callable[[int, pa.RecordBatch], Awaitable[None]]


async def write_rows(
    node: WriteFiles, attempt: AttemptId, streams: int, run: Callable[[Give], Awaitable[None]]
) -> pa.RecordBatch | None:
    """Write the rows into files. Returns one row per file, or None if there were no rows.

    The staging directory must exist: a late attempt of a query that is over finds it gone, and fails.
    """
    keep: Callable[[Written], Written]
    if node.upload is not None:
        uploader = await run_blocking(Work.PLAN, Uploader, node, node.upload, attempt)
        directory = Path(tempfile.mkdtemp(prefix="volley-upload-"))
        keep, abort = uploader.upload, uploader.abort
    else:
        directory = Path(node.directory) / f"{attempt.task.stage.epoch}-{attempt.task.task}-{attempt.attempt}"
        directory.mkdir()
        keep, abort = _leave, _nothing
    count = 1 if node.files == 1 else max(1, streams)
    writers = [FileWriter(node, directory, stream, keep) for stream in range(count)]
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
            # The error that broke a writer may also prevent it from closing. Its directory is removed anyway.
            with suppress(OSError, pa.ArrowException):
                writer.abort()
        # Nobody waits: the end of the write aborts whatever is left.
        threads.submit(abort)
        shutil.rmtree(directory, ignore_errors=True)
        raise
    finally:
        threads.shutdown(wait=False)
    if node.upload is not None:
        shutil.rmtree(directory, ignore_errors=True)
    return manifest(written, result_schema(node.output)) if written else None


def _leave(written: Written) -> Written:
    return written


def _nothing() -> None:
    pass
