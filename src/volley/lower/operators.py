# SPDX-License-Identifier: Apache-2.0
"""Translates plan nodes to one DataFusion plan. Each operator gives Spark's rows; columns are named by their ids."""

from __future__ import annotations

from contextlib import ExitStack

import pyarrow as pa
from datafusion import DataFrame, Expr, SessionContext, col
from datafusion import functions as f

from volley.lower.aggregates import lower_aggregate
from volley.lower.cached_rows import lower_cached_rows
from volley.lower.column_properties import below_sorts
from volley.lower.expand import lower_expand
from volley.lower.expressions import column_name, lower_expression
from volley.lower.filter_order import order_conditions
from volley.lower.generate import lower_generate, without_implied_checks
from volley.lower.joins import lower_join
from volley.lower.null_checks import drop_implied_null_checks
from volley.lower.order_keys import is_computed, order_operand, split_nested
from volley.lower.plan_cache import find_plan, keep_plan
from volley.lower.row_bounds import bound_rows
from volley.lower.scan import lower_scan
from volley.lower.scope import Inputs, Scope, Streamed, arrow_schema, column, distinct, read_schema
from volley.lower.streams import StreamTable
from volley.lower.value_ranges import mark_fitting_arithmetic
from volley.lower.windows import lower_window
from volley.plan.expressions import Expression, SortKey, attribute_of
from volley.plan.nodes import (
    Aggregate,
    CachedRows,
    Exchange,
    Expand,
    FeedInput,
    FileScan,
    Filter,
    Generate,
    Join,
    Limit,
    LocalRows,
    Node,
    NumberedRows,
    Observe,
    OneRow,
    PartitionedRows,
    Project,
    Range,
    Sample,
    Sort,
    SourceScan,
    StageInput,
    TopN,
    Union,
    Unknown,
    Window,
    WriteFiles,
)
from volley.plan.python_nodes import (
    PythonAggregate,
    PythonCoGroupMap,
    PythonEval,
    PythonGroupMap,
    PythonMap,
    PythonTable,
    PythonWindow,
)
from volley.plan.types import DataType, to_arrow


def lower(
    node: Node, context: SessionContext, inputs: Inputs, resources: ExitStack, streams: int = 1
) -> DataFrame:
    """The DataFusion plan of a fragment.

    It has one column `c<id>` for each distinct id of `node.output`, in that order, with exactly Spark's type.
    `inputs` returns the data of each node in `Streamed` (a `StreamTable`). `resources` owns what must live until the
    run has ended, and removes it on close. `streams` is how many streams a scan should have. Raises DataError if files
    are not as planned.
    """
    if (known := find_plan(node, context, inputs, resources)) is not None:
        return known
    scope = Scope(context, inputs, resources, streams)
    frame = _cast_to(_lower(_prepare(node), scope), arrow_schema(node.output))
    keep_plan(node, frame, scope)
    return frame


def lower_split(node: Node, context: SessionContext, resources: ExitStack, parts: int) -> DataFrame:
    """The DataFusion plan of a split, for a reader in this process: like `lower`, but strings stay views."""
    frame = _lower(_prepare(node), Scope(context, _no_inputs, resources, parts))
    return _cast_to(frame, read_schema(node.output))


def lower_partition(node: Node, context: SessionContext, inputs: Inputs, resources: ExitStack) -> DataFrame:
    """Like `lower`, for a plan that runs once: it has one stream, in the order of the rows of its leaves."""
    frame = _lower(_prepare(node), Scope(context, inputs, resources, 1))
    return _cast_to(frame, arrow_schema(node.output))


def _prepare(node: Node) -> Node:
    """The plan without checks that its operators or its files make unnecessary, and with filters in a good order."""
    return order_conditions(mark_fitting_arithmetic(drop_implied_null_checks(node)))


def _no_inputs(node: Streamed) -> StreamTable:
    raise TypeError(f"a split reads only files, not {type(node).__name__}")


def select_result(frame: DataFrame, node: Node) -> DataFrame:
    """The frame of `lower` as the query's result: one column per position of `node.output`, named by its number.

    A query may select a column twice (`SELECT a, a`) or two columns of the same name; positions are always distinct.
    """
    return frame.select(
        *(column(attribute).alias(str(position)) for position, attribute in enumerate(node.output))
    )


def _lower(node: Node, scope: Scope) -> DataFrame:
    match node:
        case FileScan():
            return lower_scan(node, scope)
        case LocalRows():
            return _local_rows(node, scope)
        case CachedRows():
            return lower_cached_rows(node, scope)
        case Range():
            return _range(node, scope)
        case OneRow():
            return scope.context.read_empty()
        case StageInput() | FeedInput() | PartitionedRows():
            return _read_stream(node, scope)
        case (
            PythonEval()
            | PythonMap()
            | PythonGroupMap()
            | PythonCoGroupMap()
            | PythonAggregate()
            | PythonWindow()
            | PythonTable()
        ):
            return _read_stream(node, scope)
        case Project(expressions, child):
            return _project(expressions, _lower(child, scope))
        case Filter(condition, child):
            return _lower(child, scope).filter(lower_expression(condition))
        case Aggregate():
            return lower_aggregate(node, _lower_unordered(node.child, scope))
        case Sort(keys, _, child):
            return _sort(_lower_unordered(child, scope), child, keys)
        case Limit():
            return _limit(_lower(node.child, scope), node.count, node.offset)
        case TopN(count, offset, keys, expressions, child):
            ordered = _sort(_lower_unordered(child, scope), child, keys, (count, offset))
            return _project(expressions, ordered)
        case Expand():
            return lower_expand(node, _lower_unordered(node.child, scope), scope)
        case Generate():
            return lower_generate(node, _lower(without_implied_checks(node).child, scope))
        case Window():
            return lower_window(node, _lower_unordered(node.child, scope))
        case Join():
            left, right = (_lower_join_side(child, scope) for child in node.children)
            return lower_join(node, left, right, scope)
        case Union():
            return _union(node, scope)
        case Exchange(_, _, _, _, child):
            # Inside a fragment all rows are already in one task.
            return _lower(child, scope)
        case SourceScan(name, _, _, _, _):
            raise TypeError(f"source {name} has no feed; the coordinator must replace it with one")
        case WriteFiles():
            raise TypeError("a write has no rows of its own; lower its child")
        case Observe():
            raise TypeError("observed metrics are computed by plans of their own")
        case Sample() | NumberedRows():
            raise TypeError(f"{type(node).__name__} runs natively only as PartitionedRows")
        case Unknown(name, _, _, _):
            raise TypeError(f"{name} has no native form; the support table must refuse it first")


