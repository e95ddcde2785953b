# SPDX-License-Identifier: Apache-2.0
"""The plan of a write: streams of rows in the order in which files are written, so that each has one file open.

no folders       as they come, one file per stream
folders          sorted by folder
repartition(n)   sorted by the number of the file, then by folder; all rows of a number are in one stream
"""

from __future__ import annotations

import pyarrow as pa
from datafusion import DataFrame, ExecutionPlan, col, lit
from datafusion import functions as f
from datafusion.expr import SortExpr, Window

from volley.errors import QueryError
from volley.lower.operators import select_result
from volley.lower.order_keys import order_operand, split_nested
from volley.lower.scope import column
from volley.plan.nodes import WriteFiles
from volley.plan.order import is_ordered


def lower_write(frame: DataFrame, node: WriteFiles) -> ExecutionPlan:
    """`frame` is that of the child. The plan has its columns by position; behind the folders, the number of the file if
    there are any.
    """
    if node.files not in (None, 1):
        return _divide(frame, node)
    frame = select_result(frame, node.child)
    if not node.partition_names:
        plan = frame.execution_plan()
        if is_ordered(node.child) and plan.partition_count != 1:
            raise QueryError(f"an ordered write has {plan.partition_count} streams instead of one.")
        return plan
    plan = frame.sort(*_by_folder(node)).execution_plan()
    if plan.display().startswith("SortPreservingMergeExec") and node.files != 1:
        # Several sorted streams are as good as one, and are written concurrently.
        (plan,) = plan.children()
    return plan


def _by_folder(node: WriteFiles) -> list[SortExpr]:
    first = len(node.columns)
    return [
        col(f'"{first + place}"').sort(ascending=True, nulls_first=True)
        for place in range(len(node.partition_names))
    ]


def _divide(frame: DataFrame, node: WriteFiles) -> ExecutionPlan:
    """Rows with the number of their file, hashed and sorted by it.

    DataFusion hashes and sorts them for a window over the rows of a file, which is never run.
    """
    width = len(node.columns) + len(node.partition_names)
    rows, numbers = node.child.output[:width], node.child.output[width:]
    place = f.row_number().over(Window()).cast(pa.int64()) - lit(1)
    # Each turn begins with another file: the rows of a folder may come at equal distances.
    number = column(numbers[0]) if numbers else (place + place / lit(node.files)) % lit(node.files)
    keys = tuple(split_nested(node.order))
    names = [f"order{place}" for place in range(len(keys))]
    frame = frame.select(
        *(column(attribute).alias(str(place)) for place, attribute in enumerate(rows)),
        number.alias("number"),
        *(order_operand(key, node.child).alias(name) for key, name in zip(keys, names, strict=True)),
    )
    within = [
        col(name).sort(ascending=key.ascending, nulls_first=key.nulls_first)
        for key, name in zip(keys, names, strict=True)
    ]
    window = Window(partition_by=[col("number")], order_by=[*_by_folder(node), *within])
    everything = [col(f'"{name}"') for name in frame.schema().names]
    plan = frame.select(*everything, f.row_number().over(window).alias("place")).execution_plan()
    while not plan.display().startswith("BoundedWindowAggExec"):
        if not plan.children():
            # DataFusion proved that there are no rows.
            return plan
        plan = plan.children()[0]
    return plan.children()[0]
