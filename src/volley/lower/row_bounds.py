# SPDX-License-Identifier: Apache-2.0
"""Tells DataFusion which inputs of a join are small, if they are rows of other stages.

DataFusion collects a build side of which it knows that it is small, and lets the rows of the other side pass. Otherwise
it hashes both sides into partitions first, which takes longer than the join if the other side is a large table. Of a
Python table it knows nothing. But the rows of a stage have been counted, and a limit that is not less than their number
changes nothing and is something that DataFusion knows.
"""

from __future__ import annotations

from datafusion import DataFrame

from volley.lower.scope import Scope
from volley.plan.nodes import Filter, Node, Project, StageInput

# DataFusion collects fewer than 128 * 1024 rows (hash_join_single_partition_threshold_rows).
_MOST_ROWS = 128 * 1024 - 1
# Collected rows become one batch, in which the texts of a column have at most 2 GB.
_MOST_BYTES = 32 * 2**20


def bound_of(rows: int, size_bytes: int) -> int | None:
    """A number above `rows`; None if a table of this size is not small.

    Mostly a power of two, so that a frame can be used again for somewhat more rows.
    """
    if rows >= _MOST_ROWS or size_bytes > _MOST_BYTES:
        return None
    return min(_MOST_ROWS, 1 << rows.bit_length())


def bound_rows(frame: DataFrame, node: Node, scope: Scope) -> DataFrame:
    """The frame that lowers `node`, with as many rows as before. DataFusion knows if they are few."""
    while isinstance(node, Project | Filter):
        node = node.child
    if not isinstance(node, StageInput):
        return frame
    most_rows = next((table.most_rows for read, table in scope.tables if read is node), None)
    return frame if most_rows is None else frame.limit(most_rows)