def _lower_unordered(node: Node, scope: Scope) -> DataFrame:
    """Lower a child whose order does not matter: Spark sorts below merge joins and windows for its own algorithms."""
    return _lower(below_sorts(node), scope)


def _lower_join_side(node: Node, scope: Scope) -> DataFrame:
    rows = below_sorts(node)
    return bound_rows(_lower(rows, scope), rows, scope)


def _project(expressions: tuple[Expression, ...], child: DataFrame) -> DataFrame:
    unique = {attribute_of(expression).id: expression for expression in expressions}
    return child.select(*(lower_expression(expression) for expression in unique.values()))


def _sort(
    frame: DataFrame, node: Node, keys: tuple[SortKey, ...], limit: tuple[int, int] | None = None
) -> DataFrame:
    """Sort the rows of `frame`, which lowers `node`; with a limit (count, offset), keep only those.

    Computed keys become columns first: DataFusion cannot track an order by a Python function through its plans.
    """
    keys = tuple(split_nested(keys))
    names = [f"order{place}" for place in range(len(keys))]
    kept = [column(attribute) for attribute in distinct(node.output)]
    operands = {name: order_operand(key, node) for name, key in zip(names, keys, strict=True)}
    computed = [
        operands[name].alias(name) for name, key in zip(names, keys, strict=True) if is_computed(key, node)
    ]
    if computed:
        frame = frame.select(*kept, *computed)
    frame = frame.sort(
        *(
            (col(name) if is_computed(key, node) else operands[name]).sort(
                ascending=key.ascending, nulls_first=key.nulls_first
            )
            for name, key in zip(names, keys, strict=True)
        )
    )
    if limit is not None:
        frame = _limit(frame, *limit)
    return frame.select(*kept) if computed else frame


def _limit(frame: DataFrame, count: int | None, offset: int) -> DataFrame:
    return frame.limit(_NO_LIMIT if count is None else count, offset)


# The largest count that DataFusion's limit can add an offset to.
_NO_LIMIT = 2**62


def _union(node: Union, scope: Scope) -> DataFrame:
    branches = [
        _lower(branch, scope).select(
            *(
                _as_type(column(theirs), theirs.type, ours.type).alias(column_name(ours.id))
                for theirs, ours in zip(branch.output, node.output, strict=True)
            )
        )
        for branch in node.inputs
    ]
    result = branches[0]
    for branch in branches[1:]:
        result = result.union(branch)
    return result


def _as_type(value: Expr, found: DataType, wanted: DataType) -> Expr:
    """The value in a type that allows more NULLs."""
    return value if found == wanted else value.cast(to_arrow(wanted))


def _local_rows(node: LocalRows, scope: Scope) -> DataFrame:
    rows = pa.ipc.open_stream(node.ipc).read_all()
    first = {attribute.id: position for position, attribute in reversed(list(enumerate(node.output)))}
    columns = [rows.column(first[attribute.id]) for attribute in distinct(node.output)]
    if not columns:
        # DataFusion does not accept a table without columns.
        return scope.arrow(pa.table({"row": pa.nulls(rows.num_rows)})).select()
    # DataFusion deals out several batches to several streams, and the order of the rows would be lost.
    return scope.arrow(pa.table(columns, schema=arrow_schema(node.output)).combine_chunks())


def _range(node: Range, scope: Scope) -> DataFrame:
    numbers = scope.context.sql(f"SELECT value FROM range({node.start}, {node.end}, {node.step})")
    return numbers.select(*(col("value").alias(column_name(a.id)) for a in distinct(node.output)))


def _read_stream(node: Streamed, scope: Scope) -> DataFrame:
    table = scope.inputs(node)
    if isinstance(node, StageInput):
        # Of its own, because a frame that is kept reads other streams later.
        table = table.copy()
        scope.tables.append((node, table))
    frame = scope.dataset(table)
    # DataFusion would push filters into the stream as pyarrow expressions, for which NULL NOT IN (1) is true and
    # NaN > 1 is not. It cannot push them through this function, which with one argument is the identity.
    passed = (f.greatest(column(a)).alias(column_name(a.id)) for a in distinct(node.output))
    return frame.select(*passed)


def _cast_to(frame: DataFrame, wanted: pa.Schema) -> DataFrame:
    """Cast to Spark's types: inside the engine strings are views, and DataFusion may widen a type.

    Every column is cast, because a frame knows its types only once it is planned; most casts are then optimized away.
    """
    return frame.select(*(col(field.name).cast(field.type).alias(field.name) for field in wanted))
