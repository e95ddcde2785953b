# SPDX-License-Identifier: Apache-2.0
"""Computes the rows of cached frames when a query first reads them, and drops those that Spark no longer caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from volley.batches import make_batch
from volley.bridge.boundary import EngineBoundary
from volley.bridge.frame_scans import MAX_SPARK_BYTES, CachedFrames, FrameFill, too_large
from volley.bridge.frame_sender import FrameSender
from volley.bridge.native_to_spark import SparkPart
from volley.bridge.remote_frames import RemoteFrames
from volley.errors import CaptureError, CrossingError, VolleyError
from volley.frame_cache.cached_batches import CachedBatches
from volley.frame_cache.store import FrameLabel, FrameStorage, frame_cache
from volley.plan.cached_frames import registered_frames
from volley.plan.nodes import CachedRows, Node, transform
from volley.plan.reader import describe_error
from volley.plan.subqueries import with_subqueries
from volley.plan.types import to_arrow

Run = Callable[[Node], AbstractContextManager[Iterator[pa.RecordBatch]]]
"""Runs a native plan. Columns of its batches correspond to its output by position."""


class FrameLoader:
    """Makes sure that the rows of cached frames exist before a plan reads them.

    Frames may take `budget_bytes` of memory, and files of `directory` beyond that. Where workers are other processes,
    rows are `stored` there, or `sent` to them.
    """

    def __init__(
        self,
        spark: SparkSession,
        frames: CachedFrames,
        run: Run,
        *,
        budget_bytes: Callable[[], int],
        directory: Path,
        sent: FrameSender | None,
        stored: RemoteFrames | None = None,
    ) -> None:
        self._spark = spark
        self._frames = frames
        self._run = run
        self._budget_bytes = budget_bytes
        self._directory = directory
        self._sent = sent
        self._stored = stored

    def load(self, plan: Node) -> Node:
        """The plan over cached rows. Frames that are not cached yet are computed now."""
        if not self._frames.are_read:
            return plan

        def change(node: Node) -> Node:
            return self._load(node) if isinstance(node, CachedRows) else node

        return with_subqueries(transform(plan, change), self.load)

    def _load(self, node: CachedRows) -> Node:
        if self._stored is not None and self._stored.can_store(node):
            return self._stored.read(node, _label)
        rows = self._frames.held.get(node.frame)
        if rows is not None:
            frame_cache().count_hit(node.frame)
        else:
            rows = self._frames.held[node.frame] = self._fill(self._frames.fills[node.frame])
        if self._sent is not None:
            return self._sent.send(node, rows)
        return replace(node, size_bytes=rows.column_bytes(node.columns))

    def _fill(self, fill: FrameFill) -> CachedBatches:
        schema = pa.schema(
            [pa.field(f"c{place}", to_arrow(column.type)) for place, column in enumerate(fill.output)]
        )
        frame = fill.frame
        storage = FrameStorage(frame.memory, frame.disk, self._budget_bytes(), self._directory)
        compute = partial(self._compute, fill, schema)
        try:
            return frame_cache().fill(
                frame.name, schema, storage, compute, places=fill.places, label=_label(fill)
            )
        except VolleyError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise CrossingError(f"the rows of a cached frame cannot be kept: {error}") from error

    def _compute(self, fill: FrameFill, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if fill.plan is None:
            yield from self._read_from_spark(fill)
            return
        with self._run(self.load(fill.plan)) as batches:
            for batch in batches:
                yield make_batch(batch.columns, schema, batch.num_rows)

    def _read_from_spark(self, fill: FrameFill) -> list[pa.RecordBatch]:
        """The rows of Spark's own cache, which Spark fills first if necessary."""
        part = SparkPart(self._spark, fill.relation, ())
        boundary = EngineBoundary(_start_nothing)
        try:
            if fill.frame.spark_bytes is None:
                part.frame(boundary)._jdf.count()
            spark_bytes = int(str(fill.relation.computeStats().sizeInBytes()))
            if spark_bytes <= MAX_SPARK_BYTES:
                return part.batches(boundary)
            problem = too_large(spark_bytes)
        except (PySparkException, Py4JError) as error:
            # Spark then runs the query, and the program sees Spark's own error.
            raise CrossingError(
                f"a cached frame could not be read from Spark: {describe_error(error)}"
            ) from error
        frame_cache().refuse(fill.frame.name, problem)
        raise CrossingError(f"a cached frame is left to Spark: {problem}.")


def _label(fill: FrameFill) -> FrameLabel:
    builder = fill.relation.cacheBuilder()
    table = builder.tableName()
    name = table.get() if table.isDefined() else ", ".join(column.name for column in fill.output)
    return FrameLabel(str(name), str(builder.storageLevel().description()))


def _start_nothing(plan: Node, resources: ExitStack) -> NoReturn:
    raise AssertionError("Spark scans its cache over no native rows")


def drop_uncached_frames(spark: SparkSession) -> None:
    """Free the rows of frames that Spark no longer caches."""
    cache = frame_cache()
    if cache.is_empty:
        return
    try:
        cache.retain(registered_frames(spark.sparkContext._gateway, spark._jsparkSession))
    except CaptureError:
        cache.close()
