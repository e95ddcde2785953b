# SPDX-License-Identifier: Apache-2.0
"""Scans of cached frames, whose rows this process keeps: the batches are read where they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from datafusion import DataFrame

from volley.batches import make_batch
from volley.errors import QueryError
from volley.frame_cache.store import frame_cache
from volley.lower.scope import Scope, arrow_schema, distinct
from volley.plan.nodes import CachedRows


def lower_cached_rows(node: CachedRows, scope: Scope) -> DataFrame:
    """The rows, divided over the streams of the plan."""
    rows = frame_cache().find(node.frame)
    if rows is None:
        raise QueryError("the rows of a cached frame were dropped before they were read.")
    if not node.output:
        # DataFusion does not accept a table without columns.
        return scope.arrow(pa.table({"row": pa.nulls(rows.rows)})).select()
    if not rows.batches:
        return scope.arrow(arrow_schema(node.output).empty_table())
    return scope.batches([list(select_columns(node, part)) for part in rows.divide(scope.streams)])


def select_columns(node: CachedRows, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The columns that a scan reads of a frame, none of them twice."""
    schema = arrow_schema(node.output)
    position = {attribute.id: place for attribute, place in zip(node.output, node.columns, strict=True)}
    places = [position[attribute.id] for attribute in distinct(node.output)]
    for batch in batches:
        yield make_batch([batch.column(place) for place in places], schema, batch.num_rows)
