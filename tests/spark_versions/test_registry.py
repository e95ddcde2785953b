# SPDX-License-Identifier: Apache-2.0
"""Which releases of Spark are accepted, and what the others are told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from packaging.requirements import Requirement

import volley
from helpers.projects import read_project
from volley.errors import ConfigError, VersionNotSupported
from volley.spark_versions.registry import INSTALLABLE, VERSIONS, check_session, current, find

ROOT = Path(__file__).parents[2]


def test_a_patch_release_is_that_of_its_minor_release() -> None:
    assert [
        found and found.release for found in map(find, ("3.5.9", "4.0.5", "4.1.0", "4.2.9", "4.3.0"))
    ] == [
        "3.5",
        "4.0",
        "4.1",
        "4.2",
        "4.3",
    ]
    assert find("4.3.0.dev1") is find("4.3.0-SNAPSHOT") is VERSIONS[-1]


def test_this_process_has_the_description_of_its_pyspark() -> None:
    assert pyspark.__version__.startswith(current().release)


@pytest.mark.parametrize("version", ["3.4.4", "2.4.8"])
def test_an_older_release_is_refused_even_if_untested_ones_are_allowed(version: str) -> None:
    with pytest.raises(VersionNotSupported, match=r"too old.*tested with Spark 3\.5, 4\.0, 4\.1, 4\.2, 4\.3"):
        check_session(version, version, allow_untested=True)


def test_a_newer_release_is_refused_unless_it_is_allowed() -> None:
    with pytest.raises(VersionNotSupported, match=r"3\.5, 4\.0, 4\.1, 4\.2, 4\.3.*allowUntestedSpark=true"):
        check_session("4.4.0", "4.4.0", allow_untested=False)
    check_session("4.4.0", "4.4.0", allow_untested=True)
    assert find("4.4.0") is None


def test_what_to_install_is_there_for_this_python() -> None:
    newest = INSTALLABLE[-1]
    assert newest.oldest_python <= sys.version_info[:2]
    assert newest is VERSIONS[-1] or sys.version_info < VERSIONS[-1].oldest_python
    with pytest.raises(VersionNotSupported, match=rf"pip install 'pyspark=={newest.release}\.\*'"):
        check_session("4.4.0", "4.4.0", allow_untested=False)


def test_pyspark_must_be_of_the_release_of_its_jvm() -> None:
    check_session("4.3.0", "4.3.1", allow_untested=False)
    with pytest.raises(VersionNotSupported, match=r"pip install 'pyspark==4\.1\.\*'"):
        check_session("4.3.0", "4.1.2", allow_untested=True)


def test_releases_are_in_order_and_within_what_the_package_requires() -> None:
    assert [version.release for version in VERSIONS] == sorted(version.release for version in VERSIONS)
    project = read_project(ROOT)
    requirements = {item.name: item for item in map(Requirement, project["dependencies"])}
    assert all(version.tested in requirements["pyspark"].specifier for version in VERSIONS)
    assert all(version.tested.startswith(f"{version.release}.") for version in VERSIONS)


_OLD = """
import sys, types
old = types.ModuleType("pyspark")
old.__version__ = "3.4.4"
sys.modules["pyspark"] = old
import volley
try:
    volley.enable
except volley.VolleyError as error:
    print(error)
"""


def test_an_old_pyspark_is_named_before_anything_is_imported_from_it() -> None:
    said = subprocess.run([sys.executable, "-c", _OLD], capture_output=True, text=True, check=True).stdout
    assert said.startswith("[VERSION_NOT_SUPPORTED] PySpark 3.4.4 is too old")


def test_the_option_is_read(spark: pyspark.sql.SparkSession) -> None:
    spark.conf.set("spark.volley.allowUntestedSpark", "perhaps")
    with pytest.raises(ConfigError, match="allowUntestedSpark"):
        volley.enable(spark)
