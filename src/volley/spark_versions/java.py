# SPDX-License-Identifier: Apache-2.0
"""Volley's Java sources, as each release of Spark compiles them."""

from __future__ import annotations

from importlib.resources import files

from volley.spark_versions.base import SparkVersion
from volley.spark_versions.registry import VERSIONS, current, find


def java_source(package: str, file: str, spark: str = "") -> str:
    """The source in this file of a package, for a version of Spark; by default for the installed one."""
    return adapt_source((files(package) / file).read_text("utf-8"), find(spark) or current())


def adapt_source(source: str, version: SparkVersion) -> str:
    source = source.replace(f"{VERSIONS[-1].jvm_sql_package}.", f"{version.jvm_sql_package}.")
    for text, replacement in version.java_replacements:
        source = source.replace(text, replacement)
    return source
