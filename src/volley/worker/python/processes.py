# SPDX-License-Identifier: Apache-2.0
"""Processes that run PySpark's worker: forked by PySpark's daemon, and kept for the next stream of rows.

    this process --starts--> pyspark.daemon --forks--> pyspark.worker      one socket to each worker
                                                                           (a port on loopback with Spark 4.0)
                    stdin: pids to kill; its end ends the daemon and its workers

A daemon serves all workers with the same environment. It ends with this process, however this process ends. Streams
that run at the same time have a worker each; of those that wait for another stream, one per core is kept for a minute.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO, cast

from volley.errors import PythonWorkerLost
from volley.plan.python_nodes import PythonProcess
from volley.process.machine import available_cores
from volley.process.runtime import Phase, Shared
from volley.spark_versions.registry import current

# The same as Spark's.
_IDLE_SECONDS = 60.0
_START_SECONDS = 60.0
_STOP_SECONDS = 5.0
_BUFFER_BYTES = 2**20
_LONGEST_PARENT = 40
_ACCEPTED = struct.pack(">i", 2) + b"ok"

Environment = tuple[str, str, bool, tuple[tuple[str, str], ...]]


class PythonWorker:
    """An idle process. `broadcasts` are the ids of the variables that it has loaded."""

    def __init__(self, daemon: _Daemon) -> None:
        self._daemon = daemon
        family = socket.AF_UNIX if isinstance(daemon.address, str) else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.connect(daemon.address)
            self.input = cast("BinaryIO", self._socket.makefile("rb", _BUFFER_BYTES))
            (self.pid,) = struct.unpack(">i", self.input.read(4))
            if family == socket.AF_INET:
                self._authenticate(daemon.secret)
        except (OSError, struct.error) as error:
            self._socket.close()
            raise PythonWorkerLost(f"a Python worker could not be started: {error}.") from error
        self.broadcasts: dict[int, str] = {}
        self.idle_since = 0.0

    def _authenticate(self, secret: str) -> None:
        """Authenticate: anyone on this machine can connect to a port."""
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(struct.pack(">i", len(secret)) + secret.encode())
        if self.input.read(6) != _ACCEPTED:
            raise OSError("it does not accept the secret of its daemon")

    def send(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise PythonWorkerLost("Python worker exited unexpectedly (crashed).") from error

    def kill(self) -> None:
        """Kill the process. If only its socket were closed, it would print an error."""
        self._daemon.kill(self.pid)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class PythonWorkers:
    """All Python workers that this process has started. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._daemons: dict[Environment, _Daemon] = {}
        self._idle: dict[Environment, list[PythonWorker]] = {}
        self._reaper: threading.Timer | None = None

    def take(self, process: PythonProcess) -> PythonWorker:
        """A worker for one stream of rows. The caller gives it back, or kills it."""
        environment = _environment(process)
        with self._lock:
            waiting = self._idle.get(environment)
            if waiting:
                return waiting.pop()
            daemon = self._daemons.get(environment)
            if daemon is None or not daemon.runs:
                daemon = self._daemons[environment] = _Daemon(environment)
        return PythonWorker(daemon)

    def give_back(self, process: PythonProcess, worker: PythonWorker) -> None:
        """Keep a worker that has finished its task for the next one."""
        with self._lock:
            kept = sum(map(len, self._idle.values()))
            if process.reused and kept < available_cores():
                worker.idle_since = time.monotonic()
                self._idle.setdefault(_environment(process), []).append(worker)
                self._schedule()
                return
        worker.kill()

    def close(self) -> None:
        with self._lock:
            daemons, idle = list(self._daemons.values()), dict(self._idle)
            self._daemons.clear()
            self._idle.clear()
            if self._reaper is not None:
                self._reaper.cancel()
        for daemon in daemons:
            daemon.close()
        # Their sockets were open until now, so that none of them could notice.
        idle.clear()

    def _schedule(self) -> None:
        if self._reaper is None:
            self._reaper = threading.Timer(_IDLE_SECONDS, self._reap)
            self._reaper.daemon = True
            self._reaper.start()

    def _reap(self) -> None:
        """End workers that have been idle for a while."""
        with self._lock:
            self._reaper = None
            expired = list(self._take_expired(time.monotonic() - _IDLE_SECONDS))
            if self._idle:
                self._schedule()
        for worker in expired:
            worker.kill()

    def _take_expired(self, before: float) -> Iterator[PythonWorker]:
        for environment, workers in list(self._idle.items()):
            yield from (worker for worker in workers if worker.idle_since <= before)
            kept = [worker for worker in workers if worker.idle_since > before]
            if kept:
                self._idle[environment] = kept
            else:
                del self._idle[environment]


