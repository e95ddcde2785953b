# SPDX-License-Identifier: Apache-2.0
"""Finds or starts the sidecar of a Spark executor, from a Python worker of that executor.

    executor JVM
      +-- pyspark.daemon
      |     +-- Python workers, short-lived     find or start the sidecar
      +. . . . . sidecar                        a worker daemon that ends when the JVM does, or the application

A directory named after the JVM and the session's settings holds a lock, the sidecar's address and its log. The first
task takes the lock and starts the sidecar; the token and the settings are passed through a pipe.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from volley.errors import QueryError
from volley.process.allocator import little_memory
from volley.process.machine import available_memory_bytes
from volley.shuffle.location import started_ticks

_START_SECONDS = 60.0
_POLL_SECONDS = 0.02
_ADDRESS = "address"
_LOG = "log"


@dataclass(frozen=True)
class SidecarSettings:
    """The driver's settings for the sidecars of all its executors. Plain values, sent as JSON.

    `memory_bytes` 0 means a quarter of the machine's memory, for a local master, whose executor has no size of its own.
    `files` are the paths of the TLS files: CA, certificate, key.
    """

    token: str = field(repr=False)
    files: tuple[str, str, str]
    insecure: bool
    memory_bytes: int
    cores_a_task: int
    options: dict[str, str]


@dataclass(frozen=True)
class Executor:
    """The executor JVM of a Python worker, as its command line describes it.

    On a local master the JVM is that of the driver, which outlives the application. Spark then ends the process that
    starts its Python workers, `python_daemon`. It is 0 otherwise.
    """

    pid: int
    started: int
    host: str
    cores: int
    python_daemon: int = 0

    @classmethod
    def find(cls, local_cores: int) -> Executor:
        """The JVM among the ancestors of this process. `local_cores` is used if it names no cores (a local master)."""
        parent = pid = os.getppid()
        while pid > 1:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if Path(os.fsdecode(words[0])).name == "java":
                arguments = [os.fsdecode(word) for word in words]
                started = started_ticks(pid)
                if started is not None:
                    host = _find_argument(arguments, "--hostname")
                    cores = int(_find_argument(arguments, "--cores") or local_cores)
                    daemon = parent if host is None and parent != pid else 0
                    return cls(pid, started, host or "127.0.0.1", cores, daemon)
            pid = _parent_pid(pid)
        raise QueryError("this Python worker has no Java process among its ancestors. Did Spark start it?")

    def directory(self, settings: SidecarSettings) -> Path:
        """The directory of the sidecar with these settings. Other settings get another sidecar."""
        digest = hashlib.sha256(json.dumps(asdict(settings), sort_keys=True).encode()).hexdigest()[:8]
        name = f"volley-executor-{os.getuid()}-{self.pid}-{self.started}-{digest}"
        return Path(tempfile.gettempdir()) / name


def sidecar_address(executor: Executor, settings: SidecarSettings) -> str:
    """The address of this executor's sidecar, which is started if there is none."""
    directory = executor.directory(settings)
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.stat().st_uid != os.getuid():
        raise QueryError(f"{directory} belongs to another user.")
    lock = os.open(directory / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        address = directory / _ADDRESS
        if address.exists():
            found = json.loads(address.read_text())
            if started_ticks(found["pid"]) == found["started"]:
                return str(found["address"])
            address.unlink()
        return _start(executor, settings, directory)
    finally:
        os.close(lock)


def _start(executor: Executor, settings: SidecarSettings, directory: Path) -> str:
    ready = directory / _ADDRESS
    memory = settings.memory_bytes or available_memory_bytes() // 4
    words = {
        "executor": asdict(executor),
        "settings": asdict(settings) | {"memory_bytes": memory},
        "ready": str(ready),
        "directories": spill_directories(),
    }
    with (directory / _LOG).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "volley.transport.sidecar"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=os.environ | little_memory(memory),
            # It must outlive the Python workers, which Spark kills by process group.
            start_new_session=True,
        )
    assert process.stdin is not None
    process.stdin.write(json.dumps(words).encode())
    process.stdin.close()
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if ready.exists():
            return str(json.loads(ready.read_text())["address"])
        time.sleep(_POLL_SECONDS)
    process.kill()
    process.wait()
    said = (directory / _LOG).read_text(errors="replace").strip()[-2000:]
    raise QueryError(f"the sidecar of this executor did not start: {said or process.returncode}")


def spill_directories() -> list[str]:
    """The local directories that Spark gives this executor."""
    named = os.environ.get("SPARK_LOCAL_DIRS") or os.environ.get("LOCAL_DIRS") or ""
    usable = [part for part in named.split(",") if part and os.access(part, os.W_OK | os.X_OK)]
    return usable or [tempfile.gettempdir()]


def _find_argument(arguments: list[str], name: str) -> str | None:
    return arguments[arguments.index(name) + 1] if name in arguments[:-1] else None


def _parent_pid(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()
    return int(fields[1])
