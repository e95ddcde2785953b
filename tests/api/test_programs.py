# SPDX-License-Identifier: Apache-2.0
"""What only a process of its own shows: its launcher, its signals, its children, and the sessions that it starts."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark
PROGRAM = Path(__file__).parents[1] / "helpers" / "user_program.py"
SUBMIT = "--conf spark.volley.enabled=false pyspark-shell"


class Run:
    """One run of `helpers/user_program.py`, which is interrupted where it asks for it."""

    def __init__(self, directory: Path) -> None:
        (directory / "IPython").mkdir()
        (directory / "IPython" / "__init__.py").write_text("def get_ipython(): return None\n")
        path = os.pathsep.join([str(directory), *filter(None, sys.path)])
        errors = directory / "errors"
        self._lines: list[tuple[str, str]] = []
        self.stdout = ""
        with errors.open("w") as stderr:
            program = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(directory)],
                env=os.environ | {"PYTHONPATH": path, "PYSPARK_SUBMIT_ARGS": SUBMIT},
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=directory,
                text=True,
            )
            try:
                self._watch(program)
                self.exit_code = program.wait(60)
            finally:
                program.kill()
                program.wait()
        self.stderr = errors.read_text()

    def of(self, step: str) -> list[str]:
        return [line for name, line in self._lines if name == step]

    def _watch(self, program: subprocess.Popen[str]) -> None:
        assert program.stdout is not None
        for line in program.stdout:
            self.stdout += line
            name, _, rest = line.strip().partition(" ")
            self._lines.append((name, rest))
            if (name, rest) == ("interrupt", "started"):
                # Python may lose the exception when the signal falls into a finalizer; so, until it is done.
                while program.poll() is None:
                    program.send_signal(signal.SIGINT)
                    if select.select([program.stdout], [], [], 5)[0]:
                        break


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("program"))


def test_it_ends_by_itself(run: Run) -> None:
    assert run.exit_code == 0, run.stderr


def test_an_explicit_false_of_spark_submit_wins(run: Run) -> None:
    assert run.of("submit") == ["false spark"], run.stderr
    number = PROGRAM.read_text().splitlines().index("    volley.enable(spark)") + 1
    assert f"{PROGRAM}:{number}: UserWarning: spark.volley.enabled=false is set" in run.stderr


def test_explain_where_ipython_is_installed_and_does_not_run(run: Run) -> None:
    assert "Volley is off on this session" in run.stdout
    assert "Range" in run.stdout


def test_a_new_session_does_not_take_an_rdd_for_local_data_of_the_one_before(run: Run) -> None:
    """RDDs are numbered from 0 again."""
    expected = ["[(1,)] native", *(f"[({value},)] spark" for value in range(2, 8)), "[(9,)] native"]
    assert run.of("rdd") == expected, run.stderr


def test_a_child_forked_after_an_embedded_query_exits(run: Run) -> None:
    assert run.of("fork") == ["89 native", "exit 0", "89 native"], run.stderr


def test_ctrl_c_ends_the_query(run: Run) -> None:
    """The main thread gets the signal, as in a user's program."""
    # No query was left running, and the session still answers.
    assert run.of("interrupt") == ["started", "cancelled KeyboardInterrupt", "0 5"], run.stderr
