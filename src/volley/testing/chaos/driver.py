# SPDX-License-Identifier: Apache-2.0
"""Another driver, in a process of its own, which shares the workers and servers of an arena and can be killed.

It reads commands as lines of JSON, an object with `settings` and the names of `queries`, says that it is ready, and
writes what came out once it was told to begin.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import IO, Any

from volley.testing.chaos.jobs import HANG_SECONDS, Outcome, Running
from volley.testing.chaos.work import Work
from volley.testing.fuzz.session import local_session
from volley.testing.session import conf

_SAID = 3000


class OtherDriver:
    """Started when it is first needed, and again after it was killed."""

    def __init__(self, directory: Path, answers: Path, seed: int) -> None:
        self._directory = directory
        self._answers = answers
        self._seed = seed
        self._log = directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False

    def prepare(self, settings: dict[str, str], queries: tuple[str, ...]) -> None:
        """Let it plan these queries, and wait for that."""
        if self._process is None:
            self._process = self._start()
        self._is_killed = False
        _send(_pipe(self._process.stdin), {"settings": settings, "queries": queries})
        _pipe(self._process.stdout).readline()

    def begin(self) -> None:
        """Let it run them, all at the same time."""
        assert self._process is not None
        with suppress(BrokenPipeError):
            _send(_pipe(self._process.stdin), "go")

    def finish(self, outcome: Outcome) -> None:
        """Wait for the queries, and add what came out of them. One that was killed says nothing."""
        assert self._process is not None
        overdue = Timer(2 * HANG_SECONDS, self._process.kill)
        overdue.start()
        line = _pipe(self._process.stdout).readline()
        overdue.cancel()
        if not line:
            self._process.wait()
            if not self._is_killed:
                said = self._log.read_text(errors="replace")[-_SAID:]
                outcome.problems.append(f"the other driver ended with {self._process.returncode}: {said}")
            self._process = None
            return
        if self._is_killed:
            # It had said all before.
            self._process.wait()
            self._process = None
        found = Outcome.from_dict(json.loads(line))
        found.problems = [f"other driver: {problem}" for problem in found.problems]
        outcome.add(found)

    def kill(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            return False
        self._is_killed = True
        self._process.kill()
        return True

    def close(self) -> None:
        if self._process is not None:
            _pipe(self._process.stdin).close()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        self._directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "volley.testing.chaos.driver"]
        command += ["--directory", str(self._directory), "--seed", str(self._seed)]
        command += ["--answers", str(self._answers)]
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def _send(stream: IO[bytes], message: Any) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m volley.testing.chaos.driver", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--answers", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    spark = local_session("volley chaos, another driver")
    spark.conf.set("spark.volley.history.dir", "off")
    work = Work(spark, options.directory, options.seed, options.answers)
    for line in sys.stdin.buffer:
        command = json.loads(line)
        jobs = [(name, job) for name in command["queries"] if (job := work.job(name)) is not None]
        outcome = Outcome()
        _send(sys.stdout.buffer, "ready")
        sys.stdin.buffer.readline()
        with conf(spark, command["settings"]):
            running = Running(spark, jobs, max(1, len(jobs)))
            running.wait(outcome)
            running.judge(outcome)
        _send(sys.stdout.buffer, outcome.to_dict())
    spark.stop()


if __name__ == "__main__":
    main()
