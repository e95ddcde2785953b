# SPDX-License-Identifier: Apache-2.0
"""Hash partitioning by DataFusion itself.

DataFusion repartitions where an operator requires it, and removes any repartitioning that none requires. So the
fragment gets a parent that does: a full join with an empty table on the keys. The plan below that join is exactly the
fragment, hashed by the keys. Only that plan is run, never the join.

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
    """A plan with `partitions` outputs: `frame` hashed by `keys`. None if DataFusion proves it empty.

    `partitions` must be the target of the frame's session and of `hashing`, in which the frame is planned again if its
    own session collects small inputs. Batches have the columns of `frame`, then keys that are not among them. All
    outputs must be polled concurrently: an unread one blocks the others.
    """
    plan, names = _hash(frame, hashing, keys, hidden=False)
    if plan is None or _is_partitioned(plan, names, partitions):
        return plan
    plan, names = _hash(frame, hashing, keys, hidden=True)
    if plan is None or _is_partitioned(plan, names, partitions):
        return plan
    raise QueryError(
        f"DataFusion partitioned rows by {plan.output_partitioning} instead of hash({', '.join(names)}) "
        f"into {partitions}.",
        hint="This is a defect in Volley; set spark.volley.local.workers to 1 to work around it.",
    )


def _hash(
    frame: DataFrame, hashing: SessionContext, keys: Sequence[Expression], hidden: bool
) -> tuple[ExecutionPlan | None, list[str]]:
    """The fragment below the join, and the names of its keys.

    After a join on a = b, DataFusion may hash by b instead of a. `hidden` keys are extra columns behind an identity
    function, so that DataFusion knows no equivalent column.
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
        # A frame keeps the session in which it was created.
        joined = hashing.create_dataframe_from_logical_plan(joined.logical_plan())
        plan = _fragment(joined.execution_plan())
    return plan, names


def _fragment(plan: ExecutionPlan) -> ExecutionPlan | None:
    """The left input of the join; None if the optimizer removed the join because a side has no rows."""
    while not plan.display().startswith(("HashJoinExec", "SortMergeJoinExec")):
        if len(plan.children()) != 1:
            return None
        plan = plan.children()[0]
    left = plan.children()[0]
    # A sort-merge join sorts its inputs; the partitions need no order.
    if plan.display().startswith("SortMergeJoinExec") and left.display().startswith("SortExec: expr="):
        left = left.children()[0]
    return left


def _is_partitioned(plan: ExecutionPlan, names: Sequence[str], partitions: int) -> bool:
    """Whether the plan is partitioned as requested. Compares scheme, keys, their order and the count, because a join
    loses rows that are in the wrong partition.
    """
    layout = plan.output_partitioning
    keys = [str(key).rpartition("@")[0] for key in layout.hash_expressions or ()]
    return layout.scheme == "Hash" and keys == list(names) and plan.partition_count == partitions