class _Daemon:
    """PySpark's daemon, in a process group of its own."""

    def __init__(self, environment: Environment) -> None:
        _, executable, _, variables = environment
        self._executable = executable
        self._directory = tempfile.mkdtemp(prefix="volley-python-", dir=_socket_parent())
        self.secret = secrets.token_hex(32)
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [executable, "-c", _source("daemon_program"), "pyspark.worker", _loops()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_variables(dict(variables), self._directory, self.secret),
        )
        try:
            self.address = self._read_address()
        except Exception:
            self.close()
            raise
        # What functions print would otherwise fill the pipe.
        threading.Thread(target=self._pass_on, name="volley-python-output", daemon=True).start()

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def kill(self, pid: int) -> None:
        assert self._process.stdin is not None
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(struct.pack(">i", pid))
            self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        with self._lock, contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _read_address(self) -> str | tuple[str, int]:
        """The path of the socket on which the daemon listens, or where its port is."""
        assert self._process.stdout is not None
        stuck = threading.Timer(_START_SECONDS, self._process.kill)
        stuck.start()
        try:
            header = self._process.stdout.read(4)
            if len(header) < 4:
                raise PythonWorkerLost(f"PySpark's daemon in {self._executable} ended before it was ready.")
            (number,) = struct.unpack(">i", header)
            if not current().python_daemon_has_path:
                return "127.0.0.1", number
            return self._process.stdout.read(number).decode()
        finally:
            stuck.cancel()

    def _pass_on(self) -> None:
        """Print to standard error what the functions print, as Spark does."""
        assert self._process.stdout is not None
        while data := os.read(self._process.stdout.fileno(), 2**16):
            with contextlib.suppress(Exception):
                sys.stderr.write(data.decode(errors="replace"))
                sys.stderr.flush()


def _loops() -> str:
    return _source("row_functions") if current().calls_row_functions else ""


@cache
def _source(module: str) -> str:
    return (files("volley.worker.python") / f"{module}.py").read_text("utf-8")


def _socket_parent() -> str | None:
    """Where sockets may be: their paths must not exceed some hundred bytes."""
    return None if len(tempfile.gettempdir()) <= _LONGEST_PARENT else "/tmp"


def _environment(process: PythonProcess) -> Environment:
    variables = dict(process.variables)
    if process.reused:
        variables["SPARK_REUSE_WORKER"] = "1"
    if process.memory_mb is not None:
        variables["PYSPARK_EXECUTOR_MEMORY_MB"] = str(max(1, process.memory_mb // available_cores()))
    # Broadcast variables of another application may have the same ids.
    return process.application, process.executable, process.reused, tuple(sorted(variables.items()))


def _variables(own: dict[str, str], directory: str, secret: str) -> dict[str, str]:
    inherited = dict(os.environ)
    path = [*_pyspark_paths(), own.get("PYTHONPATH", ""), inherited.get("PYTHONPATH", "")]
    return (
        inherited
        | own
        | {
            "PYTHONPATH": os.pathsep.join(part for part in path if part),
            "PYTHON_UNIX_DOMAIN_ENABLED": "true",
            "PYTHON_WORKER_FACTORY_SOCK_DIR": directory,
            # For daemons that listen on a port.
            "PYTHON_WORKER_FACTORY_SECRET": secret,
            "SPARK_PREFER_IPV6": "false",
        }
    )


def _pyspark_paths() -> list[str]:
    """The archives with which Spark starts its own workers; where there are none, the package of this process."""
    # Imported here, because workers that run no Python functions need no PySpark.
    import pyspark

    package = Path(pyspark.__file__).parent
    found = sorted((package / "python" / "lib").glob("*.zip"))
    return [str(path) for path in found] or [str(package.parent)]


_workers: Shared[None, PythonWorkers] = Shared(Phase.CONNECTIONS, close=PythonWorkers.close)


def shared_python_workers() -> PythonWorkers:
    """The Python workers of this process."""
    return _workers.get(None, PythonWorkers)
