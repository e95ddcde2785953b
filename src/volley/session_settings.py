# SPDX-License-Identifier: Apache-2.0
"""Reads the options that are set on a Spark session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from volley.config import read_enabled
from volley.connect.local_server import classic_session
from volley.membership import resolve_option
from volley.options import PREFIX, SHUFFLE_SERVERS
from volley.spark_versions.classic import ClassicDataFrame

ENABLED = PREFIX + "enabled"
SEAM = "_volley_seam"
"""An attribute of the methods of PySpark that Volley has wrapped in this process."""


def read_settings(spark: SparkSession) -> dict[str, str]:
    """Volley's options that are set on this session, with the current shuffle servers.

    A query uses them until it ends: its driver and its workers must agree on the servers.
    """
    found = {key: value for key, value in read_explicit_settings(spark).items() if key.startswith(PREFIX)}
    return resolve_option(found, SHUFFLE_SERVERS)


def read_explicit_settings(spark: SparkSession) -> dict[str, str]:
    """All options that are set on this session, in one call to the JVM: a Java map costs several per entry."""
    separator = "\x01"
    # PySpark keeps the JVM's configuration of a session.
    text = classic_session(spark).conf._jconf.getAll().mkString(separator)
    pairs = (entry.partition(" -> ") for entry in text.split(separator))
    return {key: value for key, _, value in pairs}


def read_enabled_option(spark: SparkSession) -> bool | None:
    """`spark.volley.enabled` of this session; None if not set. ConfigError if it is not a boolean."""
    text = spark.conf.get(ENABLED, None)
    return None if text is None else read_enabled(str(text))


def is_active(spark: SparkSession) -> bool:
    """Whether Volley is enabled in this process and for this session."""
    return hasattr(ClassicDataFrame.collect, SEAM) and read_enabled_option(spark) is True
