# SPDX-License-Identifier: Apache-2.0
"""Where the driver of a SparkContext listens, and who can reach it there."""

from __future__ import annotations

from pyspark import SparkContext


def driver_hosts(context: SparkContext) -> tuple[str, str]:
    """The host that the driver binds to, and the host that executors connect to. The same as for Spark's services."""
    if runs_locally(context):
        return "127.0.0.1", "127.0.0.1"
    conf = context.getConf()
    host = conf.get("spark.driver.host") or "127.0.0.1"
    return conf.get("spark.driver.bindAddress") or host, host


def runs_locally(context: SparkContext) -> bool:
    """Whether all Spark tasks run on the driver's machine."""
    return str(context.master).startswith("local")
