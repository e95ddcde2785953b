# SPDX-License-Identifier: Apache-2.0
"""What the functions of a program find around them is what they find in Spark, or Spark runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent.parent / "helpers" / "python_environment_program.py"


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["local", "flight", "spark"])
def test_the_environment_of_functions(tmp_path: Path, transport: str) -> None:
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), transport],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.splitlines() == [
        "added_module native True",
        "added_file native True",
        "archive_file native True",
        "broadcast native True",
        "variable native True",
        "partition spark True",
        "directory the driver's" if transport == "local" else "directory sent",
        "counts spark True",
        "counter 12",
        "profiled spark True",
        "profiles 2",
    ]
