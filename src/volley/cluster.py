# SPDX-License-Identifier: Apache-2.0
"""A local cluster of worker daemons, each a process. It ends with the process that started it."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from volley.errors import (
    CertificateRejected,
    HandshakeRefused,
    PeerLost,
    PeerTimedOut,
    QueryError,
    VolleyError,
)
from volley.options import PLUGIN_PREFIX
from volley.process.machine import available_cores
from volley.rpc.client import Client
from volley.rpc.control import AskHealth, Drain, Health
from volley.rpc.shuffle_messages import ServiceHealth
from volley.security import Security
from volley.worker.scratch import Scratch

_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
_HEALTH_SECONDS = 5.0
# Driver and workers must have the same values of these.
_SHARED_OPTIONS = (
    "spark.volley.shuffle.store",
    "spark.volley.shuffle.service",
    "spark.volley.shuffle.replicas",
)


class ClusterError(VolleyError):
    code = "CLUSTER_FAILED"


@dataclass(frozen=True)
class Member:
    """One daemon. `log` is its standard error."""

    address: str
    process: subprocess.Popen[bytes]
    log: IO[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


class LocalCluster:
    """Runs `workers` daemons on loopback, with their own token, for the duration of a `with` block.

    `settings` are options for the workers, `arguments` are command-line arguments of `volley worker`. The workers share
    the machine's cores equally unless `cores` is given. If `services` is above 0, that many shuffle servers are started
    too, and the workers keep exchanged data there. Without `python_functions` the workers run no Python functions, and
    without `jvm_expressions` no expressions of Spark.
    """

    def __init__(
        self,
        workers: int = 3,
        *,
        cores: int | None = None,
        memory: str = "1g",
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        services: int = 0,
        service_arguments: Sequence[str] = (),
        python_functions: bool = True,
        jvm_expressions: bool = True,
    ) -> None:
        self._python_functions = python_functions
        self._jvm_expressions = jvm_expressions
        self._count = workers
        self._services = services
        self._service_arguments = tuple(service_arguments)
        self._cores = cores or max(1, available_cores() // workers)
        self._memory = memory
        self._worker_settings = dict(settings or {})
        self._arguments = tuple(arguments)
        self._resources = ExitStack()
        self.members: list[Member] = []
        self.servers: list[Member] = []
        self._released: list[Member] = []

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def start(self) -> None:
        """Start all daemons and wait until they serve. If one fails, the others are stopped."""
        try:
            scratch = Scratch((Path(tempfile.gettempdir()),), prefix="volley-cluster-")
            self._resources.callback(scratch.close)
            (self.directory,) = scratch.directories
            self.token_file = self.directory / "token"
            descriptor = os.open(self.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(descriptor, secrets.token_hex(32).encode())
            os.close(descriptor)
            self.security = Security.read(str(self.token_file))
            if self._services:
                self._start_services()
            self.add(self._count)
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def addresses(self) -> list[str]:
        return [member.address for member in self.members]

    @property
    def settings(self) -> dict[str, str]:
        """The options for a session that runs on this cluster."""
        return {
            "spark.volley.transport": "flight",
            "spark.volley.workers": ",".join(self.addresses),
            "spark.volley.tokenFile": str(self.token_file),
            **{
                key: value
                for key, value in self._worker_settings.items()
                if key in _SHARED_OPTIONS or key.startswith(PLUGIN_PREFIX)
            },
        }

    def add(self, workers: int = 1, *, port: int = 0) -> list[Member]:
        """Start more workers and wait until they serve."""
        return _wait_until_up([self._start(port) for _ in range(workers)], self.members)

    def set_options(self, settings: Mapping[str, str]) -> None:
        """Change options of workers that are started from now on, and of sessions."""
        self._worker_settings |= settings

    def release(self, member: Member) -> None:
        """Drain and stop a worker. Its output is lost unless it is in a shared store."""
        self.members.remove(member)
        self._released.append(member)
        member.process.terminate()

    def _start_services(self) -> None:
        _wait_until_up([self._start_server(number) for number in range(self._services)], self.servers)
        self._worker_settings = {
            "spark.volley.shuffle.store": "service",
            "spark.volley.shuffle.service": ",".join(member.address for member in self.servers),
        } | self._worker_settings

    def restart_servers(self, *numbers: int) -> None:
        """Replace shuffle servers that have ended, with the same ports and directories."""
        for number in numbers:
            self.servers[number].process.wait()
            self.servers[number].log.close()
        ports = [int(self.servers[number].address.rpartition(":")[2]) for number in numbers]
        started: list[Member] = []
        _wait_until_up(
            [self._start_server(number, port) for number, port in zip(numbers, ports, strict=True)], started
        )
        for number, member in zip(numbers, started, strict=True):
            self.servers[number] = member

    def health(self) -> list[Health | None]:
        """The health of each worker; None for one that does not answer."""
        found = [health_of(member.address, self.security) for member in self.members]
        return [health if isinstance(health, Health) else None for health in found]

    def service_health(self) -> list[ServiceHealth | None]:
        """The health of each shuffle server; None for one that does not answer."""
        found = [health_of(member.address, self.security) for member in self.servers]
        return [health if isinstance(health, ServiceHealth) else None for health in found]

    def close(self) -> None:
        """Stop all daemons, killing those that take too long, and remove their files."""
        for server in self.servers:
            # A drain would wait for queries to end, and its directories are removed anyway.
            server.process.kill()
        everybody = self.members + self._released + self.servers
        for member in everybody:
            if member.alive:
                # A daemon that a test has paused with SIGSTOP would not see the next signal.
                member.process.send_signal(signal.SIGCONT)
                # The second one skips the drain: nobody is waiting for results.
                member.process.terminate()
                member.process.terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        for member in everybody:
            try:
                member.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
            member.log.close()
        self._resources.close()

    def _start(self, port: int) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        arguments = ["--cores", str(self._cores), "--memory", self._memory, *self._arguments]
        if self._python_functions:
            arguments.append("--python-functions")
        if self._jvm_expressions:
            arguments.append("--jvm-expressions")
        for key, value in self._worker_settings.items():
            arguments += ["--set", f"{key}={value}"]
        return self._process("worker", port, arguments)

    def _start_server(self, number: int, port: int = 0) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        directory = self.directory / f"server-{number}"
        directory.mkdir(exist_ok=True)
        arguments = ["--memory", self._memory, "--dirs", str(directory), *self._service_arguments]
        return self._process("shuffle-service", port, arguments)

    def _process(
        self, daemon: str, port: int, arguments: Sequence[str]
    ) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        command = [sys.executable, "-m", "volley.cli.main", daemon, "--json", "--port", str(port)]
        command += ["--parent", str(os.getpid()), "--token-file", str(self.token_file), *arguments]
        log = tempfile.TemporaryFile()  # noqa: SIM115  (closed with its member)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            # Ctrl-C is for the process that started the cluster, which then stops it in order.
            start_new_session=True,
        )
        return process, log


def _wait_until_up(
    started: Sequence[tuple[subprocess.Popen[bytes], IO[bytes]]], members: list[Member]
) -> list[Member]:
    """Add the daemons to `members` once they serve. If one fails, kill those that do not serve yet."""
    deadline = time.monotonic() + _START_SECONDS
    added: list[Member] = []
    try:
        for process, log in started:
            added.append(Member(_address(process, log, deadline), process, log))
    finally:
        ready = {member.pid for member in added}
        for process, log in started:
            if process.pid not in ready:
                process.kill()
                process.wait()
                log.close()
        members += added
    return added


@dataclass(frozen=True)
class Unhealthy:
    """Why a daemon has no health to show. `status` is refused, wrong certificate, not responding or unreachable."""

    status: str
    message: str


def ask_health(
    address: str, security: Security, timeout_seconds: float = _HEALTH_SECONDS
) -> Health | ServiceHealth | Unhealthy:
    """Ask the worker or shuffle server at `address` for its health."""
    try:
        with Client(address, security, role="daemon", timeout_seconds=timeout_seconds) as client:
            health: Health | ServiceHealth = client.call("health", AskHealth(), Health | ServiceHealth)
            return health
    except HandshakeRefused:
        return Unhealthy("refused", f"daemon {address} did not accept the token.")
    except CertificateRejected as error:
        return Unhealthy("wrong certificate", error.message)
    except PeerTimedOut as error:
        return Unhealthy("not responding", error.message)
    except PeerLost as error:
        return Unhealthy("unreachable", error.message)
    except QueryError as error:
        return Unhealthy("not responding", error.message)


def health_of(
    address: str, security: Security, timeout_seconds: float = _HEALTH_SECONDS
) -> Health | ServiceHealth | None:
    """The health of the worker or shuffle server at `address`; None if it does not say."""
    health = ask_health(address, security, timeout_seconds)
    return None if isinstance(health, Unhealthy) else health


def drain(address: str, security: Security, timeout_seconds: float = _HEALTH_SECONDS) -> bool:
    """Tell the daemon at `address` to drain. Returns whether it answered."""
    with Client(address, security, timeout_seconds=timeout_seconds) as client:
        try:
            client.call("drain", Drain())
        except QueryError:
            return False
        return True


def _address(process: subprocess.Popen[bytes], log: IO[bytes], deadline: float) -> str:
    """Read the address that a daemon announces. ClusterError if it ends or does not announce one in time."""
    assert process.stdout is not None
    overdue = threading.Timer(max(0.0, deadline - time.monotonic()), process.kill)
    overdue.start()
    try:
        line = process.stdout.readline()
    finally:
        overdue.cancel()
    if not line:
        process.wait()
        log.seek(0)
        said = log.read().decode(errors="replace").strip()
        raise ClusterError(f"a worker did not start: {said or f'it ended with status {process.returncode}'}")
    return str(json.loads(line)["address"])
