# SPDX-License-Identifier: Apache-2.0
"""What runs in Spark's Python workers to hand rows over: Arrow batches, into the store of a worker.

    Spark's task      its rows, batch by batch   ->   a worker daemon, or the sidecar of its executor
    the worker        where they are             ->   the task, whose only row that is
    Spark             the row of the attempt that counts   ->   the driver, which takes no others

What attempts that do not count have left is freed with the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain

import pyarrow as pa
import pyarrow.flight as flight
from pyspark import TaskContext

from volley.batches import make_batch
from volley.bridge.reading import Access
from volley.errors import CrossingError, QueryError, VolleyError
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.rpc.client import Client
from volley.rpc.codec import decode, encode
from volley.rpc.control import AskHealth, Health, Push, Pushed, RegisterWorker
from volley.security import Security
from volley.transport.ingest import IngestEndpoint
from volley.transport.spark_task import own_sidecar_address

SCHEMA = "pushed binary"
_CALL_SECONDS = 5.0


def pusher(
    access: Access,
    ingest_endpoint: IngestEndpoint,
    query: QueryId,
    partitions: int,
    places: Sequence[int],
    schema: pa.Schema,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: gives away the batches of a task, of each column in `schema` that at its place, and gives one
    `Pushed` for them."""

    def typed(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch.column(place).cast(field.type) for place, field in zip(places, schema, strict=True)]
        return make_batch(columns, schema, batch.num_rows)

    def push(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches, None)
        if first is None:
            return
        try:
            pushed = _pushed(
                access, ingest_endpoint, query, partitions, schema, map(typed, chain([first], batches))
            )
        except (VolleyError, OSError, pa.ArrowException) as error:
            raise CrossingError(f"rows of Spark cannot be handed over: {error}") from error
        yield pa.record_batch({"pushed": pa.array([encode(pushed)], pa.binary())})

    return push


def pushed_of(batches: list[pa.RecordBatch]) -> list[Pushed]:
    """What such tasks said."""
    return [decode(value, Pushed) for batch in batches for value in batch.column(0).to_pylist()]


def _pushed(
    access: Access,
    ingest_endpoint: IngestEndpoint,
    query: QueryId,
    partitions: int,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
) -> Pushed:
    context = TaskContext.get()
    assert context is not None, "this runs in a task of Spark's"
    # Spark numbers all attempts of all its tasks. None of ours is tried again, so that a store never has to choose.
    attempt = AttemptId(TaskId(StageId(query, 0), context.taskAttemptId()), 0)
    security = access.security
    address = ingest_address(security, ingest_endpoint, context.partitionId() + context.attemptNumber())
    client = security.connect(address, hang_seconds=access.store.retry.stall_seconds)
    rows = 0
    try:
        command = encode(Push(ingest_endpoint.driver, attempt, partitions))
        writer, reader = client.do_put(flight.FlightDescriptor.for_command(command), schema)
        with writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
            writer.done_writing()
            pushed = decode(reader.read().to_pybytes(), Pushed)
    finally:
        client.close()
    if sum(block.rows for block in pushed.blocks) != rows:
        raise CrossingError(f"{address} has not taken all of {rows} rows.")
    return pushed


def ingest_address(security: Security, ingest_endpoint: IngestEndpoint, turn: int) -> str:
    """The sidecar beside this task, or the next of the workers that answers."""
    if ingest_endpoint.sidecars is not None:
        address = own_sidecar_address(ingest_endpoint.sidecars)
        # Otherwise it is met when it runs something, and until then nobody tells it that a query is over.
        with (
            suppress(QueryError),
            Client(ingest_endpoint.control, security, role="driver", timeout_seconds=_CALL_SECONDS) as driver,
        ):
            driver.call("register", RegisterWorker(address))
        return address
    problem = ""
    for number in range(len(ingest_endpoint.addresses)):
        address = ingest_endpoint.addresses[(turn + number) % len(ingest_endpoint.addresses)]
        with Client(address, security, timeout_seconds=_CALL_SECONDS) as worker:
            try:
                worker.call("health", AskHealth(), Health)
                return address
            except QueryError as error:
                problem = error.message
    raise CrossingError(f"none of {', '.join(ingest_endpoint.addresses)} answers: {problem}")
