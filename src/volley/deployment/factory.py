# SPDX-License-Identifier: Apache-2.0
"""Which deployment the options of a session ask for. The only place that reads `spark.volley.transport`."""

from __future__ import annotations

from pyspark.sql import SparkSession

from volley.config import Config
from volley.deployment.base import Deployment
from volley.deployment.flight import FlightDeployment
from volley.deployment.local import LocalDeployment
from volley.deployment.spark import SparkDeployment


def choose_deployment(spark: SparkSession, config: Config) -> Deployment:
    match config.transport:
        case "flight":
            return FlightDeployment(config)
        case "spark":
            return SparkDeployment(spark, config)
        case _:
            return LocalDeployment(spark.sparkContext, config)
