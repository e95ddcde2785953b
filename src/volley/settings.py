# SPDX-License-Identifier: Apache-2.0
"""Options as a Spark session has them."""

from __future__ import annotations

from pyspark.sql import SparkSession

from volley.config import PREFIX


def settings(spark: SparkSession) -> dict[str, str]:
    """Volley's options as this session has them."""
    return {key: value for key, value in explicit_settings(spark).items() if key.startswith(PREFIX)}


def explicit_settings(spark: SparkSession) -> dict[str, str]:
    """Every key that somebody has set on this session. One call: a Java map costs several an entry."""
    separator = "\x01"
    text = spark._jsparkSession.conf().getAll().mkString(separator)
    pairs = (entry.partition(" -> ") for entry in text.split(separator))
    return {key: value for key, _, value in pairs}
