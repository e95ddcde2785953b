# SPDX-License-Identifier: Apache-2.0
"""The way to `ExpressionServer.java`: one server a JVM, and connections that threads take turns with."""

from __future__ import annotations

import shutil
import socket
import struct
import tempfile
from collections import deque
from importlib.resources import files
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JError

from volley.plan.jvm import Java
from volley.plan.reader import describe_error, instantiate
from volley.runtime import Phase, Shared

_REQUEST = struct.Struct(">iq")
_REPLY = struct.Struct(">iq")
_BUFFER_BYTES = 1 << 20


class EvaluationError(Exception):
    """What Spark's code raised for some row; the message is that of the Java exception."""


class ExpressionServer:
    """The server in one JVM, as this process sees it."""

    def __init__(self, gateway: Java) -> None:
        # Its owner alone may enter the directory, so nobody else can connect.
        self._directory = tempfile.mkdtemp(prefix="volley-jvm-")
        self._path = str(Path(self._directory) / "expressions")
        source = (files("volley.jvm") / "ExpressionServer.java").read_text("utf-8")
        self.java = instantiate(gateway, source, self._path)
        # Not thread-local: DataFusion's threads are new to Python at every call.
        self._idle: deque[_Connection] = deque()

    def evaluate(self, program: int, batch: pa.RecordBatch, result: pa.Schema) -> pa.RecordBatch:
        """The result for these arguments. EvaluationError if Spark's code raised, OSError if the JVM is gone."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = _Connection(self._path)
        try:
            status, payload = connection.ask(program, batch)
        except BaseException:
            connection.close()  # the reply to this request may still come
            raise
        self._idle.append(connection)
        if status:
            raise EvaluationError(payload.to_pybytes().decode(errors="replace"))
        return pa.ipc.read_record_batch(payload, result)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
        shutil.rmtree(self._directory, ignore_errors=True)


class _Connection:
    """One request at a time."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)

    def ask(self, program: int, batch: pa.RecordBatch) -> tuple[int, pa.Buffer]:
        message = memoryview(batch.serialize()).cast("B")
        header = _REQUEST.pack(program, len(message))
        sent = self._socket.sendmsg([header, message])
        if sent < len(header):
            self._socket.sendall(header[sent:])
            sent = len(header)
        self._socket.sendall(message[sent - len(header) :])
        head = bytearray(_REPLY.size)
        self._fill(memoryview(head))
        status, length = _REPLY.unpack(head)
        payload = pa.allocate_buffer(length)
        self._fill(memoryview(payload).cast("B"))
        return status, payload

    def _fill(self, view: memoryview) -> None:
        while view:
            count = self._socket.recv_into(view)
            if not count:
                raise ConnectionError("the JVM closed the connection")
            view = view[count:]

    def close(self) -> None:
        self._socket.close()


class ServerUnavailable(Exception):
    """This JVM cannot evaluate expressions; the message says why."""


def _start(gateway: Java) -> ExpressionServer | ServerUnavailable:
    try:
        return ExpressionServer(gateway)
    except (Py4JError, OSError) as error:
        # It would fail again, for every query.
        return ServerUnavailable(describe_error(error))


def _close(server: ExpressionServer | ServerUnavailable) -> None:
    if isinstance(server, ExpressionServer):
        server.close()


_servers: Shared[Java, ExpressionServer | ServerUnavailable] = Shared(Phase.CONNECTIONS, close=_close)


def expression_server(gateway: Java) -> ExpressionServer:
    """The server of this JVM. The first call compiles and starts it. Raises ServerUnavailable if that fails."""
    server = _servers.get(gateway, lambda: _start(gateway))
    if isinstance(server, ServerUnavailable):
        raise server
    return server
