# SPDX-License-Identifier: Apache-2.0
"""Connects to the driver's `ExpressionServer.java`: one server per JVM, and a pool of connections."""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JError

from volley.jvm.connection import Connection, EvaluationError
from volley.plan.jvm import Java
from volley.plan.reader import describe_error, instantiate
from volley.process.runtime import Phase, Shared
from volley.spark_versions.java import java_source


class ExpressionServer:
    """The server in one JVM, as this process sees it."""

    def __init__(self, gateway: Java) -> None:
        # Its owner alone may enter the directory, so nobody else can connect.
        self._directory = tempfile.mkdtemp(prefix="volley-jvm-")
        self._path = str(Path(self._directory) / "expressions")
        source = java_source("volley.jvm", "ExpressionServer.java")
        self.java = instantiate(gateway, source, self._path)
        # Not thread-local: DataFusion's threads are new to Python at every call.
        self._idle: deque[Connection] = deque()

    def evaluate(self, program: int, batch: pa.RecordBatch, result: pa.Schema) -> pa.RecordBatch:
        """The result for these arguments. EvaluationError if Spark's code raised, OSError if the JVM is gone."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = Connection(self._path)
        try:
            found = connection.evaluate(program, batch, result)
        except EvaluationError:
            self._idle.append(connection)
            raise
        except BaseException:
            connection.close()  # the reply to this request may still come
            raise
        self._idle.append(connection)
        return found

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
        shutil.rmtree(self._directory, ignore_errors=True)


class ServerUnavailable(Exception):
    """This JVM cannot evaluate expressions; the message says why."""


def _start(gateway: Java) -> ExpressionServer | ServerUnavailable:
    try:
        return ExpressionServer(gateway)
    except (Py4JError, OSError) as error:
        # Not retried: it would fail again, for every query.
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
