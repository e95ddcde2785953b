# SPDX-License-Identifier: Apache-2.0
"""From plan nodes to one DataFusion plan: each operator's rows are Spark's, its columns are named by their ids."""

from __future__ import annotations

from contextlib import ExitStack

import pyarrow as pa
from datafusion import DataFrame, SessionContext, col
from datafusion import functions as f

from volley.lower.aggregates import lower_aggregate
from volley.lower.expand import lower_expand
from volley.lower.expressions import column_name, lower_expression
from volley.lower.joins import lower_join
from volley.lower.null_checks import without_implied_null_checks
from volley.lower.order_keys import is_computed, order_operand
from volley.lower.scan import lower_scan
from volley.lower.scope import Inputs, Scope, arrow_schema, column, distinct, read_schema
from volley.lower.streams import StreamTable
from volley.lower.windows import lower_window
from volley.plan.expressions import Expression, SortKey, attribute_of
from volley.plan.nodes import (
    Aggregate,
    Exchange,
    Expand,
    FeedInput,
    FileScan,
    Filter,
    Join,
    Limit,
    LocalRows,
    Node,
    OneRow,
    Project,
    Range,
    Sort,
    SourceScan,
    StageInput,
    TopN,
    Union,
    Unknown,
    Window,
    WriteFiles,
)


def lower(node: Node, context: SessionContext, inputs: Inputs, resources: ExitStack) -> DataFrame:
    """The plan of a fragment.

    It has one column `c<id>` for each distinct id of `node.output`, in that order, of exactly Spark's type.
    `inputs` gives the data of each `StageInput` and `FeedInput` (a `StreamTable`). `resources` takes over what must
    stay until the run has ended, and removes it when it is closed. DataError is raised for files that are not as
    planned.
    """
    frame = _lower(without_implied_null_checks(node), Scope(context, inputs, resources))
    return _in_exact_types(frame, arrow_schema(node.output))


def lower_split(node: Node, context: SessionContext, resources: ExitStack) -> DataFrame:
    """The plan of a split, for a reader in this process: as `lower`, but strings stay views."""
    frame = _lower(without_implied_null_checks(node), Scope(context, _no_inputs, resources))
    return _in_exact_types(frame, read_schema(node.output))


def _no_inputs(node: StageInput | FeedInput) -> StreamTable:
    raise TypeError(f"a split reads files alone, not {type(node).__name__}")


def root(frame: DataFrame, node: Node) -> DataFrame:
    """What `lower` gave, as the query's result: every position of `node.output`, named by its number.

    Spark may ask for a column twice (`SELECT a, a`) or for two of one name; positions are always distinct.
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
        case Range():
            return _range(node, scope)
        case OneRow():
            return scope.context.read_empty()
        case StageInput() | FeedInput():
            return _streamed(node, scope)
        case Project(expressions, child):
            return _project(expressions, _lower(child, scope))
        case Filter(condition, child):
            return _lower(child, scope).filter(lower_expression(condition))
        case Aggregate():
            return lower_aggregate(node, _lower_unordered(node.child, scope))
        case Sort(keys, _, child):
            return _sorted(_lower_unordered(child, scope), child, keys)
        case Limit():
            return _limit(_lower(node.child, scope), node.count, node.offset)
        case TopN(count, offset, keys, expressions, child):
            ordered = _sorted(_lower_unordered(child, scope), child, keys, (count, offset))
            return _project(expressions, ordered)
        case Expand():
            return lower_expand(node, _lower_unordered(node.child, scope), scope)
        case Window():
            return lower_window(node, _lower_unordered(node.child, scope))
        case Join():
            left, right = (_lower_unordered(child, scope) for child in node.children)
            return lower_join(node, left, right, scope)
        case Union():
            return _union(node, scope)
        case Exchange(_, _, _, _, child):
            # Inside one fragment all rows are already together.
            return _lower(child, scope)
        case SourceScan(name, _, _, _, _):
            raise TypeError(f"source {name} has no feed; the coordinator puts one in its place")
        case WriteFiles():
            raise TypeError("a write has no rows of its own; its child is lowered")
        case Unknown(name, _, _, _):
            raise TypeError(f"{name} has no native form; the support table must refuse it first")


def _lower_unordered(node: Node, scope: Scope) -> DataFrame:
    """A child whose order nobody sees: Spark sorts below merge joins and windows for its own algorithms."""
    while isinstance(node, Sort | Exchange):
        node = node.child
    return _lower(node, scope)


def _project(expressions: tuple[Expression, ...], child: DataFrame) -> DataFrame:
    unique = {attribute_of(expression).id: expression for expression in expressions}
    return child.select(*(lower_expression(expression) for expression in unique.values()))


def _sorted(
    frame: DataFrame, node: Node, keys: tuple[SortKey, ...], limit: tuple[int, int] | None = None
) -> DataFrame:
    """The rows of `frame`, those of `node`, in order; with a limit the first (count, offset) of them.

    Keys are columns first: DataFusion cannot follow an order by a Python function through its plans.
    """
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


# The largest row count that DataFusion's own limit can hold with an offset added.
_NO_LIMIT = 2**62


def _union(node: Union, scope: Scope) -> DataFrame:
    branches = [
        _lower(branch, scope).select(
            *(
                column(theirs).alias(column_name(ours.id))
                for theirs, ours in zip(branch.output, node.output, strict=True)
            )
        )
        for branch in node.inputs
    ]
    result = branches[0]
    for branch in branches[1:]:
        result = result.union(branch)
    return result


def _local_rows(node: LocalRows, scope: Scope) -> DataFrame:
    rows = pa.ipc.open_stream(node.ipc).read_all()
    first = {attribute.id: position for position, attribute in reversed(list(enumerate(node.output)))}
    columns = [rows.column(first[attribute.id]) for attribute in distinct(node.output)]
    if not columns:
        # DataFusion takes no table without columns.
        return scope.arrow(pa.table({"row": pa.nulls(rows.num_rows)})).select()
    # DataFusion deals out several batches to several streams, and the order of the rows would be lost.
    return scope.arrow(pa.table(columns, schema=arrow_schema(node.output)).combine_chunks())


def _range(node: Range, scope: Scope) -> DataFrame:
    numbers = scope.context.sql(f"SELECT value FROM range({node.start}, {node.end}, {node.step})")
    return numbers.select(*(col("value").alias(column_name(a.id)) for a in distinct(node.output)))


def _streamed(node: StageInput | FeedInput, scope: Scope) -> DataFrame:
    frame = scope.dataset(scope.inputs(node))
    # DataFusion would hand filters to the stream as pyarrow expressions, for which NULL NOT IN (1) is true and
    # NaN > 1 is not. It cannot hand over this function, which with one argument gives back what it got.
    passed = (f.greatest(column(a)).alias(column_name(a.id)) for a in distinct(node.output))
    return frame.select(*passed)


def _in_exact_types(frame: DataFrame, wanted: pa.Schema) -> DataFrame:
    """Strings travel as views inside the engine, and DataFusion may widen a type: outside, Spark's types count.

    Every column is cast, since a frame only knows its types once it has been planned; most casts then fall away.
    """
    return frame.select(*(col(field.name).cast(field.type).alias(field.name) for field in wanted))
