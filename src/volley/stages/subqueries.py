# SPDX-License-Identifier: Apache-2.0
"""Uncorrelated subqueries run as stages of the same query; their results become literals in its plans.

Filter  total > ScalarSubquery(plan)          captured; the subquery's stages come first, the last one is 3
Filter  total > ScalarSubquery(StageInput 3)  in the graph: this stage waits for stage 3
Filter  total > 1234.5                        when it starts
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from volley.errors import DataError
from volley.identity_cache import once_per_object
from volley.plan.expressions import (
    Call,
    Expression,
    InSubquery,
    Literal,
    Scalar,
    ScalarSubquery,
)
from volley.plan.nodes import Node, StageInput
from volley.plan.subqueries import plans_in, with_parts
from volley.plan.types import BOOLEAN, DATE, STRING, TIMESTAMP, TIMESTAMP_NTZ, DataType, StructType

# The longest list to inline as literals. Spark plans a join for longer ones, so this is not reached in practice.
MAX_IN_VALUES = 10_000


@once_per_object
def subquery_stages(plan: Node) -> frozenset[int]:
    """The stages whose results the expressions of the plan use."""
    return frozenset(subquery.stage for subquery in plans_in(plan) if isinstance(subquery, StageInput))


def with_results(plan: Node, results: Mapping[int, pa.Table]) -> Node:
    """The plan with these results inserted for their subqueries; other subqueries stay."""

    def insert(part: Expression) -> Expression:
        match part:
            case ScalarSubquery(_, StageInput(stage), data_type) if stage in results:
                return _scalar(results[stage], data_type)
            case InSubquery(_, value, StageInput(stage), _) if stage in results:
                return _membership(value, results[stage])
            case _:
                return part

    return with_parts(plan, insert)


def to_bytes(result: pa.Table) -> bytes:
    """The rows of a result. Results with the same bytes have the same values."""
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, result.schema) as stream:
        stream.write_table(result.combine_chunks())
    return bytes(buffer.getvalue())


def _scalar(table: pa.Table, data_type: DataType) -> Expression:
    if table.num_rows > 1:
        raise DataError("a scalar subquery returned more than one row.")
    column = table.column(0).combine_chunks() if table.num_rows else pa.nulls(1, table.schema.field(0).type)
    return _literal(column, data_type)


def _literal(column: pa.Array, data_type: DataType) -> Expression:
    if not isinstance(data_type, StructType):
        return Literal(_values(column, data_type)[0], data_type)
    if column.null_count:
        raise DataError("a subquery returned a NULL struct.")
    fields: list[Expression] = []
    for index, member in enumerate(data_type.fields):
        fields += [Literal(member.name, STRING), _literal(column.field(index), member.type)]
    return Call("CreateNamedStruct", tuple(fields), data_type)


def _membership(value: Expression, table: pa.Table) -> Expression:
    if not 0 < table.num_rows <= MAX_IN_VALUES:
        raise DataError(f"an IN subquery returned {table.num_rows} rows.")
    values = _values(table.column(0).combine_chunks(), value.type)
    return Call("In", (value, *(Literal(item, value.type) for item in values)), BOOLEAN)


def _values(column: pa.Array, data_type: DataType) -> list[Scalar]:
    """Python values in the form of literals: dates as days, timestamps as microseconds."""
    if data_type == DATE:
        column = column.cast(pa.int32())
    if data_type in (TIMESTAMP, TIMESTAMP_NTZ):
        column = column.cast(pa.int64())
    values: list[Scalar] = column.to_pylist()
    return values
