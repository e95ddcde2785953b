# SPDX-License-Identifier: Apache-2.0
"""Sends the rows of cached frames to workers in other processes: small ones with the plan, large ones to their
stores."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from volley.batches import make_batch
from volley.bridge.ingestion import Ingestion, IngestTarget, task_done
from volley.errors import CrossingError, VolleyError
from volley.frame_cache.cached_batches import CachedBatches
from volley.ids import AttemptId, StageId, TaskId
from volley.lower.cached_rows import select_columns
from volley.lower.scope import arrow_schema
from volley.plan.nodes import CachedRows, LocalRows, MaterializedInput
from volley.plan.types import to_arrow
from volley.rpc.messages import TaskDone

# Rows of Spark are numbered from zero.
_FIRST_NUMBER = 1_000_000


class FrameSender:
    """Sends frames for one query. The rows stay in the stores until `close`.

    `ingest` opens the stores of the workers. Rows of at most `max_plan_bytes` go with the plan.
    """

    def __init__(self, ingest: Callable[[], IngestTarget | None], max_plan_bytes: int) -> None:
        self.outputs: dict[int, list[TaskDone]] = {}
        """The outputs in the stores, by the number of their `MaterializedInput` in the plan."""
        self._ingestion = Ingestion(ingest)
        self._max_plan_bytes = max_plan_bytes
        self._tasks = 0

    def send(self, node: CachedRows, rows: CachedBatches) -> LocalRows | MaterializedInput:
        """A leaf that reads the same rows on the workers."""
        if rows.column_bytes(node.columns) <= self._max_plan_bytes:
            return _local_rows(node, rows)
        target = self._ingestion.open()
        if target is None:
            raise CrossingError("these workers take no rows of the driver.")
        outputs = [self._push(target, node, part) for part in rows.divide(target.partitions)]
        number = _FIRST_NUMBER + len(self.outputs)
        self.outputs[number] = outputs
        return MaterializedInput(number, len(outputs), target.partitions, node.output)

    def close(self) -> None:
        """Free the rows in the stores. Idempotent."""
        self._ingestion.close()

    def _push(self, target: IngestTarget, node: CachedRows, part: tuple[pa.RecordBatch, ...]) -> TaskDone:
        attempt = AttemptId(TaskId(StageId(target.query, 0), self._tasks), 0)
        self._tasks += 1
        schema, batches = arrow_schema(node.output), select_columns(node, part)
        try:
            pushed = target.ingest_endpoint.push(attempt, target.partitions, schema, batches)
        except (VolleyError, OSError, pa.ArrowException) as error:
            raise CrossingError(f"the rows of a cached frame cannot be sent: {error}") from error
        done = task_done(pushed)
        if done.rows != sum(batch.num_rows for batch in part):
            raise CrossingError(f"{pushed.holder} has not taken all rows of a cached frame.")
        return done


def _local_rows(node: CachedRows, rows: CachedBatches) -> LocalRows:
    schema = pa.schema([pa.field(f"c{n}", to_arrow(a.type)) for n, a in enumerate(node.output)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in rows.batches:
            columns = [batch.column(place) for place in node.columns]
            writer.write_batch(make_batch(columns, schema, batch.num_rows))
    return LocalRows(node.output, sink.getvalue().to_pybytes())
