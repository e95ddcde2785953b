# SPDX-License-Identifier: Apache-2.0
"""On a local master the sidecar ends with the application, and not with the JVM of the driver."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, os, tempfile, time
from pathlib import Path
from pyspark.sql import SparkSession
import volley

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.volley.transport", "spark")
    .config("spark.volley.fallback", "error")
    .getOrCreate()
)
volley.enable(spark)
assert spark.range(1000).selectExpr("sum(id)").collect()[0][0] == 499500
jvm = spark.sparkContext._gateway.proc.pid
folders = list(Path(tempfile.gettempdir()).glob(f"volley-executor-{os.getuid()}-*"))
pids = [json.loads((folder / "address").read_text())["pid"] for folder in folders]
assert pids
spark.stop()
stopped = time.monotonic()
def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
while any(map(lives, pids)):
    assert time.monotonic() - stopped < 5, "a sidecar has outlived its application"
    time.sleep(0.01)
assert lives(jvm)
print("ended after", time.monotonic() - stopped)
"""


@pytest.mark.slow
def test_a_sidecar_ends_with_its_application(tmp_path_factory: pytest.TempPathFactory) -> None:
    temporary = tmp_path_factory.mktemp("tmp")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
