# SPDX-License-Identifier: Apache-2.0
"""A few queries, a write and a Python function with each other tested release. `make test-versions` runs the suites."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import volley
from volley.spark_versions.base import SparkVersion
from volley.spark_versions.registry import INSTALLABLE, current
from volley.testing.spark_environments import EnvironmentUnavailable, spark_environment

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "helpers" / "release_program.py"
OTHERS = [version for version in INSTALLABLE if version is not current()]


@pytest.mark.timeout(900)  # the first time, PySpark comes from the registry
@pytest.mark.parametrize("version", OTHERS, ids=lambda version: version.release)
def test_a_release_runs_natively_and_exactly(version: SparkVersion, tmp_path: Path) -> None:
    try:
        python = spark_environment(version, ROOT / ".venvs")
    except EnvironmentUnavailable as error:
        pytest.skip(str(error))
    # The environment has the packages of this one; this makes sure that the source is the one under test.
    variables = {"PYTHONPATH": str(Path(volley.__file__).parents[1]), "PYSPARK_PYTHON": str(python)}
    run = subprocess.run(
        [str(python), str(PROGRAM), str(tmp_path)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr[-4000:]
    assert run.stdout.split() == [version.tested, "native"]
