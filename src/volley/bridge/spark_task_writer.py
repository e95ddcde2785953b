# SPDX-License-Identifier: Apache-2.0
"""Pushes rows from Spark's Python workers, as Arrow batches, into the store of a Volley worker.

    Spark's task      its rows, batch by batch   ->   a worker that the transport chooses (IngestEndpoint)
    the worker        where they are             ->   the task, whose only row that is
    Spark             the row of the attempt that counts   ->   the driver, which takes no others

Rows of attempts that do not count are freed with the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext

from volley.batches import make_batch
from volley.errors import CrossingError, VolleyError
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.rpc.codec import decode, encode
from volley.rpc.control import Pushed
from volley.transport.base import IngestEndpoint

SCHEMA = "pushed binary"


def make_push_function(
    ingest_endpoint: IngestEndpoint,
    query: QueryId,
    partitions: int,
    places: Sequence[int],
    schema: pa.Schema,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: pushes the columns at `places` of a task's batches, under `schema`. Returns one `Pushed`."""

    def typed(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch.column(place).cast(field.type) for place, field in zip(places, schema, strict=True)]
        return make_batch(columns, schema, batch.num_rows)

    def push(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches, None)
        if first is None:
            return
        try:
            rows = map(typed, chain([first], batches))
            pushed = _pushed(ingest_endpoint, query, partitions, schema, rows)
        except (VolleyError, OSError, pa.ArrowException) as error:
            raise CrossingError(f"rows of Spark cannot be handed over: {error}") from error
        yield pa.record_batch({"pushed": pa.array([encode(pushed)], pa.binary())})

    return push


def read_pushed(batches: list[pa.RecordBatch]) -> list[Pushed]:
    """Decode the rows that such tasks returned."""
    return [decode(value, Pushed) for batch in batches for value in batch.column(0).to_pylist()]


def _pushed(
    ingest_endpoint: IngestEndpoint,
    query: QueryId,
    partitions: int,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
) -> Pushed:
    context = TaskContext.get()
    assert context is not None, "this runs in a task of Spark's"
    # Spark's attempt ids are unique, and ours are never retried, so a store never has to choose between attempts.
    attempt = AttemptId(TaskId(StageId(query, 0), context.taskAttemptId()), 0)
    rows = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in batches:
            rows += batch.num_rows
            yield batch

    pushed = ingest_endpoint.push(attempt, partitions, schema, counted())
    if sum(block.rows for block in pushed.blocks) != rows:
        raise CrossingError(f"{pushed.holder} has not taken all of {rows} rows.")
    return pushed
