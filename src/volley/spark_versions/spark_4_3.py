# SPDX-License-Identifier: Apache-2.0
"""Spark 4.3, the newest release that Volley is tested with."""

from __future__ import annotations

from volley.spark_versions.base import SparkVersion

SPARK_4_3 = SparkVersion(release="4.3", tested="4.3.0")
