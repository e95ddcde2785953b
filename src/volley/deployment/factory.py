# SPDX-License-Identifier: Apache-2.0
"""Chooses the deployment of a session from its options. Only this package reads `spark.volley.transport`.

A deployment is imported when it is chosen: a session that runs in its own process loads neither Flight nor daemons.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from volley.config import Config
from volley.deployment.base import Deployment


def choose_deployment(spark: SparkSession, config: Config) -> Deployment:
    """ConfigError if it names a plug-in that cannot be loaded."""
    match config.transport:
        case "local":
            from volley.deployment.local import LocalDeployment

            return LocalDeployment(spark.sparkContext, config)
        case "flight":
            from volley.deployment.flight import FlightDeployment

            return FlightDeployment(config)
        case "spark":
            from volley.deployment.spark import SparkDeployment

            return SparkDeployment(spark, config)
        case plugin:
            from volley.deployment.plugin import PluginDeployment

            return PluginDeployment(plugin, config)
