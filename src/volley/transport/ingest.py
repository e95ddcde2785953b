# SPDX-License-Identifier: Apache-2.0
"""Pushes rows of Spark's tasks over Flight: to one of the worker daemons, or to the sidecar of the task's executor."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from volley.errors import CrossingError, QueryError
from volley.ids import AttemptId
from volley.rpc.client import Client
from volley.rpc.codec import decode, encode
from volley.rpc.control import AskHealth, Health, Push, Pushed, RegisterWorker
from volley.security import Credentials, Security
from volley.shuffle.session_options import Options
from volley.transport.spark_task import own_sidecar_address

_CALL_SECONDS = 5.0


@dataclass(frozen=True)
class FlightIngest:
    """An `IngestEndpoint`: the worker daemons at `addresses`, which hold the rows for `driver`."""

    addresses: tuple[str, ...]
    driver: str
    credentials: Credentials
    stall_seconds: float
    settings: Options = ()

    def push(
        self, attempt: AttemptId, partitions: int, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> Pushed:
        security = self.credentials.read()
        address = self.choose(security, attempt.task.task)
        push = Push(self.driver, attempt, partitions, self.settings)
        return _push(address, security, self.stall_seconds, push, schema, batches)

    def choose(self, security: Security, turn: int) -> str:
        """The next worker that answers, beginning with number `turn`."""
        problem = ""
        for number in range(len(self.addresses)):
            address = self.addresses[(turn + number) % len(self.addresses)]
            with Client(address, security, timeout_seconds=_CALL_SECONDS) as worker:
                try:
                    worker.call("health", AskHealth(), Health)
                    return address
                except QueryError as error:
                    problem = error.message
        raise CrossingError(f"none of {', '.join(self.addresses)} answers: {problem}")


@dataclass(frozen=True)
class SidecarIngest:
    """An `IngestEndpoint`: the sidecar of the task's own executor.

    `sidecars` is the broadcast of the sidecars' settings, `control` the address of the driver.
    """

    sidecars: Any
    control: str
    credentials: Credentials
    stall_seconds: float

    def push(
        self, attempt: AttemptId, partitions: int, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> Pushed:
        security = self.credentials.read()
        address = own_sidecar_address(self.sidecars)
        # Register the sidecar now, or it would not be told when the query is over.
        with (
            suppress(QueryError),
            Client(self.control, security, role="driver", timeout_seconds=_CALL_SECONDS) as driver,
        ):
            driver.call("register", RegisterWorker(address))
        return _push(address, security, self.stall_seconds, Push("", attempt, partitions), schema, batches)


def _push(
    address: str,
    security: Security,
    stall_seconds: float,
    push: Push,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
) -> Pushed:
    client = security.connect(address, hang_seconds=stall_seconds)
    try:
        writer, reader = client.do_put(flight.FlightDescriptor.for_command(encode(push)), schema)
        with writer:
            for batch in batches:
                writer.write_batch(batch)
            writer.done_writing()
            return decode(reader.read().to_pybytes(), Pushed)
    finally:
        client.close()
