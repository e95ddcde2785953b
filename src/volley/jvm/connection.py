# SPDX-License-Identifier: Apache-2.0
"""One connection to an `ExpressionServer.java`, in the driver's JVM or in one beside a worker."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

import pyarrow as pa

_REQUEST = struct.Struct(">iq")
_REPLY = struct.Struct(">iq")
_BUFFER_BYTES = 1 << 20
_LOOK_SECONDS = 0.5


class EvaluationError(Exception):
    """What Spark's code raised for some row; the message is that of the Java exception."""


class Abandoned(Exception):
    """The reply is no longer needed."""


class Connection:
    """One request at a time. `is_abandoned` is polled while waiting for a reply; if true, the wait ends."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)

    def evaluate(
        self,
        program: int,
        batch: pa.RecordBatch,
        result: pa.Schema,
        is_abandoned: Callable[[], bool] | None = None,
    ) -> pa.RecordBatch:
        """The result for these arguments. OSError if the JVM is gone; the connection is of no use after that."""
        return pa.ipc.read_record_batch(
            self.ask(program, memoryview(batch.serialize()), is_abandoned), result
        )

    def ask(
        self, program: int, content: memoryview, is_abandoned: Callable[[], bool] | None = None
    ) -> pa.Buffer:
        """The reply of the server to a request. EvaluationError if it has raised."""
        self._socket.settimeout(_LOOK_SECONDS if is_abandoned is not None else None)
        message = content.cast("B")
        header = memoryview(_REQUEST.pack(program, len(message)))
        for part in (header, message):
            self._transfer(part, self._socket.send, is_abandoned)
        head = bytearray(_REPLY.size)
        self._transfer(memoryview(head), self._receive, is_abandoned)
        status, length = _REPLY.unpack(head)
        payload = pa.allocate_buffer(length)
        self._transfer(memoryview(payload).cast("B"), self._receive, is_abandoned)
        if status:
            raise EvaluationError(payload.to_pybytes().decode(errors="replace"))
        return payload

    @property
    def has_ended(self) -> bool:
        """Whether the JVM has begun to reply to the request, or closed the connection."""
        self._socket.setblocking(False)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        self._socket.close()

    def _receive(self, view: memoryview) -> int:
        count = self._socket.recv_into(view)
        if not count:
            raise ConnectionError("the JVM closed the connection")
        return count

    def _transfer(
        self, view: memoryview, step: Callable[[memoryview], int], is_abandoned: Callable[[], bool] | None
    ) -> None:
        while view:
            try:
                view = view[step(view) :]
            except TimeoutError:
                if is_abandoned is not None and is_abandoned():
                    raise Abandoned from None
