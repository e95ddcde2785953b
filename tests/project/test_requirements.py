# SPDX-License-Identifier: Apache-2.0
"""Packages and Java of other versions than Volley was tested with are named, with what to install."""

from __future__ import annotations

import re
import subprocess
import sys

import pyspark
import pytest

from helpers.waiting import PATIENCE_SECONDS
from volley.session.requirements import inspect_packages, install_command, java_problem
from volley.spark_versions.registry import find


def test_a_package_outside_its_range_is_named_with_what_to_install() -> None:
    arrow, fusion = inspect_packages(["pyarrow<2", "datafusion>=1"])
    assert arrow.problem is not None
    assert arrow.problem.startswith("pyarrow ")
    assert "outside <2" in arrow.problem
    assert fusion.problem is None
    assert install_command([arrow]) == "pip install 'pyarrow<2'"


def test_a_missing_package_is_named_unless_it_is_optional() -> None:
    (missing,) = inspect_packages(["no-such-package>=1"])
    assert missing.problem == "no-such-package is missing"
    (optional,) = inspect_packages(["pandas<1 ; extra == 'pandas'"])
    assert optional.is_optional
    assert inspect_packages(["boto3<1 ; extra == 's3'", "pyspark<1"]) == []


def test_a_package_with_ranges_for_some_pythons_is_required() -> None:
    """Only the range for this one counts."""
    declared = ["pyarrow<2; python_version >= '3'", "pyarrow<1; python_version < '3'"]
    (arrow,) = inspect_packages(declared)
    assert not arrow.is_optional
    assert arrow.problem is not None
    assert install_command([arrow]) == "pip install 'pyarrow<2'"


@pytest.mark.parametrize(
    ("version", "spark", "ok"),
    [
        ("17", "3.5", True),
        ("17", "4.3", True),
        ("21", "4.0", True),
        ("21", "3.5", False),
        ("25", "4.2", True),
        ("25", "4.1", False),
        ("1.8", "3.5", False),
        ("11", "4.3", False),
    ],
)
def test_java_is_judged_by_its_release_and_that_of_spark(version: str, spark: str, ok: bool) -> None:
    release = find(f"{spark}.0")
    assert release is not None
    assert (java_problem(version, release) is None) is ok


_ENABLE = """
from importlib import metadata
real = metadata.version
metadata.version = lambda name: {versions!r}.get(name) or real(name)
import volley
from pyspark.sql import SparkSession
from volley.config import Config
from volley.session.version_checks import check_versions

class Session:
    version = {spark!r}

try:
    check_versions(Session(), Config.read({{}}))
except volley.VolleyError as error:
    print(error)
"""


def test_enable_refuses_packages_that_could_give_other_rows() -> None:
    program = _ENABLE.format(versions={"pyarrow": "1.0", "datafusion": "99.0"}, spark=pyspark.__version__)
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "[VERSION_NOT_SUPPORTED]" in said
    assert "datafusion 99.0 is outside" in said
    assert "pyarrow 1.0 is outside" in said
    assert "pip install 'datafusion" in said


# The package fails when it is imported, as one does that is older than what is imported from it.
_IMPORT = """
import sys
from importlib import metadata
real = metadata.version
metadata.version = lambda name: {"datafusion": "40.0"}.get(name) or real(name)
sys.modules["datafusion"] = None
"""


def test_enable_names_a_package_that_cannot_even_be_imported() -> None:
    program = f"{_IMPORT}\nimport volley\nvolley.enable"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "[VERSION_NOT_SUPPORTED] datafusion 40.0 is outside" in run.stderr
    assert "Run: pip install 'datafusion" in run.stderr


@pytest.mark.parametrize(
    "imported", [_IMPORT, _IMPORT.replace("datafusion", "pyarrow").partition("sys.modules")[0]]
)
def test_a_worker_does_not_start_with_another_version_of_a_package(imported: str) -> None:
    program = f"{imported}\nfrom volley.cli.main import main\nmain()"
    run = subprocess.run(
        [sys.executable, "-c", program, "worker", "--port", "0"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert run.returncode == 2, run.stderr
    assert re.match(r"\[VERSION_NOT_SUPPORTED\] (datafusion|pyarrow) 40.0 is outside", run.stderr)
