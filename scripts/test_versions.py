#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the suites with every release of Spark that Volley is tested with.

    make test-versions VERSIONS="4.0 4.1" SUITES="tpch operators"

Each release has an environment of its own under .venvs, made from the package registry when it is first needed. What
the suites found is written to docs/versions.json: tests, and how many of their queries ran natively.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections import Counter
from pathlib import Path
from typing import Any

from volley.observe.history_store import HistoryReader
from volley.spark_versions.base import SparkVersion
from volley.spark_versions.registry import VERSIONS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "versions.json"

EXPRESSIONS = [
    f"tests/lower/test_{name}.py"
    for name in ("expressions", "expressions_in_queries", "expressions_random", "functions")
]
OPERATORS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "lower").glob("test_*.py"))
SUITES: dict[str, list[str]] = {
    "tpch": ["tests/api/test_tpch.py"],
    "operators": [path for path in OPERATORS if path not in EXPRESSIONS],
    "expressions": [*EXPRESSIONS, "tests/jvm/test_jvm_expressions.py"],
    "formats": sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "formats").glob("test_*.py")),
    "session": [
        f"tests/api/test_{name}.py" for name in ("session", "switch", "rows", "outcomes", "programs")
    ],
    "writes": ["tests/bridge/test_writes.py", "tests/bridge/test_table_writes.py"],
    "mixed": ["tests/bridge/test_mixed.py"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the suites with several releases of Spark.")
    releases = [version.release for version in VERSIONS]
    parser.add_argument("--release", action="append", choices=releases, help="default: all")
    parser.add_argument("--suite", action="append", choices=list(SUITES), help="default: all")
    parser.add_argument("--jobs", default="2", help="test processes")
    chosen = parser.parse_args()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    failed = False
    for version in VERSIONS:
        if chosen.release and version.release not in chosen.release:
            continue
        python = make_environment(version)
        found = results.setdefault(version.release, {})
        found["pyspark"] = version.tested
        for suite in chosen.suite or SUITES:
            print(f"Spark {version.tested}: {suite} ...", flush=True)
            counts = run_suite(python, SUITES[suite], chosen.jobs)
            found.setdefault("suites", {})[suite] = counts
            print(f"  {counts}", flush=True)
            failed = failed or bool(counts["failed"])
            RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
    return 1 if failed else 0


def make_environment(version: SparkVersion) -> Path:
    """The Python of an environment with this release, Volley and what its tests need."""
    directory = ROOT / ".venvs" / f"spark-{version.release}"
    ready, python = directory / ".ready", directory / "bin" / "python"
    wanted = f"pyspark=={version.tested}"
    if not ready.exists() or ready.read_text() != wanted:
        print(f"Creating {directory.relative_to(ROOT)} with {wanted} (a minute or two) ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "--editable", ".[dev]", wanted], cwd=ROOT, check=True)
        ready.write_text(wanted)
    return python


def run_suite(python: Path, paths: list[str], jobs: str) -> dict[str, int]:
    """Run tests and count them, and the queries that they gave to Volley."""
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
        ]
        subprocess.run([*command, f"--junitxml={report}", *paths], cwd=ROOT, env=environment, check=False)
        return count_tests(report) | count_queries(state / "volley")


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
