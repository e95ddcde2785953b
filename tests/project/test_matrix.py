# SPDX-License-Identifier: Apache-2.0
"""`pytest --transport ... --store ...` runs a suite on what was asked for, and says so when it could not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from volley.testing.deployments import STORES, TRANSPORTS

ROOT = Path(__file__).parents[2]
# TPC-H with shuffle joins and a subquery, an operator and an expression.
SUITES = (
    "tests/api/test_tpch.py",
    "tests/lower/test_operators.py",
    "tests/lower/test_expressions_in_queries.py",
)
SELECTED = (
    "(test_rows_are_sparks and three and not some and (q11 or q18))"
    " or (test_across_tasks and union) or test_errors_are_sparks_own"
)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_suite_runs_on_any_transport_and_store(transport: str, store: str) -> None:
    deployment = ("--transport", transport, "--store", store)
    command = [sys.executable, "-m", "pytest", "-q", *deployment, *SUITES, "-k", SELECTED]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout
    assert "skipped" not in result.stdout


@pytest.mark.slow
def test_an_unknown_transport_is_refused() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "--transport", "pigeon", "tests/project"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "invalid choice: 'pigeon'" in result.stderr
