# SPDX-License-Identifier: Apache-2.0
"""The scripts behind `make`, and the example."""

from __future__ import annotations

import ast
import json
import os
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def java(directory: Path, banner: str) -> Path:
    """A Java installation that prints this when asked for its version."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    program.chmod(0o755)
    return directory


def check_java(home: Path) -> subprocess.CompletedProcess[str]:
    # With JAVA_HOME set the script never installs anything.
    environment = os.environ | {"JAVA_HOME": str(home)}
    command = [str(ROOT / "scripts" / "java.sh")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "banner", ['openjdk version "17.0.15" 2025-04-15', 'java version "21"', 'openjdk version "25-ea"']
)
def test_a_java_that_is_new_enough_passes_silently(tmp_path: Path, banner: str) -> None:
    result = check_java(java(tmp_path, banner))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "banner", ['openjdk version "1.8.0_402"', 'openjdk version "11.0.22"', "not java at all"]
)
def test_an_old_java_is_refused_with_what_to_do(tmp_path: Path, banner: str) -> None:
    result = check_java(java(tmp_path, banner))
    assert result.returncode == 1
    assert str(tmp_path) in result.stderr
    assert "openjdk-17-jre-headless" in result.stderr


def test_a_missing_java_is_refused(tmp_path: Path) -> None:
    assert check_java(tmp_path / "nowhere").returncode == 1


@pytest.mark.usefixtures("shared_spark")
def test_the_quickstart_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "quickstart.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert "show: native" in shown
    assert "collect: spark" in shown


def test_the_notebook_runs_and_shows_html(spark: SparkSession) -> None:
    notebook = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            *body, last = ast.parse("".join(cell["source"])).body
            exec(compile(ast.Module(body, []), "cell", "exec"), names)
            assert isinstance(last, ast.Expr)
            shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    _, pandas, report, native, not_native = shown
    assert pandas["n"].tolist() == [100_000] * 10
    assert report.engine == "native"
    assert native.native
    assert not not_native.native
    assert all("<" in item._repr_html_() for item in (report, native, not_native))
