# SPDX-License-Identifier: Apache-2.0
"""The JVM beside a worker, which evaluates programs that drivers have sent.

    this process --starts--> java ExpressionServer        when a batch first needs it, and again if it has ended;
                                                           at most two, for drivers with other locales or zones
                    stdin: its end ends the JVM            so it ends with this process, however that ends
                    a Unix socket                          programs are loaded once, then batches go through

Programs are code: only a daemon whose owner permits it makes a `WorkerJvms`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import selectors
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from volley.errors import DataError, JvmLost
from volley.jvm.connection import Abandoned, Connection, EvaluationError
from volley.jvm.java import SENT_PACKAGES, JavaInstallation
from volley.jvm.signature import Signature
from volley.process.runtime import Phase, Shared
from volley.spark_versions.java import java_source

_log = logging.getLogger(__name__)

_START_SECONDS = 120.0
_STOP_SECONDS = 5.0
_MOST_PROGRAMS = 256
_MOST_JVMS = 2
# About the time to start one, so that a JVM between two batches of a query is not replaced for another query.
_IDLE_SECONDS = 4.0
_WAIT_SECONDS = 60.0
_LOOK_SECONDS = 0.5
# A batch takes milliseconds. If code still runs this long after its query ended, its JVM is killed.
_PATIENCE_SECONDS = 10.0
_LEAST_MESSAGE_BYTES = 2**20
_LEAST_MEMORY_BYTES = 384 * 2**20
_MOST_MEMORY_BYTES = 4 * 2**30
_LONGEST_PARENT = 40
_OPENED = ("java.nio", "sun.nio.ch", "java.lang", "java.util", "java.lang.invoke", "java.net", "java.io")
_ENVIRONMENT = re.compile(
    r"-Duser\.language=\w* -Duser\.country=\w* -Dfile\.encoding=[\w.:+-]+ -Duser\.timezone=[\w/+:-]+"
)


@dataclass(frozen=True)
class JvmSettings:
    """`memory_bytes` is what a JVM may use for objects and batches. `threads` may evaluate at the same time."""

    java: JavaInstallation
    memory_bytes: int
    threads: int

    @property
    def options(self) -> list[str]:
        heap, batches = self.memory_bytes // 2, self.memory_bytes // 4
        return [
            f"-Xmx{heap}",
            f"-XX:MaxDirectMemorySize={batches}",
            f"-Dio.netty.maxDirectMemory={batches}",
            "-XX:+UseSerialGC",
            "-XX:ReservedCodeCacheSize=128m",
            "-XX:-UsePerfData",
            "-Dio.netty.tryReflectionSetAccessible=true",
            f"-Djdk.serialFilter={';'.join(f'{package}.**' for package in SENT_PACKAGES)};!*",
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in (*_OPENED, "sun.util.calendar")),
        ]

    @property
    def message_bytes(self) -> int:
        """A batch size such that the batches of all threads fit into the memory of the JVM."""
        return max(_LEAST_MESSAGE_BYTES, self.memory_bytes // 4 // (6 * self.threads))


def default_jvm_memory(worker_bytes: int) -> int:
    """The default memory of the JVM beside a worker: little for small workers, and never much."""
    return min(max(worker_bytes // 8, _LEAST_MEMORY_BYTES), _MOST_MEMORY_BYTES)


@dataclass(frozen=True)
class SerializedProgram:
    """A program of a query, as a plan has it.

    `environment` are options of the JVM that it needs, `versions` those of the driver's Spark and Java.
    """

    content: bytes
    versions: str
    environment: str
    query: str

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.content).digest()


class WorkerJvms:
    """The JVMs of this process: one for each environment, mostly one, never more than two. Thread-safe."""

    def __init__(self, settings: JvmSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # By their environments, in the order in which they were used last.
        self._places: dict[str, _Place] = {}
        self._calls: set[_CallInFlight] = set()
        self._rows: dict[str, int] = {}
        self._seconds: dict[str, float] = {}

    def evaluate(
        self, program: SerializedProgram, signature: Signature, columns: Sequence[pa.Array]
    ) -> pa.Array:
        """The results of a program for these columns.

        EvaluationError for what Spark's code raised, JvmLost if the JVM ended meanwhile, DataError if all JVMs stay in
        use by others, ArrowInvalid for text that is not UTF-8.
        """

        def ask(batch: pa.RecordBatch, result: pa.Schema) -> pa.RecordBatch:
            started = time.perf_counter()
            found = self._ask(program, batch, result)
            with self._lock:
                query = program.query
                self._rows[query] = self._rows.get(query, 0) + signature.count_rows(batch)
                self._seconds[query] = self._seconds.get(query, 0.0) + time.perf_counter() - started
            return found

        return signature.evaluate(columns, ask, self._settings.message_bytes)

    def take_counts(self, query: str) -> tuple[int, float]:
        """Rows evaluated for a query since the last time, and seconds that threads have waited for them."""
        with self._lock:
            return self._rows.pop(query, 0), self._seconds.pop(query, 0.0)

    def abandon(self, query: str) -> None:
        """Abandon the calls of this query."""
        self.take_counts(query)
        with self._lock:
            for call in self._calls:
                call.abandoned = call.abandoned or call.query == query
            self._changed.notify_all()

    def close(self) -> None:
        with self._lock:
            places, self._places = self._places, {}
        for place in places.values():
            place.close()

    def _ask(self, program: SerializedProgram, batch: pa.RecordBatch, result: pa.Schema) -> pa.RecordBatch:
        call = _CallInFlight(program.query)
        with self._lock:
            self._calls.add(call)
        try:
            with self._jvm(program.environment, call) as jvm:
                try:
                    return jvm.evaluate(program, batch, result, call)
                except OSError as error:
                    jvm.close()
                    raise JvmLost(f"the JVM beside the worker ended: {error}") from error
        except Abandoned:
            raise EvaluationError("the query has ended") from None
        finally:
            with self._lock:
                self._calls.discard(call)

    @contextlib.contextmanager
    def _jvm(self, environment: str, call: _CallInFlight) -> Iterator[_Jvm]:
        """The JVM with this environment. It is started if there is none, and stays while it is in use."""
        if not _ENVIRONMENT.fullmatch(environment):
            raise DataError("the program asks for JVM options that are not allowed.")
        place = self._enter(environment, call)
        try:
            yield place.jvm(self._settings, environment)
        finally:
            with self._lock:
                place.calls -= 1
                place.used_at = time.monotonic()
                self._changed.notify_all()

    def _enter(self, environment: str, call: _CallInFlight) -> _Place:
        deadline = time.monotonic() + _WAIT_SECONDS
        with self._lock:
            while (place := self._find_place(environment)) is None:
                if call.abandoned:
                    raise Abandoned
                if time.monotonic() > deadline:
                    raise DataError(
                        f"the {_MOST_JVMS} JVMs beside the worker were in use for {_WAIT_SECONDS:.0f} s by drivers "
                        "with another locale, charset or time zone."
                    )
                self._changed.wait(_LOOK_SECONDS)
            self._places[environment] = place
            place.calls += 1
            return place

    def _find_place(self, environment: str) -> _Place | None:
        """The JVM of this environment, a new one, or the least recently used idle one."""
        if environment in self._places:
            return self._places.pop(environment)
        if len(self._places) < _MOST_JVMS:
            return _Place()
        now = time.monotonic()
        for other, place in self._places.items():
            if not place.calls and now - place.used_at >= _IDLE_SECONDS:
                return self._places.pop(other)
        return None


class _Place:
    """Room for one JVM, and how many calls are in flight there."""

    def __init__(self) -> None:
        self.calls = 0
        self.used_at = 0.0
        self._turn = threading.Lock()
        self._jvm: _Jvm | None = None

    def jvm(self, settings: JvmSettings, environment: str) -> _Jvm:
        """The JVM with this environment, which every call in flight here has."""
        with self._turn:
            jvm = self._jvm
            if jvm is None or not jvm.runs or jvm.environment != environment:
                self.close()
                self._jvm = jvm = _Jvm(settings, environment)
            return jvm

    def close(self) -> None:
        if self._jvm is not None:
            self._jvm.close()


class _CallInFlight:
    def __init__(self, query: str) -> None:
        self.query = query
        self.abandoned = False


class _Jvm:
    """One process of Java. Its socket is in a directory that only its owner can enter."""

    def __init__(self, settings: JvmSettings, environment: str) -> None:
        self.environment = environment
        self._directory = tempfile.mkdtemp(prefix="volley-jvm-", dir=_socket_parent())
        self._path = str(Path(self._directory) / "expressions")
        self._lock = threading.Lock()
        self._idle: deque[Connection] = deque()
        # In the order in which they were used last.
        self._loaded: dict[bytes, _Loaded] = {}
        self._number = 0
        source = Path(self._directory) / "ExpressionServer.java"
        main = ["org.codehaus.janino.SimpleCompiler", str(source), "volley.ExpressionServer", self._path]
        command = [settings.java.executable, *settings.options, *environment.split()]
        try:
            source.write_text(java_source("volley.jvm", source.name, settings.java.spark), "utf-8")
            self._process = subprocess.Popen(
                [*command, "-cp", settings.java.class_path, *main],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # Ctrl-C is for the worker, which may need the JVM until it is drained.
                start_new_session=True,
            )
            self._wait_until_ready()
        except OSError as error:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise JvmLost(f"{settings.java.executable} cannot be started: {error}") from error
        except BaseException:
            self.close()
            raise
        _log.info("started a JVM for Spark's expressions, process %d", self._process.pid)

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def evaluate(
        self, program: SerializedProgram, batch: pa.RecordBatch, result: pa.Schema, call: _CallInFlight
    ) -> pa.RecordBatch:
        with self._connection(call) as connection, self._program(program, connection, call) as number:
            return connection.evaluate(number, batch, result, lambda: call.abandoned)

    def close(self) -> None:
        """End the process, whatever it does."""
        # Without the lock: a thread that waits for the JVM may have it.
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _wait_until_ready(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        said = b""
        deadline = time.monotonic() + _START_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                if not selector.select(left):
                    continue
                piece = os.read(stdout.fileno(), 2**16)
                *lines, said = (said + piece).split(b"\n")
                # Java's own warnings are written there too.
                for line in lines:
                    if line.strip() == b"ready":
                        stdout.close()
                        return
                    _log.warning("the JVM says: %s", line.decode(errors="replace"))
                if not piece:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(_STOP_SECONDS)
                    status = self._process.poll()
                    raise JvmLost(
                        f"the JVM beside the worker did not start: status {status}; its log says why"
                    )
        raise JvmLost(
            f"the JVM beside the worker was not ready after {_START_SECONDS:.0f} s; its log says why"
        )

    @contextlib.contextmanager
    def _connection(self, call: _CallInFlight) -> Iterator[Connection]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = Connection(self._path)
        try:
            yield connection
        except EvaluationError:
            self._idle.append(connection)
            raise
        except Abandoned:
            timer = threading.Timer(_PATIENCE_SECONDS, self._end_if_busy, [connection])
            timer.daemon = True
            timer.start()
            raise
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    @contextlib.contextmanager
    def _program(
        self, program: SerializedProgram, connection: Connection, call: _CallInFlight
    ) -> Iterator[int]:
        """The number of the program in this JVM. It is loaded if it is not, and stays while it is in use."""
        digest = program.digest
        with self._lock:
            loaded = self._loaded.pop(digest, None)
            if loaded is None:
                self._number += 1
                loaded = _Loaded(self._number)
                content = memoryview(struct.pack(">i", loaded.number) + program.content)
                connection.ask(0, content, lambda: call.abandoned)
                self._drop_oldest(connection)
            self._loaded[digest] = loaded
            loaded.users += 1
        try:
            yield loaded.number
        finally:
            with self._lock:
                loaded.users -= 1

    def _drop_oldest(self, connection: Connection) -> None:
        for digest in [found for found, loaded in self._loaded.items() if not loaded.users]:
            if len(self._loaded) < _MOST_PROGRAMS:
                return
            connection.ask(0, memoryview(struct.pack(">i", self._loaded.pop(digest).number)))

    def _end_if_busy(self, connection: Connection) -> None:
        """Kill JVMs whose code does not end: Java cannot stop a single thread."""
        busy = not connection.has_ended
        connection.close()
        if busy and self.runs:
            _log.warning("code of a query that has ended still runs in the JVM, which is ended")
            self._process.kill()


@dataclass
class _Loaded:
    number: int
    users: int = 0


def _socket_parent() -> str | None:
    """Where sockets may be: their paths must not exceed some hundred bytes."""
    return None if len(tempfile.gettempdir()) <= _LONGEST_PARENT else "/tmp"


_jvms: Shared[None, WorkerJvms] = Shared(Phase.CONNECTIONS, close=WorkerJvms.close)


def permit_programs(settings: JvmSettings) -> None:
    """Let this process evaluate programs. No JVM is started yet."""
    _jvms.get(None, lambda: WorkerJvms(settings))


def shared_jvms() -> WorkerJvms:
    """The JVMs of this process. DataError if it may not evaluate programs."""

    def refuse() -> WorkerJvms:
        raise DataError("this worker evaluates no expressions in a JVM.")

    return _jvms.get(None, refuse)


def end_jvms() -> None:
    _jvms.close()
