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

from volley.errors import QueryError
from volley.lower.expressions import column_name, lower_expression
from volley.lower.streams import StreamTable
from volley.plan.expressions import Attribute, Expression

_EMPTY = "volley_nothing"
# Small inputs would be collected instead of hashed.
_ALWAYS_PARTITION = (
    "datafusion.optimizer.hash_join_single_partition_threshold",
    "datafusion.optimizer.hash_join_single_partition_threshold_rows",
)


def partitioned_plan(
    frame: DataFrame, context: SessionContext, keys: Sequence[Expression], partitions: int
) -> ExecutionPlan | None:
    """A plan with `partitions` outputs: `frame` hashed by `keys`. None when DataFusion proves it to be empty.

    The context's target must be `partitions`. Batches start with the columns of `frame`; keys that are not columns
    of it follow. All outputs must be polled together: one that nobody reads stops the others.
    """
    columns = frame.schema().names
    names = [column_name(key.id) if isinstance(key, Attribute) else f"k{i}" for i, key in enumerate(keys)]
    computed = [
        lower_expression(key).alias(name)
        for key, name in zip(keys, names, strict=True)
        if not isinstance(key, Attribute)
    ]
    keyed = frame.select(*(col(name) for name in columns), *computed) if computed else frame
    schema = keyed.schema()
    nothing = pa.schema([pa.field(f"n{i}", schema.field(name).type) for i, name in enumerate(names)])
    context.register_dataset(_EMPTY, StreamTable(nothing, []))
    joined = keyed.join(context.table(_EMPTY), left_on=names, right_on=nothing.names, how="full")

    plan = _fragment(joined.execution_plan())
    if plan is not None and plan.output_partitioning.scheme != "Hash":
        for option in _ALWAYS_PARTITION:
            context.sql(f"SET {option} = 0").collect()
        # A frame keeps the settings that it was made under.
        joined = context.create_dataframe_from_logical_plan(joined.logical_plan())
        plan = _fragment(joined.execution_plan())
    if plan is not None:
        _verify(plan, names, partitions)
    return plan


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


def _verify(plan: ExecutionPlan, names: Sequence[str], partitions: int) -> None:
    """Rows in the wrong partition are lost rows in a join: trust nothing, compare scheme, keys, order and count."""
    layout = plan.output_partitioning
    keys = [str(key).rpartition("@")[0] for key in layout.hash_expressions or ()]
    if layout.scheme != "Hash" or keys != list(names) or plan.partition_count != partitions:
        raise QueryError(
            f"DataFusion laid rows out by {layout} instead of hash({', '.join(names)}) into {partitions}.",
            hint="This is a defect in Volley; set spark.volley.local.workers to 1 to go round it.",
        )
