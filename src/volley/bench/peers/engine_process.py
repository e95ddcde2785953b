# SPDX-License-Identifier: Apache-2.0
"""One engine in a process of its own, as the benchmark sees it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from volley.bench.cost import Cost
from volley.bench.engines import Run
from volley.bench.peers import serve
from volley.bench.peers.environments import REQUIREMENTS, EngineUnavailable, engine_python
from volley.bench.peers.processes import ProcessTree

_STOP_SECONDS = 10
_SHOWN_CHARACTERS = 300


class QueryNotRun(Exception):
    """The engine cannot run this query."""


@dataclass(frozen=True)
class EngineSetup:
    """What every engine of a benchmark gets."""

    data: Path
    tables: Sequence[str]
    cores: int
    settings: Mapping[str, str]


class EngineProcess:
    """Starts the engine; the process ends with the `with` block. Raises EngineUnavailable if it cannot be started."""

    def __init__(self, name: str, setup: EngineSetup) -> None:
        self.name = name
        self.versions: dict[str, str] = {}
        self._setup = setup
        self._directory = tempfile.TemporaryDirectory(prefix=f"volley-{name}-")
        self._rows = Path(self._directory.name) / "rows.arrow"
        self._log = Path(self._directory.name) / "log"
        # Only engines that are part of Volley may see what is on the path of this process.
        isolation = "-I" if name in REQUIREMENTS else "-P"
        python = engine_python(name)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, isolation, serve.__file__, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._directory.name,
                start_new_session=True,
            )
        self._tree = ProcessTree(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> EngineProcess:
        setup = self._setup
        request = {
            "data": str(setup.data),
            "tables": list(setup.tables),
            "cores": setup.cores,
            "settings": dict(setup.settings),
        }
        try:
            answer = self._ask({"open": request})
            if "error" in answer:
                raise EngineUnavailable(f"it does not start: {_shorten(answer['error'])}")
            self.versions = answer["versions"]
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def run(self, sql: str) -> Run:
        """Run a query. Raises QueryNotRun if the engine refuses or fails."""
        return self._run({"run": sql})

    def run_program(self, program: Path, target: Path) -> Run:
        """Run a PySpark program, which writes to `target`. Raises QueryNotRun like `run`."""
        return self._run({"program": str(program), "data": str(self._setup.data), "target": str(target)})

    def sort_columns(self, sql: str) -> list[int] | None:
        """The columns that a query sorts by; None if it does not sort. Raises QueryNotRun like `run`."""
        answer = self._ask({"order": sql})
        if "error" in answer:
            raise QueryNotRun(_shorten(answer["error"]))
        columns: list[int] | None = answer["order"]
        return columns

    def _run(self, request: dict[str, str]) -> Run:
        self._tree.reset_peak()
        before = self._tree.cpu_seconds()
        answer = self._ask({**request, "rows": str(self._rows)})
        if "error" in answer:
            raise QueryNotRun(_shorten(answer["error"]))
        cost = answer.get("cost")
        return Run(
            _read(self._rows),
            answer["seconds"],
            native=answer.get("native"),
            reasons=tuple(answer.get("reasons") or ()),
            spark_tasks=answer.get("spark_tasks"),
            planning_seconds=answer.get("planning_seconds"),
            capture_seconds=answer.get("capture_seconds"),
            execution_seconds=answer.get("execution_seconds"),
            cost=Cost(**cost) if cost else None,
            operators=tuple(map(tuple, answer.get("operators") or ())),
            cpu_seconds=self._tree.cpu_seconds() - before,
            peak_bytes=self._tree.peak_bytes(),
        )

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            last = f": {lines[-1]}" if lines else ""
            raise EngineUnavailable(f"its process ended{_shorten(last)}")
        return dict(json.loads(line))

    def _stop(self) -> None:
        """End the process and its children; an engine that does not listen any more is killed."""
        assert self._process.stdin is not None
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(_STOP_SECONDS)
        # Its JVM, or a server that it started, is in its group.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._directory.cleanup()


def _read(file: Path) -> pa.Table:
    # Not mapped: the next query writes to the same file.
    return pa.ipc.open_file(pa.BufferReader(file.read_bytes())).read_all()


def _shorten(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
