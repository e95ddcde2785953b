"""Uncorrelated subqueries run first, as queries of their own; their results stand in the plan as literals."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from volley.errors import DataError
from volley.plan import nodes
from volley.plan.expressions import (
    Call,
    Expression,
    InSubquery,
    Literal,
    Scalar,
    ScalarSubquery,
    transform,
)
from volley.plan.nodes import Node, map_expressions
from volley.plan.types import BOOLEAN, DATE, STRING, TIMESTAMP, TIMESTAMP_NTZ, DataType, StructType

Run = Callable[[Node], pa.Table]

# A longer list is no longer a literal; Spark joins in that case too, so such a plan is not seen in practice.
MAX_IN_VALUES = 10_000


def with_results(plan: Node, run: Run) -> Node:
    """The plan with every subquery, however deep, replaced by its result; each distinct one runs once."""
    results: dict[Node, pa.Table] = {}

    def result_of(subquery: Node) -> pa.Table:
        if subquery not in results:
            results[subquery] = run(with_results(subquery, run))
        return results[subquery]

    def replace(part: Expression) -> Expression:
        match part:
            case ScalarSubquery(_, subquery, data_type):
                return _scalar(result_of(subquery), data_type)
            case InSubquery(_, value, subquery, _):
                return _membership(value, result_of(subquery))
            case _:
                return part

    return nodes.transform(plan, lambda node: map_expressions(node, lambda e: transform(e, replace)))


def _scalar(table: pa.Table, data_type: DataType) -> Expression:
    if table.num_rows > 1:
        raise DataError("a scalar subquery gave more than one row.")
    column = table.column(0).combine_chunks() if table.num_rows else pa.nulls(1, table.schema.field(0).type)
    return _literal(column, data_type)


def _literal(column: pa.Array, data_type: DataType) -> Expression:
    if not isinstance(data_type, StructType):
        return Literal(_values(column, data_type)[0], data_type)
    if column.null_count:
        raise DataError("a subquery gave a NULL struct.")
    fields: list[Expression] = []
    for index, member in enumerate(data_type.fields):
        fields += [Literal(member.name, STRING), _literal(column.field(index), member.type)]
    return Call("CreateNamedStruct", tuple(fields), data_type)


def _membership(value: Expression, table: pa.Table) -> Expression:
    if not 0 < table.num_rows <= MAX_IN_VALUES:
        raise DataError(f"an IN subquery gave {table.num_rows} rows.")
    values = _values(table.column(0).combine_chunks(), value.type)
    return Call("In", (value, *(Literal(item, value.type) for item in values)), BOOLEAN)


def _values(column: pa.Array, data_type: DataType) -> list[Scalar]:
    """Python values in the form that literals have: dates as days, timestamps as microseconds."""
    if data_type == DATE:
        column = column.cast(pa.int32())
    if data_type in (TIMESTAMP, TIMESTAMP_NTZ):
        column = column.cast(pa.int64())
    values: list[Scalar] = column.to_pylist()
    return values
