# SPDX-License-Identifier: Apache-2.0
"""Sessions for tests, with settings that are restored afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from volley.session_settings import read_explicit_settings


@contextmanager
def conf(spark: SparkSession, settings: Mapping[str, str | None]) -> Iterator[SparkSession]:
    """Apply `settings` for the duration of a block (None unsets a key), and restore them afterwards."""
    before = {key: spark.conf.get(key, None) for key in settings if _is_set(spark, key)}
    try:
        for key, value in settings.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)
        yield spark
    finally:
        for key in settings:
            previous = before.get(key)
            if previous is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, previous)


@contextmanager
def restore_conf(spark: SparkSession) -> Iterator[SparkSession]:
    """Restore the session's configuration after a block."""
    before = read_explicit_settings(spark)
    try:
        yield spark
    finally:
        for key, value in read_explicit_settings(spark).items():
            if before.get(key) == value:
                continue
            # Static options can be set again through a builder, without effect, but cannot be unset.
            with suppress(AnalysisException):
                if key not in before:
                    spark.conf.unset(key)
                else:
                    spark.conf.set(key, before[key])
        for key in before.keys() - read_explicit_settings(spark).keys():
            spark.conf.set(key, before[key])


def _is_set(spark: SparkSession, key: str) -> bool:
    return bool(spark._jsparkSession.conf().getOption(key).isDefined())
