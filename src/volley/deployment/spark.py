# SPDX-License-Identifier: Apache-2.0
"""Sidecars inside the executors of the session's own Spark."""

from __future__ import annotations

from contextlib import ExitStack

from pyspark.sql import SparkSession

from volley.bridge.ingestion import IngestTarget
from volley.bridge.spark_task_reader import Access
from volley.config import Config
from volley.deployment.base import absence_seconds, open_ingest, shared_store
from volley.shuffle.config import ShuffleConfig
from volley.transport.base import Transport
from volley.transport.spark import Application, SparkTransport, shared_application


class SparkDeployment:
    """Each stage is a job of the session's SparkContext."""

    is_remote = True
    takes_frames = False
    serves_spark = True

    def __init__(self, spark: SparkSession, config: Config) -> None:
        self._spark = spark
        self._config = config

    @property
    def runs_python(self) -> bool:
        return self._config.python_functions

    def find_jvm_problem(self, versions: str) -> str:
        # A sidecar has the Java and the jars of its executor, which runs tasks of this driver anyway.
        return ""

    @property
    def absence_seconds(self) -> float:
        return absence_seconds(self._config)

    def planned_workers(self) -> int:
        return int(self._spark.sparkContext.defaultParallelism)

    def open(self) -> SparkTransport:
        return SparkTransport(self._application(), shared_store(self._config))

    def open_for_spark(self, resources: ExitStack) -> tuple[Transport, Access]:
        return self.open(), self._access()

    def ingest(self) -> IngestTarget:
        return open_ingest(self.open())

    def _access(self) -> Access:
        return Access(self._application().credentials, ShuffleConfig.of(self._config))

    def _application(self) -> Application:
        return shared_application(self._spark.sparkContext, self._config)
