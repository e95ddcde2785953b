# SPDX-License-Identifier: Apache-2.0
"""A real Spark standalone cluster on loopback, in processes of its own: one master, some workers of one core each."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import pyspark

_START_SECONDS = 60.0


class StandaloneCluster:
    """Up when the `with` block begins, gone after it. `directory` takes its logs and the files of its executors."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        self._directory = directory
        self._count = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> StandaloneCluster:
        try:
            master = self._start(
                "master", "127.0.0.1", "deploy.master.Master", "--port", "0", "--webui-port", "0"
            )
            self.url = self._wait_for(master, r"Starting Spark master at (spark://\S+)")
            for number in range(self._count):
                log = self._start(
                    f"worker-{number}",
                    # Spark starts no copy of a task on the host where it runs already.
                    f"127.0.0.{number + 1}",
                    "deploy.worker.Worker",
                    *("--cores", "1", "--memory", "1g", "--webui-port", "0"),
                    *("--work-dir", str(self._directory / f"work-{number}"), self.url),
                )
                self._wait_for(log, r"Successfully registered with master (\S+)")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, program: Path, *arguments: str, timeout_seconds: float = 1200) -> str:
        """The output of a Python program whose first argument is the master's URL."""
        # A program may import other helpers, as tests do.
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": path.rstrip(os.pathsep),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        done = subprocess.run(
            [sys.executable, str(program), self.url, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
        return done.stdout

    def close(self) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str, host: str, main: str, *arguments: str) -> Path:
        home = Path(pyspark.__file__).parent
        log = self._directory / f"{name}.log"
        environment: Mapping[str, str] = os.environ | {
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    str(home / "bin" / "spark-class"),
                    f"org.apache.spark.{main}",
                    "--host",
                    host,
                    *arguments,
                ],
                env=environment,
                stdout=output,
                stderr=output,
                cwd=self._directory,
            )
        self._processes.append(process)
        return log

    def _wait_for(self, log: Path, pattern: str) -> str:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            found = re.search(pattern, log.read_text(errors="replace"))
            if found:
                return found[1]
            time.sleep(0.05)
        raise AssertionError(f"{log.name}: {log.read_text(errors='replace')[-3000:]}")
