# SPDX-License-Identifier: Apache-2.0
"""A cluster of worker daemons on this machine, in processes of their own, that ends with whoever started it."""

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

from volley.errors import QueryError, VolleyError
from volley.machine import available_cores
from volley.rpc.client import Client
from volley.rpc.control import AskHealth, Drain, Health
from volley.rpc.service import ServiceHealth
from volley.security import Security
from volley.worker.scratch import Scratch

_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
_HEALTH_SECONDS = 5.0
# A driver has to know these as its workers do.
_OF_BOTH_SIDES = (
    "spark.volley.shuffle.store",
    "spark.volley.shuffle.service",
    "spark.volley.shuffle.replicas",
)


class ClusterError(VolleyError):
    code = "CLUSTER_FAILED"


@dataclass(frozen=True)
class Member:
    """One daemon. `log` is what it printed to its standard error."""

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
    """`workers` daemons on loopback with a token of their own, up when the `with` block begins and gone after it.

    `settings` are options for the workers, `arguments` further ones of `volley worker`. Each gets its share of the
    machine's cores unless `cores` says otherwise. With `services` there are so many shuffle servers beside the workers,
    who then keep exchanged data there.
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
    ) -> None:
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
        """Returns when all serve; leaves nothing behind when one does not."""
        try:
            scratch = Scratch((Path(tempfile.gettempdir()),), prefix="volley-cluster-")
            self._resources.callback(scratch.close)
            (self._directory,) = scratch.directories
            directory = self._directory
            self.token_file = directory / "token"
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
        """What a session sets to run on this cluster."""
        return {
            "spark.volley.transport": "flight",
            "spark.volley.workers": ",".join(self.addresses),
            "spark.volley.tokenFile": str(self.token_file),
            **{key: value for key, value in self._worker_settings.items() if key in _OF_BOTH_SIDES},
        }

    def add(self, workers: int = 1, *, port: int = 0) -> list[Member]:
        """More daemons; returns when they serve."""
        return _up([self._start(port) for _ in range(workers)], self.members)

    def release(self, member: Member) -> None:
        """Let a worker go: it finishes what it runs, and ends. What it computed is lost unless it is kept elsewhere."""
        self.members.remove(member)
        self._released.append(member)
        member.process.terminate()

    def _start_services(self) -> None:
        _up([self._start_server(number) for number in range(self._services)], self.servers)
        self._worker_settings = {
            "spark.volley.shuffle.store": "service",
            "spark.volley.shuffle.service": ",".join(member.address for member in self.servers),
        } | self._worker_settings

    def restart_servers(self, *numbers: int) -> None:
        """Others in the places of shuffle servers that have ended, on their ports and with their directories."""
        for number in numbers:
            self.servers[number].process.wait()
            self.servers[number].log.close()
        ports = [int(self.servers[number].address.rpartition(":")[2]) for number in numbers]
        started: list[Member] = []
        _up([self._start_server(number, port) for number, port in zip(numbers, ports, strict=True)], started)
        for number, member in zip(numbers, started, strict=True):
            self.servers[number] = member

    def health(self) -> list[Health | None]:
        """Of each worker; None for one that does not answer."""
        found = [health_of(member.address, self.security) for member in self.members]
        return [health if isinstance(health, Health) else None for health in found]

    def service_health(self) -> list[ServiceHealth | None]:
        """Of each shuffle server."""
        found = [health_of(member.address, self.security) for member in self.servers]
        return [health if isinstance(health, ServiceHealth) else None for health in found]

    def close(self) -> None:
        """End all members, by force where they take too long, and remove what was made for them."""
        for server in self.servers:
            # It would wait for the ends of queries, and its directories go with the cluster.
            server.process.kill()
        everybody = self.members + self._released + self.servers
        for member in everybody:
            if member.alive:
                # One that a test has stopped could not even hear that it is to end.
                member.process.send_signal(signal.SIGCONT)
                # Twice: there is nobody left to finish anything for.
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
        for key, value in self._worker_settings.items():
            arguments += ["--set", f"{key}={value}"]
        return self._process("worker", port, arguments)

    def _start_server(self, number: int, port: int = 0) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        directory = self._directory / f"server-{number}"
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
            # Ctrl-C is for whoever started the cluster, who then ends it in order.
            start_new_session=True,
        )
        return process, log


def _up(started: Sequence[tuple[subprocess.Popen[bytes], IO[bytes]]], members: list[Member]) -> list[Member]:
    """Adds those that serve to `members`, and ends the others when one does not."""
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


def health_of(
    address: str, security: Security, timeout_seconds: float = _HEALTH_SECONDS
) -> Health | ServiceHealth | None:
    """What the worker or shuffle server at `address` says of itself; None when it does not answer."""
    with Client(address, security, timeout_seconds=timeout_seconds) as client:
        try:
            health: Health | ServiceHealth = client.call("health", AskHealth(), Health | ServiceHealth)
        except QueryError:
            return None
        return health


def drain(address: str, security: Security, timeout_seconds: float = _HEALTH_SECONDS) -> bool:
    """Tell the daemon at `address` to take nothing new; whether it heard."""
    with Client(address, security, timeout_seconds=timeout_seconds) as client:
        try:
            client.call("drain", Drain())
        except QueryError:
            return False
        return True


def _address(process: subprocess.Popen[bytes], log: IO[bytes], deadline: float) -> str:
    """Where a daemon says that it listens; ClusterError when it ends or does not say in time."""
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
