# SPDX-License-Identifier: Apache-2.0
"""Spark 4.0: writers run their commands at once, data sources get no filters, and binary values are bytearrays."""

from __future__ import annotations

from dataclasses import replace

from volley.spark_versions.spark_4_1 import SPARK_4_1

SPARK_4_0 = replace(
    SPARK_4_1,
    release="4.0",
    tested="4.0.5",
    has_binary_option=False,
    has_source_filters=False,
    reads_zstd_text=False,
    has_writer_commands=False,
)
