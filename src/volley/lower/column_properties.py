# SPDX-License-Identifier: Apache-2.0
"""What DataFusion may know of a column: that it has one value, or that the rows are sorted by it.

DataFusion leaves out sorts by constants, and sorts that an order already satisfies. But it keeps what it knows of the
sides of a join where the join ends it. A column of which it must know nothing is made `untracked`.
"""

from __future__ import annotations

from datafusion import Expr, literal
from datafusion import functions as f

from volley.lower.semantics import typed_null
from volley.plan.expressions import (
    Alias,
    Attribute,
    Expression,
    Literal,
    WindowCall,
    attribute_of,
    references,
)
from volley.plan.nodes import (
    Aggregate,
    Exchange,
    FileScan,
    Join,
    JoinKind,
    Node,
    Project,
    Range,
    Sort,
    TopN,
    Union,
    Window,
)
from volley.plan.types import DataType, to_arrow

ORDERED = (Sort, TopN, Window, Range)
"""The nodes that sort rows, or whose rows are sorted."""

_MORE_THAN_RANDOM = literal(2.0)


def untracked(value: Expr, data_type: DataType) -> Expr:
    """The value, as an expression of which DataFusion knows nothing. It costs about 4 ns a row.

    A function would not do: of constant arguments it is constant, even if it is volatile.
    """
    return f.when(f.random() > _MORE_THAN_RANDOM, typed_null(to_arrow(data_type))).otherwise(value)


def outer_sides(node: Join) -> tuple[Node, ...]:
    """The sides whose columns are NULL in a row without a match."""
    match node.kind:
        case JoinKind.LEFT:
            return (node.right,)
        case JoinKind.RIGHT:
            return (node.left,)
        case JoinKind.FULL:
            return (node.left, node.right)
        case _:
            return ()


def may_be_sorted(node: Node, column: int) -> bool:
    """Whether DataFusion may know that rows are sorted by the column, among others. Numbers of rows do not count."""
    match node:
        case Project(expressions, child):
            source = source_of(expressions, column)
            return source is not None and any(may_be_sorted(child, id) for id in references(source))
        case TopN(_, _, keys, expressions, child):
            source = source_of(expressions, column)
            read = frozenset() if source is None else references(source)
            return any(read & references(key.child) for key in keys) or any(
                may_be_sorted(child, id) for id in read
            )
        case Aggregate(_, _, _, results, child):
            source = source_of(results, column)
            below = below_sorts(child)
            return source is not None and any(may_be_sorted(below, id) for id in references(source))
        case Sort(keys, _, child):
            return any(column in references(key.child) for key in keys) or may_be_sorted(child, column)
        case Window(calls, child):
            return any(_sorts(call, column) for call in calls) or may_be_sorted(below_sorts(child), column)
        case Range():
            return True
        case Join():
            return any(may_be_sorted(below_sorts(side), column) for side in origins(node, column))
        case Union(output, inputs):
            return any(
                may_be_sorted(branch, branch.output[place].id)
                for branch in inputs
                for place, attribute in enumerate(output)
                if attribute.id == column
            )
        case _:
            return any(may_be_sorted(child, column) for child in origins(node, column))


def below_sorts(node: Node) -> Node:
    """What is below sorts and exchanges that an operator needs only in Spark, for algorithms of its own."""
    while isinstance(node, Sort | Exchange):
        node = node.child
    return node


def _sorts(call: Alias, column: int) -> bool:
    """Whether the window sorts by the column, or the column is its result, which may grow from row to row."""
    window = call.child
    if not isinstance(window, WindowCall):
        return call.id == column or column in references(window)
    keys = [*window.partition_by, *(key.child for key in window.order_by)]
    return (bool(keys) and call.id == column) or any(column in references(key) for key in keys)


def is_literal(node: Node, column: int) -> bool:
    """Whether the column is a literal, or the folder of a file."""
    match node:
        case Project(expressions, child) | TopN(_, _, _, expressions, child):
            source = source_of(expressions, column)
            if isinstance(source, Attribute):
                return is_literal(child, source.id)
            return isinstance(source, Literal)
        case FileScan():
            return any(attribute.id == column for attribute in node.partition_columns)
        case _:
            return any(is_literal(child, column) for child in origins(node, column))


def source_of(expressions: tuple[Expression, ...], column: int) -> Expression | None:
    """What a projection computes the column from."""
    for expression in expressions:
        if attribute_of(expression).id == column:
            return expression.child if isinstance(expression, Alias) else expression
    return None


def origins(node: Node, column: int) -> list[Node]:
    """The children that have the column, which the node passes on."""
    return [child for child in node.children if any(attribute.id == column for attribute in child.output)]
