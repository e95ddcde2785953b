# SPDX-License-Identifier: Apache-2.0
"""The plan of a write: one stream of rows per writer, sorted by partition folder."""

from __future__ import annotations

from datafusion import DataFrame, ExecutionPlan, col

from volley.errors import QueryError
from volley.plan.nodes import WriteFiles
from volley.plan.order import is_ordered


def lower_write(frame: DataFrame, node: WriteFiles) -> ExecutionPlan:
    """`frame` has the child's columns by position. With partition folders, every stream is sorted by them.

    A writer then needs only one open file at a time, however many folders there are.
    """
    if not node.partition_names:
        plan = frame.execution_plan()
        if is_ordered(node.child) and plan.partition_count != 1:
            raise QueryError(f"an ordered write has {plan.partition_count} streams instead of one.")
        return plan
    first = len(node.columns)
    texts = (col(f'"{first + number}"') for number in range(len(node.partition_names)))
    plan = frame.sort(*(text.sort(ascending=True, nulls_first=True) for text in texts)).execution_plan()
    if plan.display().startswith("SortPreservingMergeExec") and not node.single:
        # Several sorted streams are as good as one, and are written concurrently.
        (plan,) = plan.children()
    return plan
