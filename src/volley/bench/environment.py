"""On what a benchmark ran: figures without it cannot be compared."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

PACKAGES = ("volley-spark", "pyspark", "datafusion", "pyarrow")


def environment(spark: SparkSession, master: str, cores: int, settings: Mapping[str, str]) -> dict[str, Any]:
    return {
        "master": master,
        "cores": cores,
        "settings": dict(settings),
        "machine_cores": os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "processor": processor(),
        "python": platform.python_version(),
        "java": _java_version(spark),
        "versions": {package: metadata.version(package) for package in PACKAGES},
    }


def _java_version(spark: SparkSession) -> str:
    jvm: Any = spark.sparkContext._jvm
    return str(jvm.java.lang.System.getProperty("java.version"))


def memory_bytes() -> int:
    """What this process may use: the machine's memory, or the control group's limit when that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(limit).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdecimal():
            total = min(total, int(text))
    return total


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
