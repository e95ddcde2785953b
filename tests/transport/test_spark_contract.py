# SPDX-License-Identifier: Apache-2.0
"""The Spark transport keeps the contract of transports, on executors of a real SparkContext."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from pyspark.sql import SparkSession

from volley.config import Config
from volley.rpc.client import Client
from volley.rpc.codec import decode, encode
from volley.rpc.control import Push, Pushed, RegisterWorker
from volley.security import Security
from volley.testing.contracts import TransportContract
from volley.transport.base import Transport
from volley.transport.ingest import IngestEndpoint
from volley.transport.spark import Application, SparkTransport, shared_application
from volley.transport.spark_task import own_sidecar_address


class TestSparkTransport(TransportContract):
    streams_results = False

    @pytest.fixture
    def shared(self, spark_session: SparkSession) -> Application:
        return shared_application(spark_session.sparkContext, Config.read({}), {})

    @pytest.fixture
    def make_transport(self, shared: Application) -> Callable[[int], Transport]:
        def make(workers: int) -> Transport:
            assert workers == shared.context.defaultParallelism
            self.application = shared
            return SparkTransport(shared)

        return make

    def put(self, endpoint: IngestEndpoint, push: Push, batch: pa.RecordBatch) -> Pushed:
        shared, control, token = endpoint.sidecars, endpoint.control, self.application.security.token
        command = encode(push)

        def give(batches: Any) -> Any:
            security = Security(token)
            address = own_sidecar_address(shared)
            with Client(control, security, role="driver") as driver:
                driver.call("register", RegisterWorker(address))
            with Client(address, security) as sidecar:
                for one in batches:
                    descriptor = flight.FlightDescriptor.for_command(command)
                    writer, reader = sidecar.flight.do_put(descriptor, one.schema)
                    with writer:
                        writer.write_batch(one)
                        writer.done_writing()
                        yield bytes(reader.read().to_pybytes())

        (pushed,) = self.application.context.parallelize([batch], 1).mapPartitions(give).collect()
        return decode(pushed, Pushed)
