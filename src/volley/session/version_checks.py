# SPDX-License-Identifier: Apache-2.0
"""Checks at `volley.enable` that Spark, Java and the packages are versions that Volley was tested with."""

from __future__ import annotations

from functools import cache

import pyspark
from pyspark.sql import SparkSession

from volley.call_site import warn_at_call_site
from volley.config import Config
from volley.errors import VersionNotSupported
from volley.session.requirements import Installed, install_command, installed_packages, java_problem
from volley.spark_versions.registry import check_session


def check_versions(spark: SparkSession, config: Config) -> None:
    """Raise VersionNotSupported if rows could be wrong; warn if only some actions may fail."""
    check_session(pyspark.__version__, spark.version, config.allow_untested_spark)
    wrong = _wrong_packages()
    required = [package for package in wrong if not package.is_optional]
    if required:
        problems = "; ".join(str(package.problem) for package in required)
        raise VersionNotSupported(f"{problems}.", hint=f"Run: {install_command(required)}")
    if wrong:
        problems = "; ".join(str(package.problem) for package in wrong)
        warn_at_call_site(f"{problems}. Run: {install_command(wrong)}")
    jvm = spark._jvm
    assert jvm is not None
    problem = java_problem(str(jvm.java.lang.System.getProperty("java.specification.version")))
    if problem is not None:
        warn_at_call_site(f"{problem}. Install Java 17 and let JAVA_HOME point to it.")


@cache
def _wrong_packages() -> tuple[Installed, ...]:
    """Cached: the packages of a running process do not change."""
    return tuple(package for package in installed_packages() if package.problem is not None)
