#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the suites with every release of Spark that Volley is tested with, and with other releases of Python and Java.

    make test-versions VERSIONS="4.0 4.1" SUITES="tpch operators" SAMPLE=4
    make test-versions VERSIONS=4.3 WITH_PYTHON=/usr/bin/python3.13 WITH_JAVA=/usr/lib/jvm/java-21-openjdk

Each release has an environment under .venvs, with PySpark from the package registry and all other packages of the one
that runs this; so has each other Python, with all of its packages from the registry. What the suites found is written
to docs/versions.json: tests, and how many queries ran natively.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pyspark

from volley.observe.history_store import HistoryReader
from volley.spark_versions.base import SparkVersion
from volley.spark_versions.registry import INSTALLABLE, VERSIONS, current
from volley.testing.spark_environments import spark_environment

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "versions.json"
ENVIRONMENTS = ROOT / ".venvs"

EXPRESSIONS = [
    f"tests/lower/test_{name}.py"
    for name in ("expressions", "expressions_in_queries", "expressions_random", "functions")
]
OPERATORS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "lower").glob("test_*.py"))
SUITES: dict[str, list[str]] = {
    "tpch": ["tests/api/test_tpch.py"],
    "operators": [path for path in OPERATORS if path not in EXPRESSIONS],
    "expressions": [*EXPRESSIONS, "tests/jvm/test_jvm_expressions.py"],
    "functions": [
        f"tests/worker/test_{name}.py"
        for name in (
            "python_functions",
            "python_windows",
            "pickled_functions",
            "table_functions",
            "cogrouped_maps",
        )
    ],
    "formats": sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "formats").glob("test_*.py")),
    "session": [
        f"tests/api/test_{name}.py" for name in ("session", "switch", "rows", "outcomes", "programs")
    ],
    "writes": ["tests/bridge/test_writes.py", "tests/bridge/test_table_writes.py"],
    "mixed": ["tests/bridge/test_mixed.py"],
    "cluster": ["tests/cluster/test_cluster.py", "tests/cluster/test_cluster_queries.py"],
    "connect": ["tests/connect", "tests/connect_server"],
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Run the suites with several releases of Spark, Python and Java."
    )
    releases = [version.release for version in VERSIONS]
    parser.add_argument("--release", action="append", choices=releases, help="default: all")
    parser.add_argument("--suite", action="append", choices=list(SUITES), help="default: all")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="one in N tests; default: all")
    parser.add_argument("--jobs", default="2", help="test processes")
    parser.add_argument("--python", metavar="PATH", help="another Python than the one of .venv")
    parser.add_argument("--java-home", metavar="DIR", help="another Java than that of JAVA_HOME or PATH")
    chosen = parser.parse_args()
    if chosen.java_home:
        os.environ["JAVA_HOME"] = str(Path(chosen.java_home).absolute())
    if chosen.python:
        arguments = [f"--sample={chosen.sample}", f"--jobs={chosen.jobs}"]
        arguments += [f"--release={release}" for release in chosen.release or ()]
        arguments += [f"--suite={suite}" for suite in chosen.suite or ()]
        return run_with(chosen.python, arguments)
    where = f"Python {python_release()}, Java {java_release()}"
    failed = False
    for version in INSTALLABLE:
        if chosen.release and version.release not in chosen.release:
            continue
        print(
            f"Spark {version.tested}, {where}: its environment, from the registry if there is none ...",
            flush=True,
        )
        python = environment_of(version)
        for suite in chosen.suite or suites_of(version):
            print(f"Spark {version.tested}, {where}: {suite} ...", flush=True)
            counts = run_suite(python, SUITES[suite], chosen.jobs, chosen.sample)
            record(version, suite, counts)
            print(f"  {counts}", flush=True)
            failed = failed or bool(counts["failed"])
    return 1 if failed else 0


