# SPDX-License-Identifier: Apache-2.0
"""Which rows of the result count. Only the client's thread uses these, in the order of the attempts' events.

PassedRows      every row counts as it comes; an attempt that has handed over rows cannot run again
HeldRows        no row counts before all have come; any attempt may run again
ResumedRows     every row counts as it comes; an attempt that runs again continues where the lost one stood
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Protocol

import pyarrow as pa

from volley.errors import EngineError, ResultInterrupted
from volley.ids import AttemptId, TaskId

MOST_RESUMED_ROWS = 4_000_000
"""A lost attempt that had handed over more rows than this is not continued: comparing them takes too much memory."""
MOST_KEPT_BYTES = 2**30
"""What the files of all unfinished tasks may take on the driver's disk."""
MOST_HELD_BYTES = 256 * 2**20
"""Rows of a continuing attempt that wait until it has given all rows of the lost one."""


class ResultRows(Protocol):
    """Each method returns the batches that count from now on, and raises what ends the query."""

    def add(self, attempt: AttemptId, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        """Rows of an attempt arrived."""

    def drop(self, attempt: AttemptId) -> None:
        """The attempt failed, or was cancelled."""

    def finish(self, attempt: AttemptId, rows: int) -> Sequence[pa.RecordBatch]:
        """The attempt ended well and has sent so many rows."""

    def commit(self, rows: Mapping[AttemptId, int]) -> Sequence[pa.RecordBatch]:
        """The result is complete: it consists of the rows of these attempts, so many of each, in this order."""

    def close(self) -> None:
        """The client wants no more rows. Idempotent."""


class PassedRows:
    """A `ResultRows` that keeps nothing."""

    def __init__(self) -> None:
        self._arrived: Counter[AttemptId] = Counter()

    def add(self, attempt: AttemptId, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        self._arrived[attempt] += batch.num_rows
        return (batch,)

    def drop(self, attempt: AttemptId) -> None:
        self._arrived.pop(attempt, None)

    def finish(self, attempt: AttemptId, rows: int) -> Sequence[pa.RecordBatch]:
        arrived = self._arrived.pop(attempt, 0)
        if arrived != rows:
            raise EngineError(f"{attempt}: {arrived} of its {rows} rows arrived.")
        return ()

    def commit(self, rows: Mapping[AttemptId, int]) -> Sequence[pa.RecordBatch]:
        return ()

    def close(self) -> None:
        pass


class HeldRows:
    """A `ResultRows` that keeps the rows of every attempt apart until the result is complete."""

    def __init__(self) -> None:
        self._held: dict[AttemptId, list[pa.RecordBatch]] = {}

    def add(self, attempt: AttemptId, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        self._held.setdefault(attempt, []).append(batch)
        return ()

    def drop(self, attempt: AttemptId) -> None:
        self._held.pop(attempt, None)

    def finish(self, attempt: AttemptId, rows: int) -> Sequence[pa.RecordBatch]:
        return ()

    def commit(self, rows: Mapping[AttemptId, int]) -> Sequence[pa.RecordBatch]:
        counted: list[pa.RecordBatch] = []
        for attempt, expected in rows.items():
            batches = self._held.pop(attempt, [])
            arrived = sum(batch.num_rows for batch in batches)
            if arrived != expected:
                raise EngineError(f"{attempt}: {arrived} of its {expected} rows arrived.")
            counted += batches
        self._held.clear()
        return counted

    def close(self) -> None:
        self._held.clear()


class ResumedRows:
    """A `ResultRows` that writes what a task has handed over to a file without a name, until the task is done.

    If the task runs again, the rows of the new attempt that are in this file are left out: each as often as it is
    there, wherever it comes, since the order may differ. The other rows wait until all of the file have come. So a
    task that gives different rows the second time ends the query, and no row is doubled.

    A file that grows too large or cannot be written is given up. The query goes on, unless the task runs again.
    """

    def __init__(self) -> None:
        self._tasks: dict[TaskId, _TaskRows] = {}

    def add(self, attempt: AttemptId, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        task = self._tasks.get(attempt.task)
        if task is None:
            task = self._tasks[attempt.task] = _TaskRows(attempt)
        counted = task.add(attempt, batch)
        if (kept := sum(task.kept_bytes for task in self._tasks.values())) > MOST_KEPT_BYTES:
            task.give_up(f"{kept} bytes are too many to keep")
        return counted

    def drop(self, attempt: AttemptId) -> None:
        # The file stays: its rows are with the client.
        pass

    def finish(self, attempt: AttemptId, rows: int) -> Sequence[pa.RecordBatch]:
        task = self._tasks.pop(attempt.task, None)
        arrived = task.finish(attempt) if task is not None else 0
        if arrived != rows:
            raise EngineError(f"{attempt}: {arrived} of its {rows} rows arrived.")
        return ()

    def commit(self, rows: Mapping[AttemptId, int]) -> Sequence[pa.RecordBatch]:
        return ()

    def close(self) -> None:
        for task in self._tasks.values():
            task.close()
        self._tasks.clear()


class _TaskRows:
    def __init__(self, attempt: AttemptId) -> None:
        self._attempt = attempt
        self._file = _RowFile()
        self._given_up: str | None = None
        self._arrived = 0
        # Rows that the client has and that this attempt has not given yet.
        self._expected: Counter[bytes] = Counter()
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0

    def add(self, attempt: AttemptId, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        if attempt != self._attempt:
            self._begin_again(attempt)
        self._arrived += batch.num_rows
        if not self._expected:
            return self._pass_on([batch])
        self._hold(self._leave_out(batch))
        if self._expected:
            return ()
        ready, self._held, self._held_bytes = self._held, [], 0
        return self._pass_on(ready)

    def finish(self, attempt: AttemptId) -> int:
        """The rows that arrived of the attempt, which has ended."""
        if attempt != self._attempt:
            self._begin_again(attempt)
        if self._expected:
            raise _interruption(
                attempt, f"{self._expected.total()} of its rows are not those of the lost attempt"
            )
        self.close()
        return self._arrived

    @property
    def kept_bytes(self) -> int:
        return self._file.bytes

    def give_up(self, why: str) -> None:
        """Keep nothing any more: no other attempt can continue."""
        self._given_up = why
        self._file.close()

    def close(self) -> None:
        self._file.close()

    def _begin_again(self, attempt: AttemptId) -> None:
        if self._given_up is not None:
            raise _interruption(attempt, self._given_up)
        self._attempt, self._arrived = attempt, 0
        self._held, self._held_bytes = [], 0
        try:
            kept = self._file.read()
            self._expected = Counter(digest for batch in kept for digest in _digests(batch, attempt))
        except OSError as error:
            raise _interruption(attempt, f"its rows cannot be read: {error}") from error

    def _leave_out(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that are not expected. Those that are no longer are."""
        is_new = []
        for digest in _digests(batch, self._attempt):
            left = self._expected.get(digest, 0)
            is_new.append(not left)
            if left > 1:
                self._expected[digest] = left - 1
            elif left:
                del self._expected[digest]
        if not batch.num_columns:
            return batch.slice(0, sum(is_new))
        return batch.filter(pa.array(is_new, pa.bool_()))

    def _hold(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._held.append(batch)
            self._held_bytes += batch.nbytes
        if self._expected and self._held_bytes > MOST_HELD_BYTES:
            raise _interruption(
                self._attempt, f"its rows come in another order, and {self._held_bytes} bytes wait"
            )

    def _pass_on(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        for batch in batches:
            self._keep(batch)
        return batches

    def _keep(self, batch: pa.RecordBatch) -> None:
        if self._given_up is not None:
            return
        try:
            self._file.write(batch)
        except OSError as error:
            self.give_up(f"its rows could not be kept: {error}")
            return
        if self._file.rows > MOST_RESUMED_ROWS:
            self.give_up(f"{self._file.rows} rows are too many to find the others among")


class _RowFile:
    """Batches in an unnamed file, which disappears with this process."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self._file = tempfile.TemporaryFile(prefix="volley-result-")  # noqa: SIM115
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), batch.schema, options=options)
        self._writer.write_batch(batch)
        assert self._file is not None
        self.rows += batch.num_rows
        self.bytes = self._file.tell()

    def read(self) -> Iterator[pa.RecordBatch]:
        if self._file is None:
            return
        self._file.flush()
        end = self._file.tell()
        self._file.seek(0)
        # It has no end mark: more may be written.
        with pa.ipc.open_stream(pa.PythonFile(self._file, "r")) as reader:
            yield from reader
        self._file.seek(end)

    def close(self) -> None:
        self._writer, self.bytes = None, 0
        if self._file is not None:
            # Closing writes what is buffered, which nobody needs.
            with contextlib.suppress(OSError):
                self._file.close()


def _digests(batch: pa.RecordBatch, attempt: AttemptId) -> Iterator[bytes]:
    """A digest of every row. Equal rows have equal ones; a row is never taken for a different one."""
    if not batch.num_columns:
        return iter([b""] * batch.num_rows)
    try:
        columns = [_plain(column).to_pylist() for column in batch.columns]
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise _interruption(attempt, f"rows of its types cannot be compared: {error}") from error
    return (
        hashlib.blake2b(pickle.dumps(row, 5), digest_size=16).digest() for row in zip(*columns, strict=True)
    )


def _plain(column: pa.Array) -> pa.Array:
    """Python's times have a smaller range than Arrow's."""
    if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        return column.cast(pa.int64())
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    return column


def _interruption(attempt: AttemptId, why: str) -> ResultInterrupted:
    return ResultInterrupted(
        f"{attempt} cannot continue where a lost worker stood: {why}.", hint="Run the query again."
    )
