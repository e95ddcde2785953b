# SPDX-License-Identifier: Apache-2.0
"""A local cluster is up when it says so and gone when its owner is, however that ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from helpers.waiting import eventually
from volley.cli.main import cli
from volley.cluster import ClusterError, LocalCluster, health_of
from volley.config import Config
from volley.security import Security


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_members_are_processes_that_end_with_the_block_in_any_state() -> None:
    with LocalCluster(2, cores=1, memory="256m") as cluster:
        pids = [member.pid for member in cluster.members]
        assert len({*pids, os.getpid()}) == 3
        assert all(health and health.status == "serving" for health in cluster.health())
        token = cluster.token_file.read_text()
        for pid in pids:
            seen = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
            assert token.encode() not in seen
        assert cluster.token_file.stat().st_mode & 0o777 == 0o600
        assert health_of(cluster.addresses[0], Security("wrong")) is None
        refused = CliRunner().invoke(cli, ["status", cluster.addresses[0]], env={"COLUMNS": "200"})
        assert refused.exit_code == 1
        assert "refused" in refused.output
        assert "did not accept the token" in refused.output
        cluster.members[0].log.seek(0)
        said = cluster.members[0].log.read().decode()
        assert "INFO volley.process.foreground process" in said
        assert "WARNING volley.security refused do_action: wrong token" in said
        assert "wrong token (" not in said  # once, not for every call
        assert token not in said
        config = Config.read(cluster.settings)
        assert (config.transport, list(config.workers)) == ("flight", cluster.addresses)
        listed = ",".join(cluster.addresses)
        arguments = ["status", listed, "--json", "--token-file", str(cluster.token_file)]
        shown = json.loads(CliRunner().invoke(cli, arguments).output)
        assert [shown[address]["status"] for address in cluster.addresses] == ["serving", "serving"]
        first = ["status", cluster.addresses[0], "--drain", "--token-file", str(cluster.token_file)]
        assert "draining" in CliRunner().invoke(cli, first, env={"COLUMNS": "200"}).output
        # One is dead, one cannot hear: both must be gone afterwards.
        os.kill(pids[0], signal.SIGKILL)
        os.kill(pids[1], signal.SIGSTOP)
        cluster.members[0].process.wait()
        gone = CliRunner().invoke(cli, [*first, "--json"])
        assert gone.exit_code == 1
        assert json.loads(gone.output)[cluster.addresses[0]]["status"] == "unreachable"
        cluster.members[0].log.seek(0)
        assert (
            "draining" not in cluster.members[0].log.read().decode()
        )  # that is of the command, not of a signal
    assert not any(is_running(pid) for pid in pids)
    assert not cluster.token_file.parent.exists()


def test_a_worker_that_cannot_start_is_an_error_with_what_it_said() -> None:
    cluster = LocalCluster(1, memory="256m", arguments=["--dir", "/nowhere/at/all"])
    with pytest.raises(ClusterError, match="/nowhere/at/all is not a writable directory"):
        cluster.start()
    assert not cluster.token_file.parent.exists()


class TestCommand:
    def start(self, *arguments: str) -> tuple[subprocess.Popen[str], list[int], Path]:
        command = [sys.executable, "-m", "volley.cli.main", "cluster", "--workers", "2", "--memory", "256m"]
        process = subprocess.Popen(
            [*command, "--json", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        return process, ready["pids"], Path(ready["settings"]["spark.volley.tokenFile"])

    @pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
    def test_a_signal_takes_everything_down(self, number: signal.Signals) -> None:
        process, pids, token_file = self.start()
        # Also when one of them has gone before.
        os.kill(pids[0], signal.SIGKILL)
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert not any(is_running(pid) for pid in pids)
        assert not token_file.parent.exists()

    @pytest.mark.slow
    def test_workers_do_not_outlive_a_killed_parent(self) -> None:
        process, pids, token_file = self.start()
        assert all(is_running(pid) for pid in pids)
        process.kill()
        process.communicate()
        eventually(lambda: not any(is_running(pid) for pid in pids))
        eventually(lambda: not token_file.parent.exists())

    @pytest.mark.slow
    def test_it_ends_when_no_worker_is_left(self) -> None:
        process, pids, _ = self.start()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "all workers have ended" in errors

    @pytest.mark.slow
    def test_idle_workers_are_let_go_and_shuffle_servers_stay(self) -> None:
        process, pids, token_file = self.start("--services", "1", "--least", "1", "--idle-seconds", "0")
        workers, (server,) = pids[:2], pids[2:]
        eventually(lambda: sum(is_running(pid) for pid in workers) == 1)
        assert is_running(server)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert not any(is_running(pid) for pid in pids)
        assert not token_file.parent.exists()

    def test_workers_are_not_let_go_with_what_they_hold(self) -> None:
        result = CliRunner().invoke(cli, ["cluster", "--least", "1"])
        assert result.exit_code == 2
        assert "data would be lost with the workers" in result.output

    @pytest.mark.parametrize("command", ["worker", "cluster", "status", "shuffle-service"])
    def test_help_has_an_example(self, command: str) -> None:
        result = CliRunner().invoke(cli, [command, "--help"])
        assert result.exit_code == 0
        assert "Example" in result.output
