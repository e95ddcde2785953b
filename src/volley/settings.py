# SPDX-License-Identifier: Apache-2.0
"""Options as a Spark session has them."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from volley.config import PREFIX, read_enabled

ENABLED = PREFIX + "enabled"
SEAM = "_volley_seam"
"""An attribute of the methods of PySpark that Volley has wrapped in this process."""


def settings(spark: SparkSession) -> dict[str, str]:
    """Volley's options as this session has them."""
    return {key: value for key, value in explicit_settings(spark).items() if key.startswith(PREFIX)}


def explicit_settings(spark: SparkSession) -> dict[str, str]:
    """Every key that somebody has set on this session. One call: a Java map costs several an entry."""
    separator = "\x01"
    text = spark._jsparkSession.conf().getAll().mkString(separator)
    pairs = (entry.partition(" -> ") for entry in text.split(separator))
    return {key: value for key, _, value in pairs}


def switch(spark: SparkSession) -> bool | None:
    """`spark.volley.enabled` of this session; None where nobody has set it. ConfigError when it is no boolean."""
    text = spark.conf.get(ENABLED, None)
    return None if text is None else read_enabled(str(text))


def is_active(spark: SparkSession) -> bool:
    """Whether Volley sees this session's actions and is on."""
    return hasattr(ClassicDataFrame.collect, SEAM) and switch(spark) is True