def run_with(python: str, arguments: list[str]) -> int:
    """Run this program in the environment of another Python, made if there is none."""
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    release = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    directory = ENVIRONMENTS / f"python-{release}"
    if not (directory / ".ready").exists():
        make = [str(ROOT / "scripts" / "venv.sh"), str(directory), "dev"]
        subprocess.run(make, cwd=ROOT, env=os.environ | {"PYTHON": python}, check=True)
        (directory / ".ready").touch()
    program = [str(directory / "bin" / "python"), __file__]
    return subprocess.run([*program, *arguments], cwd=ROOT, check=False).returncode


def environment_of(version: SparkVersion) -> Path:
    """The Python with this release of Spark: this one, or one that has all but PySpark from it."""
    if version is current() and pyspark.__version__ == version.tested:
        return Path(sys.executable)
    return spark_environment(version, ENVIRONMENTS)


def suites_of(version: SparkVersion) -> list[str]:
    """The suites about what a release has, and what Volley runs there."""
    left_out = set()
    if not version.knows_python_workers:
        left_out.add("functions")
    if not version.has_connect_server:
        left_out.add("connect")
    return [suite for suite in SUITES if suite not in left_out]


def record(version: SparkVersion, suite: str, counts: dict[str, int]) -> None:
    """Add what a suite found. The file is read again: other releases may run at the same time."""
    runs: list[dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    # What another patch release did says nothing about this one.
    runs = [run for run in runs if run["pyspark"] in {known.tested for known in VERSIONS}]
    where = {"pyspark": version.tested, "python": python_release(), "java": java_release()}
    found = next((run for run in runs if run.items() >= where.items()), None)
    if found is None:
        found = {**where, "suites": {}}
        runs.append(found)
    found["suites"][suite] = counts
    runs.sort(key=lambda run: [tuple(map(int, run[key].split("."))) for key in where])
    RESULTS.write_text(json.dumps(runs, indent=2, sort_keys=True) + "\n")


def python_release() -> str:
    return ".".join(platform.python_version_tuple()[:2])


@cache
def java_release() -> str:
    """The major version of the Java that Spark starts."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    found = re.search(r'version "(\d+)', said)
    return found[1] if found else "unknown"


def run_suite(python: Path, paths: list[str], jobs: str, sample: int) -> dict[str, int]:
    """Run tests and count them, and the queries that they gave to Volley. `sample`: only one in so many tests."""
    with tempfile.TemporaryDirectory(prefix="volley-versions-") as name:
        report, state = Path(name) / "report.xml", Path(name) / "state"
        # The tests keep the history of their queries here.
        environment = os.environ | {"VOLLEY_TEST_STATE": str(state), "XDG_STATE_HOME": str(state)}
        command = [
            str(python),
            "-m",
            "pytest",
            "-q",
            "-n",
            jobs,
            "--dist",
            "loadfile",
            "--no-loadscope-reorder",
            f"--sample={sample}",
        ]
        subprocess.run([*command, f"--junitxml={report}", *paths], cwd=ROOT, env=environment, check=False)
        counts = count_tests(report) | count_queries(state / "volley")
        return counts if sample == 1 else counts | {"sample": sample}


def count_tests(report: Path) -> dict[str, int]:
    if not report.exists():
        return {"tests": 0, "failed": 1, "skipped": 0}
    suite = next(xml.parse(report).getroot().iter("testsuite"))
    counts = {key: int(suite.get(key, "0")) for key in ("tests", "failures", "errors", "skipped")}
    return {
        "tests": counts["tests"],
        "failed": counts["failures"] + counts["errors"],
        "skipped": counts["skipped"],
    }


def count_queries(history: Path) -> dict[str, int]:
    engines = Counter(summary["engine"] for summary in HistoryReader(history).summaries(10_000_000))
    return {"queries": sum(engines.values()), "native": engines["native"], "mixed": engines["mixed"]}


if __name__ == "__main__":
    sys.exit(main())
