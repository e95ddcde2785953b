# SPDX-License-Identifier: Apache-2.0
"""Checks at `volley.enable` that Spark, Java and the packages are versions that Volley was tested with."""

from __future__ import annotations

import pyspark
from pyspark.sql import SparkSession

from volley.call_site import warn_at_call_site
from volley.config import Config
from volley.session.requirements import (
    check_packages,
    describe,
    install_command,
    java_problem,
    wrong_packages,
)
from volley.spark_versions.registry import check_session, current


def check_versions(spark: SparkSession, config: Config) -> None:
    """Raise VersionNotSupported if rows could be wrong; warn if only some actions may fail."""
    check_session(pyspark.__version__, spark.version, config.allow_untested_spark)
    check_packages()
    # What is left is optional.
    if wrong := wrong_packages():
        warn_at_call_site(f"{describe(wrong)}. Run: {install_command(wrong)}")
    jvm = spark._jvm
    assert jvm is not None
    problem = java_problem(str(jvm.java.lang.System.getProperty("java.specification.version")), current())
    if problem is not None:
        warn_at_call_site(f"{problem}. Install Java 17 and let JAVA_HOME point to it.")
