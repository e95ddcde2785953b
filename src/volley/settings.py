# SPDX-License-Identifier: Apache-2.0
"""Reads the options that are set on a Spark session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from volley.config import PREFIX


def settings(spark: SparkSession) -> dict[str, str]:
    """Volley's options that are set on this session."""
    return {key: value for key, value in explicit_settings(spark).items() if key.startswith(PREFIX)}


def explicit_settings(spark: SparkSession) -> dict[str, str]:
    """All options that are set on this session, in one call to the JVM: a Java map costs several per entry."""
    separator = "\x01"
    text = spark._jsparkSession.conf().getAll().mkString(separator)
    pairs = (entry.partition(" -> ") for entry in text.split(separator))
    return {key: value for key, _, value in pairs}
