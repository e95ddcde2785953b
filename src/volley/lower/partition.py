# SPDX-License-Identifier: Apache-2.0
"""Hash partitioning by DataFusion itself.

DataFusion repartitions where an operator demands it and removes every repartitioning that nobody demands. So the
fragment is given a reader that does: a full join with an empty table on the keys. The plan below that join is exactly
the fragment, hashed by the keys; it alone is run, and the join never is.

    HashJoinExec(Full, Partitioned)          never run
      RepartitionExec(Hash(keys, n))         run this node, all n partitions together
        the fragment
      RepartitionExec(Hash(...))
        an empty table
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from datafusion import DataFrame, ExecutionPlan, SessionContext, col
from datafusion import functions as f

from volley.errors import QueryError
from volley.lower.expressions import column_name, lower_expression
from volley.lower.scope import dataset_frame
from volley.lower.streams import StreamTable
from volley.plan.expressions import Attribute, Expression


def partitioned_plan(
    frame: DataFrame, hashing: SessionContext, keys: Sequence[Expression], partitions: int
) -> ExecutionPlan | None:
    """A plan with `partitions` outputs: `frame` hashed by `keys`. None when DataFusion proves it to be empty.

    `partitions` must be the target of the frame's session and of `hashing`, in which it is planned again if its own
    collects what is small. Batches start with the columns of `frame`; keys that are not columns of it follow. All
    outputs must be polled together: one that nobody reads stops the others.
    """
    plan, names = _hashed(frame, hashing, keys, hidden=False)
    if plan is None or _is_laid_out(plan, names, partitions):
        return plan
    plan, names = _hashed(frame, hashing, keys, hidden=True)
    if plan is None or _is_laid_out(plan, names, partitions):
        return plan
    raise QueryError(
        f"DataFusion laid rows out by {plan.output_partitioning} instead of hash({', '.join(names)}) "
        f"into {partitions}.",
        hint="This is a defect in Volley; set spark.volley.local.workers to 1 to go round it.",
    )


def _hashed(
    frame: DataFrame, hashing: SessionContext, keys: Sequence[Expression], hidden: bool
) -> tuple[ExecutionPlan | None, list[str]]:
    """The fragment under the join, and the names of its keys.

    After a join on a = b DataFusion may say b where a was asked for. `hidden` keys are columns of their own, behind a
    function that gives back what it got, so that it knows no other name for them.
    """
    columns = frame.schema().names
    plain = [isinstance(key, Attribute) and not hidden for key in keys]
    names = [
        column_name(key.id) if isinstance(key, Attribute) and is_column else f"k{number}"
        for number, (key, is_column) in enumerate(zip(keys, plain, strict=True))
    ]
    computed = [
        (f.greatest(lower_expression(key)) if hidden else lower_expression(key)).alias(name)
        for key, name, is_column in zip(keys, names, plain, strict=True)
        if not is_column
    ]
    keyed = frame.select(*(col(name) for name in columns), *computed) if computed else frame
    schema = keyed.schema()
    nothing = pa.schema([pa.field(f"n{i}", schema.field(name).type) for i, name in enumerate(names)])
    empty = dataset_frame(hashing, StreamTable(nothing, []))
    joined = keyed.join(empty, left_on=names, right_on=nothing.names, how="full")

    plan = _fragment(joined.execution_plan())
    if plan is not None and plan.output_partitioning.scheme != "Hash":
        # A frame keeps the session that it was made in.
        joined = hashing.create_dataframe_from_logical_plan(joined.logical_plan())
        plan = _fragment(joined.execution_plan())
    return plan, names


def _fragment(plan: ExecutionPlan) -> ExecutionPlan | None:
    """The left input of the join; None when the optimizer left no join because one side has no rows."""
    while not plan.display().startswith(("HashJoinExec", "SortMergeJoinExec")):
        if len(plan.children()) != 1:
            return None
        plan = plan.children()[0]
    left = plan.children()[0]
    # A merging join sorts its inputs; nobody asked for an order of the partitions.
    if plan.display().startswith("SortMergeJoinExec") and left.display().startswith("SortExec: expr="):
        left = left.children()[0]
    return left


def _is_laid_out(plan: ExecutionPlan, names: Sequence[str], partitions: int) -> bool:
    """Rows in the wrong partition are lost rows in a join: trust nothing, compare scheme, keys, order and count."""
    layout = plan.output_partitioning
    keys = [str(key).rpartition("@")[0] for key in layout.hash_expressions or ()]
    return layout.scheme == "Hash" and keys == list(names) and plan.partition_count == partitions
