# SPDX-License-Identifier: Apache-2.0
"""The command `volley connect-server`, and programs that reach it with packages from the registry."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.certificates import make_certificates
from helpers.connect_program import check_client, run_client
from helpers.waiting import eventually

pytest.importorskip("grpc")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


class Server:
    """A running `volley connect-server`."""

    def __init__(self, history: Path, *options: str, **environment: str) -> None:
        settings = {
            "spark.volley.history.dir": str(history),
            "spark.sql.warehouse.dir": str(history / "tables"),
        }
        words = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "volley.cli.main", "connect-server", "--master", "local[2]"),
                *("--port", "0", "--json", "--drain-seconds", "5", *words, *options),
            ],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
            stdout=subprocess.PIPE,
            text=True,
            # A group of its own, so that what it leaves can be found.
            start_new_session=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "it ended before it was ready"
        self.port = int(json.loads(line)["address"].rpartition(":")[2])
        self.url = f"sc://localhost:{self.port}"
        self._history = history

    def family(self) -> list[int]:
        """All processes of its session that run."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == self.process.pid and fields[0] != "Z":
                found.append(int(entry.name))
        return found

    def engines(self) -> list[str]:
        """The engines of its last queries, as `volley history` tells."""
        said = subprocess.run(
            [sys.executable, "-m", "volley.cli.main", "history", "--json", "--dir", str(self._history)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return [query["engine"] for query in json.loads(said.stdout)]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def serving(history: Path, *options: str, **environment: str) -> Iterator[Server]:
    server = Server(history, *options, **environment)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            os.killpg(server.process.pid, signal.SIGKILL)
            server.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("history")) as running:
        yield running


def python_with(directory: Path, *packages: str) -> str:
    """The interpreter of a new environment with these packages. Skips the test where they cannot be had."""
    venv.create(directory, with_pip=True)
    python = str(directory / "bin" / "python")
    install = subprocess.run(
        [python, "-m", "pip", "install", "-q", *packages], capture_output=True, text=True
    )
    if install.returncode:
        pytest.skip(f"{packages} cannot be installed: {install.stderr[-300:]}")
    return python


def test_two_clients_at_once_and_the_history(server: Server) -> None:
    printed: list[list[str]] = []
    threads = [threading.Thread(target=lambda: printed.append(run_client(server.url))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(printed) == 2
    for lines in printed:
        check_client(lines)
    eventually(lambda: server.engines().count("native") >= 10)


def test_the_client_package_of_another_release(server: Server, tmp_path: Path) -> None:
    # The package of 4.2.0 cannot import its functions outside of an installation of Spark.
    python = python_with(tmp_path / "client", "pyspark-client==4.1.*", "pandas<3")
    check_client(run_client(server.url, python))


def test_a_dbt_project(server: Server, tmp_path: Path) -> None:
    """dbt's session method follows SPARK_REMOTE, as any program with PySpark does."""
    packages = ("dbt-core", "dbt-spark", "pyspark-client==4.1.*", "pandas<3")
    # Some of what dbt needs has no wheel in its newest version; the client has none in any.
    only_wheels = ("--only-binary", ":all:", "--no-binary", "pyspark-client")
    python = python_with(tmp_path / "dbt", *only_wheels, *packages)
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "dbt", project)

    def dbt(*words: str) -> str:
        run = subprocess.run(
            [str(Path(python).with_name("dbt")), "--no-use-colors", *words, "--profiles-dir", "."],
            cwd=project,
            env=os.environ | {"SPARK_REMOTE": server.url, "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    assert "PASS=2 " in dbt("run")
    assert "PASS=1 " in dbt("test")
    assert "| 49500 |" in " ".join(dbt("show", "--select", "spent", "--limit", "1").split())
    # What asks for rows ran natively.
    eventually(lambda: server.engines()[0] == "native")


def test_stopping_leaves_no_process(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        check_client(run_client(server.url))
        assert len(server.family()) >= 2
        assert server.stop() == 0
        eventually(lambda: not server.family())


def test_it_ends_with_its_jvm(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        (java,) = (pid for pid in server.family() if Path(f"/proc/{pid}/comm").read_text().strip() == "java")
        os.kill(java, signal.SIGKILL)
        assert server.process.wait(60) == 1


def test_token_and_tls(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o600)
    options = {
        "--host": "0.0.0.0",
        "--tls-certificate": str(files / "member.pem"),
        "--tls-key": str(files / "member.key"),
        "--token-file": str(tmp_path / "token"),
    }
    trust = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(files / "ca.pem")}
    with serving(tmp_path / "history", *(word for pair in options.items() for word in pair)) as server:
        url = f"{server.url}/;use_ssl=true;token="
        check_client(run_client(url + "secret", **trust))
        with pytest.raises(AssertionError, match="Invalid authentication token"):
            run_client(url + "wrong", **trust)


def test_a_token_on_loopback_is_connects_own(tmp_path: Path) -> None:
    variable = {"SPARK_CONNECT_AUTHENTICATE_TOKEN": "secret"}
    with serving(tmp_path, **variable) as server:
        check_client(run_client(server.url, **variable))
        with pytest.raises(AssertionError, match="No authentication token provided"):
            run_client(server.url)
