# SPDX-License-Identifier: Apache-2.0
"""Scans of cached frames, whose rows this process keeps: the batches are read where they are."""

from __future__ import annotations

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
    schema = arrow_schema(node.output)
    position = {attribute.id: place for attribute, place in zip(node.output, node.columns, strict=True)}
    places = [position[attribute.id] for attribute in distinct(node.output)]
    if not rows.batches:
        return scope.arrow(schema.empty_table())
    return scope.batches(
        [
            [make_batch([batch.column(place) for place in places], schema, batch.num_rows) for batch in part]
            for part in rows.divide(scope.streams)
        ]
    )
