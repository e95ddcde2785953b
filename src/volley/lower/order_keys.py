# SPDX-License-Identifier: Apache-2.0
"""Sort keys in a form that DataFusion's plans can track."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from datafusion import Expr

from volley.lower.column_properties import is_literal, origins, source_of, untracked
from volley.lower.expressions import lower_expression
from volley.lower.semantics import sort_operand
from volley.plan.expressions import Attribute, Call, SortKey
from volley.plan.nodes import Node, Project, TopN, Union
from volley.plan.types import BOOLEAN, ArrayType, StructType


def order_operand(key: SortKey, node: Node) -> Expr:
    """The expression by which rows of `node` are sorted.

    DataFusion drops a constant from the sort keys of a union branch, and then cannot prove the order that it needs to
    merge the branches ("SanityCheckPlan"). So it must not know that such a column is constant.
    """
    operand = sort_operand(lower_expression(key.child), key.type)
    if isinstance(key.child, Attribute) and _is_constant_in_a_branch(node, key.child.id):
        return untracked(operand, key.type)
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
            source = source_of(expressions, column)
            return isinstance(source, Attribute) and _is_constant_in_a_branch(child, source.id)
        case Union(output, inputs):
            places = [place for place, attribute in enumerate(output) if attribute.id == column]
            return any(
                is_literal(branch, branch.output[place].id)
                or _is_constant_in_a_branch(branch, branch.output[place].id)
                for branch in inputs
                for place in places
            )
        case _:
            return any(_is_constant_in_a_branch(child, column) for child in origins(node, column))
