# SPDX-License-Identifier: Apache-2.0
"""Programs that know nothing of Volley run with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import volley.launcher

PROGRAM = """
import sys
import helper
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("arguments", sys.argv[1:], __name__, helper.WORD, spark.conf.get("spark.test.word"))
frame = spark.range(100).groupBy((F.col("id") % 7).alias("k")).count()
print("rows", frame.count())
print("tasks", spark._jsc.sc().statusStore().executorList(False).apply(0).totalTasks())
frame.select(F.input_file_block_start()).collect()
spark.stop()
"""


@pytest.mark.slow
def test_a_program_is_run_and_reported(tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.write_text(PROGRAM)
    (tmp_path / "helper.py").write_text("WORD = 'beside'")
    options = ["--conf", "spark.test.word=it's", "--conf", f"spark.volley.history.dir={tmp_path / 'history'}"]
    command = [sys.executable, "-m", "volley.cli.main", "run", "--report", *options, str(program)]
    run = subprocess.run(
        [*command, "--flag", "value"],
        env=os.environ | {"COLUMNS": "200", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "arguments ['--flag', 'value'] __main__ beside it's" in run.stdout
    assert "rows 7" in run.stdout
    assert "tasks 0" in run.stdout
    assert "2 queries, 1 of them native" in run.stderr
    assert "app.py:1" in run.stderr


@pytest.mark.slow
def test_spark_submit_runs_a_program_by_the_launcher(tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.write_text(PROGRAM)
    (tmp_path / "helper.py").write_text("WORD = 'beside'")
    submit = Path(sys.executable).with_name("spark-submit")
    run = subprocess.run(
        [
            *(str(submit), "--master", "local[1]", "--conf", "spark.test.word=given"),
            *(volley.launcher.__file__, str(program), "--flag", "value"),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "arguments ['--flag', 'value'] __main__ beside given" in run.stdout
    assert "rows 7\ntasks 0" in run.stdout


@pytest.mark.slow
def test_the_shell_has_a_session_with_volley(tmp_path: Path) -> None:
    typed = """
print("rows", spark.range(100).groupBy((F.col("id") % 7).alias("k")).count().count())
print("engine", volley.last_query(spark).engine, spark.conf.get("spark.test.word"))
%volley
exit
"""
    run = subprocess.run(
        [
            *(sys.executable, "-m", "volley.cli.main", "shell", "--master", "local[1]"),
            *("--conf", "spark.test.word=given", "--conf", "spark.ui.enabled=false"),
        ],
        input=typed,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "rows 7" in run.stdout
    assert "engine native given" in run.stdout
    # The magics are there.
    assert "count: native" in run.stdout


@pytest.mark.slow
def test_the_launcher_names_itself() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "volley.launcher"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert Path(said.stdout.strip()) == Path(volley.launcher.__file__)


def test_a_program_that_is_not_there() -> None:
    from click.testing import CliRunner

    from volley.cli.main import cli

    result = CliRunner().invoke(cli, ["run", "/nowhere/app.py"])
    assert result.exit_code == 2
    assert "does not exist" in result.output


@pytest.mark.parametrize("command", ["run", "shell", "dashboard", "history"])
def test_help_has_an_example(command: str) -> None:
    from click.testing import CliRunner

    from volley.cli.main import cli

    assert "Example" in CliRunner().invoke(cli, [command, "--help"]).output
