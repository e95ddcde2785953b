#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the suites with every release of Spark that Volley is tested with.

    make test-versions VERSIONS="4.0 4.1" SUITES="tpch operators" SAMPLE=4

Each release has an environment under .venvs, with PySpark from the package registry and all other packages of the one
that runs this. What the suites found is written to docs/versions.json: tests, and how many queries ran natively.
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
from volley.testing.spark_environments import spark_environment

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
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the suites with several releases of Spark.")
    releases = [version.release for version in VERSIONS]
    parser.add_argument("--release", action="append", choices=releases, help="default: all")
    parser.add_argument("--suite", action="append", choices=list(SUITES), help="default: all")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="one in N tests; default: all")
    parser.add_argument("--jobs", default="2", help="test processes")
    chosen = parser.parse_args()
    failed = False
    for version in VERSIONS:
        if chosen.release and version.release not in chosen.release:
            continue
        print(
            f"Spark {version.tested}: its environment, from the registry if there is none yet ...", flush=True
        )
        python = spark_environment(version, ROOT / ".venvs")
        for suite in chosen.suite or suites_of(version):
            print(f"Spark {version.tested}: {suite} ...", flush=True)
            counts = run_suite(python, SUITES[suite], chosen.jobs, chosen.sample)
            record(version, suite, counts)
            print(f"  {counts}", flush=True)
            failed = failed or bool(counts["failed"])
    return 1 if failed else 0


def suites_of(version: SparkVersion) -> list[str]:
    """The suites that say something about a release: not those of functions that Spark always calls."""
    return [suite for suite in SUITES if suite != "functions" or version.knows_python_workers]


def record(version: SparkVersion, suite: str, counts: dict[str, int]) -> None:
    """Add what a suite found. The file is read again: other releases may run at the same time."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    found = results.setdefault(version.release, {})
    if found.get("pyspark") != version.tested:
        # What another patch release did says nothing about this one.
        found.clear()
    found["pyspark"] = version.tested
    found.setdefault("suites", {})[suite] = counts
    RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")


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
