# SPDX-License-Identifier: Apache-2.0
"""Runs recursive queries: each step over the rows of the step before, until there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pyarrow as pa

from volley.errors import DataError
from volley.plan.local_rows import to_ipc
from volley.plan.nodes import LocalRows, Node, Recursion, RecursionInput, with_children
from volley.plan.recursive_plans import replace_leaves
from volley.plan.subqueries import with_subqueries

Run = Callable[[Node], AbstractContextManager[Iterator[pa.RecordBatch]]]
"""Runs a native plan. Columns of its batches correspond to its output by position."""


def run_recursions(plan: Node, run: Run) -> Node:
    """The plan with the rows of its recursive queries in their place."""
    return with_subqueries(_run_below(plan, run), lambda inner: run_recursions(inner, run))


def _run_below(plan: Node, run: Run) -> Node:
    """The plan with the rows of its own recursive queries, not those of its subqueries."""
    if isinstance(plan, Recursion):
        return _compute(plan, run)
    return with_children(plan, tuple([_run_below(child, run) for child in plan.children]))


def _compute(node: Recursion, run: Run) -> LocalRows:
    """All levels, the first rows being one. Beyond its limits Spark runs the query, and raises its own error."""
    found = level = _collect(node.anchor, run)
    levels = 0
    while level:
        levels += 1
        if node.level_limit is not None and levels > node.level_limit:
            raise DataError("a recursive query of more levels than spark.sql.cteRecursionLevelLimit permits")
        if node.row_limit is not None and _count(found) >= node.row_limit:
            raise DataError("a recursive query of more rows than spark.sql.cteRecursionRowLimit permits")
        # The limit above takes as many of them as it needs.
        if node.limit is not None and _count(found) >= node.limit:
            break
        level = _collect(_over(node, level), run)
        found = [*found, *level]
    return LocalRows(node.output, to_ipc(found, node.output))


def _over(recursion: Recursion, rows: list[pa.RecordBatch]) -> Node:
    """A step, over the rows of the step before."""

    def change(node: Node) -> Node:
        if isinstance(node, RecursionInput) and node.recursion == recursion.id:
            return LocalRows(node.output, to_ipc(rows, node.output))
        return node

    return replace_leaves(recursion.step, change)


def _collect(plan: Node, run: Run) -> list[pa.RecordBatch]:
    with run(run_recursions(plan, run)) as batches:
        return [batch for batch in batches if batch.num_rows]


def _count(batches: list[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)
