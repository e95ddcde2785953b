# SPDX-License-Identifier: Apache-2.0
"""Describes the environment of a benchmark, without which figures cannot be compared."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from volley.process.machine import available_memory_bytes

PACKAGES = ("volley-spark", "pyspark", "datafusion", "pyarrow")


def environment(
    spark: SparkSession | None, master: str, cores: int, settings: Mapping[str, str]
) -> dict[str, Any]:
    """Without a session the version of Java is not known."""
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "master": master,
        "cores": cores,
        "settings": dict(settings),
        "machine_cores": os.cpu_count(),
        "memory_bytes": available_memory_bytes(),
        "processor": processor(),
        "python": platform.python_version(),
        "java": _java_version(spark) if spark else None,
        "versions": {package: metadata.version(package) for package in PACKAGES},
    }


def _java_version(spark: SparkSession) -> str:
    jvm: Any = spark.sparkContext._jvm
    return str(jvm.java.lang.System.getProperty("java.version"))


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
