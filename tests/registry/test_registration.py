# SPDX-License-Identifier: Apache-2.0
"""Daemons register, and sessions find them: they join, drain, are lost, and outlast the registry."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from helpers.recovery import NUMBER, exchanged, numbers
from helpers.waiting import eventually
from volley.cli.main import cli
from volley.cluster import LocalCluster
from volley.coordinator.options import RunOptions
from volley.coordinator.run import execute
from volley.errors import ConfigError, HandshakeRefused, PeerRefused, QueryError
from volley.membership import Membership
from volley.plan.nodes import Aggregate, Partitioning
from volley.registry import members
from volley.registry.members import Members
from volley.registry.registration import Registration
from volley.registry.server import RegistryDaemon, RegistrySettings
from volley.rpc.client import Client
from volley.rpc.control import JoinRegistry, LeaveRegistry, Role
from volley.security import Security
from volley.stages.cut import cut
from volley.testing.limits import UNMERGED
from volley.transport.fleet import Fleet
from volley.transport.flight import FlightTransport

PLAIN = Security()
TOKEN = Security(token="a" * 64)


@contextmanager
def registry_at(file: Path, port: int = 0, security: Security = PLAIN) -> Iterator[RegistryDaemon]:
    daemon = RegistryDaemon(RegistrySettings("127.0.0.1", port, {Role.WORKER: file}), security)
    try:
        yield daemon
    finally:
        daemon.close()


def listed(file: Path) -> list[str]:
    return file.read_text().split()


def test_members_are_listed_until_they_leave_or_their_lease_expires(tmp_path: Path) -> None:
    now = [0.0]
    file = tmp_path / "workers"
    found = Members(file, lambda: now[0])
    assert listed(file) == []
    found.join("b:2", 10)
    found.join("a:1", 10)
    assert listed(file) == ["a:1", "b:2"]
    now[0] = 9
    found.join("a:1", 10)
    assert found.expire() == ()
    now[0] = 11
    assert found.expire() == ("b:2",)
    assert listed(file) == ["a:1"]
    found.leave("a:1")
    found.leave("a:1")
    assert listed(file) == []
    assert list(tmp_path.iterdir()) == [file]


def test_a_registry_that_starts_again_knows_the_members_for_a_lease(tmp_path: Path) -> None:
    now = [0.0]
    file = tmp_path / "workers"
    file.write_text("a:1\nb:2\n")
    found = Members(file, lambda: now[0])
    assert found.addresses == ("a:1", "b:2")
    found.join("a:1", 100)
    now[0] = 31
    assert found.expire() == ("b:2",)
    assert listed(file) == ["a:1"]


def test_a_file_that_is_something_else_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "workers"
    file.write_text("do not lose me\n")
    with pytest.raises(ConfigError, match="is not host:port"):
        Members(file)
    assert file.read_text() == "do not lose me\n"
    with pytest.raises(ConfigError, match="No such file"):
        Members(tmp_path / "missing" / "workers")


def test_a_registry_has_room_for_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MOST_MEMBERS", 2)
    found = Members(tmp_path / "workers")
    for address in ("a:1", "b:1", "a:1"):
        found.join(address, 10)
    with pytest.raises(QueryError, match="2 members already"):
        found.join("c:1", 10)


@pytest.mark.parametrize(
    "address", ["a", "a:1\nb:2", "a:123456", ":1", "a b:1", "# a:1", "[::1]", "-" * 300 + ":1"]
)
def test_only_addresses_are_listed(tmp_path: Path, address: str) -> None:
    file = tmp_path / "workers"
    with registry_at(file) as registry, Client(registry.address, PLAIN) as client:
        with pytest.raises(PeerRefused):
            client.call("join", JoinRegistry(Role.WORKER, address, 10))
        assert listed(file) == []


def test_calls_that_a_registry_does_not_know_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "workers"
    with registry_at(file) as registry, Client(registry.address, PLAIN) as client:
        client.call("join", JoinRegistry(Role.WORKER, "[::1]:7", 10))
        assert listed(file) == ["[::1]:7"]
        with pytest.raises(PeerRefused, match="no list of shuffle servers"):
            client.call("join", JoinRegistry(Role.SHUFFLE_SERVER, "a:1", 10))
        with pytest.raises(PeerRefused, match="does not support"):
            client.call("leave", JoinRegistry(Role.WORKER, "a:1", 10))
        client.call("leave", LeaveRegistry(Role.WORKER, "[::1]:7"))
        assert listed(file) == []


def test_nobody_registers_without_the_token(tmp_path: Path) -> None:
    file = tmp_path / "workers"
    with registry_at(file, security=TOKEN) as registry:
        with Client(registry.address, PLAIN) as client, pytest.raises(HandshakeRefused):
            client.call("join", JoinRegistry(Role.WORKER, "a:1", 10))
        assert listed(file) == []
        registration = Registration([registry.address], Role.WORKER, "a:1", TOKEN)
        eventually(lambda: listed(file) == ["a:1"])
        registration.leave()
        assert listed(file) == []


def test_a_daemon_registers_with_a_registry_that_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "workers"
    with registry_at(file) as registry:
        port = int(registry.address.rpartition(":")[2])
        registration = Registration([registry.address], Role.WORKER, "a:1", PLAIN, lease_seconds=1.0)
        eventually(lambda: listed(file) == ["a:1"])
    # Without the registry, nobody is taken off the list.
    assert listed(file) == ["a:1"]
    file.unlink()
    with registry_at(file, port):
        eventually(lambda: listed(file) == ["a:1"])
        registration.leave()
        eventually(lambda: listed(file) == [])


@pytest.mark.slow
def test_workers_that_register_run_queries_until_they_drain_or_are_lost(tmp_path: Path) -> None:
    file = tmp_path / "workers"
    plan = Aggregate((NUMBER,), (), (), (NUMBER,), exchanged(Partitioning.HASH, numbers(1000)))
    with _process("registry", "--workers-file", str(file), "--no-token") as ready:
        arguments = ("--register", ready["address"])
        with LocalCluster(0, cores=1, memory="256m", arguments=arguments) as cluster:
            # The token of the cluster is sent to a registry that asks for none.
            first, second = cluster.add(2)
            eventually(lambda: sorted(listed(file)) == sorted(cluster.addresses))
            fleet = Fleet([f"file:{file}"], cluster.security, 5.0)
            try:
                fleet.wait()
                eventually(lambda: len([peer for peer in fleet.peers if peer.up]) == 2)
                options = RunOptions(timeout_seconds=60, attempts=3, limits=UNMERGED)
                with execute(cut(plan, 2, UNMERGED), FlightTransport(fleet), options) as stream:
                    assert sum(batch.num_rows for batch in stream) == 1000
            finally:
                fleet.close()
            first.process.send_signal(signal.SIGTERM)
            eventually(lambda: listed(file) == [second.address])
            second.process.kill()
            eventually(lambda: listed(file) == [])
    assert Membership([f"file:{file}"]).addresses() == ()


@pytest.mark.parametrize("arguments", [["worker"], ["shuffle-service", "--dirs", "x"]])
@pytest.mark.parametrize("address", ["here", "dns:here:1", "file:/here", "a:1,b:2"])
def test_a_registry_has_one_address(arguments: list[str], address: str) -> None:
    result = CliRunner().invoke(cli, [*arguments, "--register", address])
    assert result.exit_code == 2
    assert "expected host:port" in result.output


def test_a_registry_needs_a_file() -> None:
    result = CliRunner().invoke(cli, ["registry"])
    assert result.exit_code == 2
    assert "--workers-file" in result.output


@contextmanager
def _process(*arguments: str) -> Iterator[Any]:
    command = [sys.executable, "-m", "volley.cli.main", *arguments, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(120)
        assert process.stdout is not None
        process.stdout.close()
