# SPDX-License-Identifier: Apache-2.0
"""Spark 4.0: writers run their commands at once, data sources get no filters, binary values are bytearrays, and
PySpark's daemon listens on a port."""

from __future__ import annotations

from dataclasses import replace

from volley.spark_versions.spark_4_1 import SPARK_4_1

SPARK_4_0 = replace(
    SPARK_4_1,
    release="4.0",
    tested="4.0.5",
    has_binary_option=False,
    has_source_filters=False,
    converts_without_pandas=False,
    worker_reads_barrier=True,
    groups_are_streams=False,
    python_daemon_has_path=False,
    reads_zstd_text=False,
    has_writer_commands=False,
)
