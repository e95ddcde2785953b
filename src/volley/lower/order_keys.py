# SPDX-License-Identifier: Apache-2.0
"""Sort keys in a form that DataFusion's plans can track."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

import pyarrow as pa
from datafusion import Expr, ScalarUDF, udf

from volley.lower.expressions import lower_expression
from volley.lower.semantics import sort_operand
from volley.plan.expressions import Alias, Attribute, Call, Expression, Literal, SortKey, attribute_of
from volley.plan.nodes import FileScan, Node, Project, TopN, Union
from volley.plan.types import BOOLEAN, ArrayType, StructType, to_arrow


def order_operand(key: SortKey, node: Node) -> Expr:
    """The expression by which rows of `node` are sorted.

    DataFusion drops a constant from the sort keys of a union branch, and then cannot prove the order that it needs to
    merge the branches ("SanityCheckPlan"). So it must not know that such a column is constant.
    """
    operand = sort_operand(lower_expression(key.child), key.type)
    if isinstance(key.child, Attribute) and _is_constant_in_a_branch(node, key.child.id):
        return _opaque(to_arrow(key.type))(operand)
    return operand


def split_nested(keys: Iterable[SortKey]) -> Iterator[SortKey]:
    """The keys, with the fields of a struct in its place, behind a key that puts NULL structs first or last.

    Spark compares structs field by field, and arrays element by element, with NULL as the smallest value inside.
    """
    for key in keys:
        is_array = isinstance(key.type, ArrayType)
        if not is_array and not isinstance(key.type, StructType):
            yield key
            continue
        if not is_array or key.nulls_first != key.ascending:
            yield SortKey(Call("IsNotNull", (key.child,), BOOLEAN), key.nulls_first, key.nulls_first)
        if not isinstance(key.type, StructType):
            # Arrow has one place for NULLs, around arrays and inside.
            yield replace(key, nulls_first=key.ascending)
            continue
        yield from split_nested(
            SortKey(
                Call("GetStructField", (key.child,), field.type, options=(("ordinal", ordinal),)),
                ascending=key.ascending,
                nulls_first=key.ascending,
            )
            for ordinal, field in enumerate(key.type.fields)
        )


def is_computed(key: SortKey, node: Node) -> bool:
    """Whether the operand is more than a column of `node`."""
    return not isinstance(key.child, Attribute) or _is_constant_in_a_branch(node, key.child.id)


def _is_constant_in_a_branch(node: Node, column: int) -> bool:
    match node:
        case Project(expressions, child) | TopN(_, _, _, expressions, child):
            source = _source(expressions, column)
            return isinstance(source, Attribute) and _is_constant_in_a_branch(child, source.id)
        case Union(output, inputs):
            places = [place for place, attribute in enumerate(output) if attribute.id == column]
            return any(
                _is_constant(branch, branch.output[place].id)
                or _is_constant_in_a_branch(branch, branch.output[place].id)
                for branch in inputs
                for place in places
            )
        case _:
            return any(_is_constant_in_a_branch(child, column) for child in _origins(node, column))


def _is_constant(node: Node, column: int) -> bool:
    """Whether DataFusion may know that the column has one value: a literal, or the folder of a file."""
    match node:
        case Project(expressions, child) | TopN(_, _, _, expressions, child):
            source = _source(expressions, column)
            if isinstance(source, Attribute):
                return _is_constant(child, source.id)
            return isinstance(source, Literal)
        case FileScan():
            return any(attribute.id == column for attribute in node.partition_columns)
        case _:
            return any(_is_constant(child, column) for child in _origins(node, column))


def _source(expressions: tuple[Expression, ...], column: int) -> Expression | None:
    """What a projection computes the column from."""
    for expression in expressions:
        if attribute_of(expression).id == column:
            return expression.child if isinstance(expression, Alias) else expression
    return None


def _origins(node: Node, column: int) -> list[Node]:
    """The children that have the column, which the node passes on."""
    return [child for child in node.children if any(attribute.id == column for attribute in child.output)]


@cache
def _opaque(arrow_type: pa.DataType) -> ScalarUDF:
    """The identity, declared volatile so that DataFusion does not fold it to a constant."""
    return udf(_identity, [arrow_type], arrow_type, "volatile", f"volley_opaque_{arrow_type}")


def _identity(values: pa.Array) -> pa.Array:
    return values
