# SPDX-License-Identifier: Apache-2.0
"""Scans of cached frames, whose rows this process keeps: the batches are read where they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from datafusion import DataFrame, col

from volley.batches import make_batch
from volley.errors import QueryError
from volley.frame_cache.cached_batches import CachedBatches
from volley.frame_cache.store import frame_cache
from volley.lower.expressions import column_name
from volley.lower.scope import Scope, arrow_schema, distinct
from volley.plan.expressions import Attribute
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
    table = _table(rows, scope)
    return table.select(
        *(
            col(rows.schema.names[place]).alias(column_name(attribute.id))
            for attribute, place in _read_columns(node)
        )
    )


def _table(rows: CachedBatches, scope: Scope) -> DataFrame:
    """All columns of a frame. Made once: handing a thousand arrays to the engine takes longer than some queries."""
    key = (id(scope.context), scope.streams)
    found = rows.tables.get(key)
    if found is None:
        # With the context, so that no other can have its identity.
        found = (scope.context, scope.batches([list(part) for part in rows.divide(scope.streams)]))
        rows.tables.put(key, found)
    frame: DataFrame = found[1]
    return frame


def _read_columns(node: CachedRows) -> list[tuple[Attribute, int]]:
    """The columns that a scan reads of a frame, none of them twice, each with its position there."""
    position = {attribute.id: place for attribute, place in zip(node.output, node.columns, strict=True)}
    return [(attribute, position[attribute.id]) for attribute in distinct(node.output)]


def select_columns(node: CachedRows, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches with only the columns that a scan reads."""
    schema = arrow_schema(node.output)
    places = [place for _, place in _read_columns(node)]
    for batch in batches:
        yield make_batch([batch.column(place) for place in places], schema, batch.num_rows)
