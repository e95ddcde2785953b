# SPDX-License-Identifier: Apache-2.0
"""The Spark transport keeps the contract of transports, on executors of a real SparkContext."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from volley.config import Config
from volley.ids import AttemptId
from volley.rpc.control import Pushed
from volley.testing.contracts import TransportContract
from volley.transport.base import IngestEndpoint, Transport
from volley.transport.spark import Application, SparkTransport, shared_application


class TestSparkTransport(TransportContract):
    streams_results = False

    @pytest.fixture
    def shared(self, spark_session: SparkSession) -> Application:
        return shared_application(spark_session.sparkContext, Config.read({}))

    @pytest.fixture
    def make_transport(self, shared: Application) -> Callable[[int], Transport]:
        def make(workers: int) -> Transport:
            assert workers == shared.context.defaultParallelism
            self.application = shared
            return SparkTransport(shared)

        return make

    def push(self, endpoint: IngestEndpoint, attempt: AttemptId, batches: Sequence[pa.RecordBatch]) -> Pushed:
        """In a task of Spark: rows go to the sidecar of its executor."""

        def push(given: Any) -> Any:
            yield endpoint.push(attempt, 2, batches[0].schema, given)

        (pushed,) = self.application.context.parallelize(batches, 1).mapPartitions(push).collect()
        assert isinstance(pushed, Pushed)
        return pushed
