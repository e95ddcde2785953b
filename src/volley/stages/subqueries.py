# SPDX-License-Identifier: Apache-2.0
"""Uncorrelated subqueries run as stages of the same query; their results become literals in its plans.

Filter  total > ScalarSubquery(plan)          captured; the subquery's stages come first, the last one is 3
Filter  total > ScalarSubquery(StageInput 3)  in the graph: this stage waits for stage 3
Filter  total > 1234.5                        when it starts
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

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
from volley.plan.types import BOOLEAN, DATE, STRING, TIMESTAMP, TIMESTAMP_NTZ, ArrayType, DataType, StructType

# The longest list to inline as literals. Spark plans a join for longer ones of IN; arrays may be longer.
MAX_LITERALS = 10_000


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
    """The only value of a column. Arrays and structs become the calls that make them, as in captured plans."""
    match data_type:
        case ArrayType(element, _):
            if column.null_count:
                return Literal(None, data_type)
            return Call("CreateArray", _literals(column.flatten(), element), data_type)
        case StructType(members):
            if column.null_count:
                raise DataError("a subquery returned a NULL struct.")
            parts = zip(members, column.flatten(), strict=True)
            named = [(Literal(field.name, STRING), _literal(part, field.type)) for field, part in parts]
            return Call("CreateNamedStruct", tuple(chain.from_iterable(named)), data_type)
        case _:
            return Literal(_values(column, data_type)[0], data_type)


def _literals(column: pa.Array, data_type: DataType) -> tuple[Expression, ...]:
    if len(column) > MAX_LITERALS:
        raise DataError(f"a subquery returned {len(column)} values.")
    if isinstance(data_type, ArrayType | StructType):
        return tuple(_literal(column.slice(row, 1), data_type) for row in range(len(column)))
    return tuple(Literal(value, data_type) for value in _values(column, data_type))


def _membership(value: Expression, table: pa.Table) -> Expression:
    if not table.num_rows:
        raise DataError("an IN subquery returned no rows.")
    return Call("In", (value, *_literals(table.column(0).combine_chunks(), value.type)), BOOLEAN)


def _values(column: pa.Array, data_type: DataType) -> list[Scalar]:
    """Python values in the form of literals: dates as days, timestamps as microseconds."""
    if data_type == DATE:
        column = column.cast(pa.int32())
    if data_type in (TIMESTAMP, TIMESTAMP_NTZ):
        column = column.cast(pa.int64())
    values: list[Scalar] = column.to_pylist()
    return values
