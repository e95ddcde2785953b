# SPDX-License-Identifier: Apache-2.0
"""Runs one stream of rows through one Python worker: one thread sends batches, another reads results.

The worker answers when it likes: it buffers its results, and an iterator may read far ahead. So neither thread may wait
for the other. What is buffered is bounded by the socket and by the queues at both ends.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Generator, Iterable, Iterator

import pyarrow as pa

from volley.errors import PythonWorkerLost
from volley.plan.python_nodes import PythonProgram
from volley.worker.python.processes import PythonWorker, PythonWorkers
from volley.worker.python.protocol import (
    ARROW_STREAM,
    END_OF_STREAM,
    TaskIdentity,
    init_message,
    raise_exception,
    read_end,
    read_exactly,
    read_integer,
)

Send = Callable[["Outgoing"], None]

_GATHERED_BYTES = 2**18
_END_OF_ARROW_STREAM = struct.pack("<II", 0xFFFFFFFF, 0)


class Outgoing:
    """What a sender writes: Arrow streams, blocks of bytes, and integers between them.

    Small writes are gathered: a worker that was woken for each of them would cost more than the functions.
    """

    def __init__(self, worker: PythonWorker) -> None:
        self._worker = worker
        self._gathered = bytearray()
        self._schema: tuple[pa.Schema, bytes] | None = None

    def integer(self, value: int) -> None:
        self._write(struct.pack(">i", value))

    def stream(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Write an Arrow IPC stream."""
        # Every group is a stream of its own.
        if self._schema is None or self._schema[0] is not schema:
            self._schema = schema, schema.serialize().to_pybytes()
        self._write(self._schema[1])
        for batch in batches:
            self._write(memoryview(batch.serialize()))
        self._write(_END_OF_ARROW_STREAM)

    def block(self, data: bytes) -> None:
        """Write bytes after their length."""
        self.integer(len(data))
        self._write(data)

    def flush(self) -> None:
        data, self._gathered = self._gathered, bytearray()
        self._worker.send(data)

    def _write(self, data: bytes | memoryview) -> None:
        if len(data) >= _GATHERED_BYTES:
            self.flush()
            self._worker.send(data)
            return
        self._gathered += data
        if len(self._gathered) >= _GATHERED_BYTES:
            self.flush()


class ProgramRun:
    """Runs a program once. Use `results` from one thread; `close` from any."""

    def __init__(self, workers: PythonWorkers, program: PythonProgram, task: TaskIdentity) -> None:
        self._workers = workers
        self._program = program
        self._task = task
        self._lock = threading.Lock()
        self._worker: PythonWorker | None = None
        self._closed = False
        self._sender: threading.Thread | None = None
        self._error: BaseException | None = None
        self.read_all = False
        """Whether the worker has read everything that was sent, when all results have come."""

    def wait_sent(self) -> None:
        """Wait for the sender, which fails if nobody reads what it sends."""
        if self._sender is not None:
            self._sender.join()

    def results(self, send: Send) -> Iterator[pa.RecordBatch | bytes]:
        """What the functions return, while another thread runs `send`: batches, or pickles if rows are sent so."""
        worker = self._take()
        reusable = False
        try:
            self._sender = threading.Thread(
                target=self._send, args=(worker, send), name="volley-python-send", daemon=True
            )
            self._sender.start()
            reusable = yield from self._read(worker)
            self.read_all = reusable
        except (PythonWorkerLost, pa.ArrowException, OSError) as error:
            # An error of the rows themselves explains why the worker got no more of them.
            if self._error is not None and not isinstance(self._error, PythonWorkerLost):
                raise self._error from error
            if isinstance(error, PythonWorkerLost):
                raise
            raise PythonWorkerLost(f"Python worker exited unexpectedly (crashed): {error}.") from error
        finally:
            self._return(worker, reusable)

    def close(self) -> None:
        """Kill the worker, if it has not ended yet."""
        with self._lock:
            self._closed = True
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()

    def _take(self) -> PythonWorker:
        worker = self._workers.take(self._program.process)
        with self._lock:
            if not self._closed:
                self._worker = worker
                return worker
        worker.kill()
        raise PythonWorkerLost("the stream was closed.")

    def _return(self, worker: PythonWorker, reusable: bool) -> None:
        with self._lock:
            mine = self._worker is worker
            self._worker = None
        if not mine:
            return
        if reusable and self._sender is not None:
            self._sender.join()
            self._workers.give_back(self._program.process, worker)
        else:
            worker.kill()

    def _send(self, worker: PythonWorker, send: Send) -> None:
        try:
            worker.send(init_message(self._program, self._task, self._broadcast_changes(worker)))
            out = Outgoing(worker)
            send(out)
            out.integer(END_OF_STREAM)
            out.flush()
        except BaseException as error:
            self._error = error
            # Wake the reader, which waits for an answer that will not come.
            worker.kill()

    def _broadcast_changes(self, worker: PythonWorker) -> list[tuple[int, str | None]]:
        wanted = dict(self._program.process.broadcasts)
        known, worker.broadcasts = worker.broadcasts, wanted
        forget = [(number, None) for number in known if number not in wanted]
        return [*forget, *((number, path) for number, path in wanted.items() if number not in known)]

    def _read(self, worker: PythonWorker) -> Generator[pa.RecordBatch | bytes, None, bool]:
        """What the worker returns, and in the end whether it has read everything."""
        mark = read_integer(worker.input)
        while mark >= 0:
            yield read_exactly(worker.input, mark)
            mark = read_integer(worker.input)
        if mark == ARROW_STREAM:
            with pa.ipc.open_stream(worker.input) as reader:
                yield from reader
            mark = read_integer(worker.input)
        raise_exception(worker.input, mark)
        return read_end(worker.input, mark)
