# SPDX-License-Identifier: Apache-2.0
"""Joins of every kind. DataFusion builds its left input in memory, so Spark's build side goes left.

If Spark chose no build side, the sides stay as they are and DataFusion chooses by its statistics.
"""

from __future__ import annotations

from functools import reduce
from operator import and_

import pyarrow as pa
from datafusion import DataFrame, Expr, col, literal
from datafusion import functions as f

from volley.lower.column_properties import (
    ORDERED,
    below_sorts,
    may_be_sorted,
    origins,
    outer_sides,
    untracked,
)
from volley.lower.expressions import column_name, lower_expression
from volley.lower.scope import Scope, column, distinct
from volley.plan.expressions import Attribute, Expression
from volley.plan.nodes import BuildSide, FeedInput, Join, JoinKind, walk
from volley.plan.types import BOOLEAN

_TRUE = literal(pa.scalar(True, pa.bool_()))
_FALSE = literal(pa.scalar(False, pa.bool_()))
_ZERO = literal(pa.scalar(0, pa.int64()))
_ONE = literal(pa.scalar(1, pa.int64()))

_HOW = {
    JoinKind.INNER: "inner",
    JoinKind.LEFT: "left",
    JoinKind.RIGHT: "right",
    JoinKind.FULL: "full",
    JoinKind.SEMI: "semi",
    JoinKind.ANTI: "anti",
}
_MIRRORED = {
    JoinKind.INNER: "inner",
    JoinKind.LEFT: "right",
    JoinKind.RIGHT: "left",
    JoinKind.FULL: "full",
}

_ONE_SIDED = (JoinKind.SEMI, JoinKind.ANTI, JoinKind.EXISTENCE)


def lower_join(node: Join, left: DataFrame, right: DataFrame, scope: Scope) -> DataFrame:
    match node.kind:
        case JoinKind.ANTI if node.null_aware:
            joined = _not_in(node, left, right, scope)
        case JoinKind.EXISTENCE:
            joined = _existence(node, left, right)
        case JoinKind.SEMI | JoinKind.ANTI if _can_build_right(node):
            left, left_keys = _with_key_columns(left, node.left.output, node.left_keys, "l")
            right, right_keys = _with_key_columns(right, (), node.right_keys, "r")
            joined = _join_building_right(node, left, right, scope, left_keys, right_keys)
        case JoinKind.SEMI | JoinKind.ANTI:
            joined = left.join_on(right, *_conditions(node), how=_HOW[node.kind])
        case _ if node.build is BuildSide.RIGHT:
            joined = right.join_on(left, *_conditions(node), how=_MIRRORED[node.kind])
        case _:
            joined = left.join_on(right, *_conditions(node), how=_HOW[node.kind])
    ordered = any(isinstance(part, ORDERED) for part in walk(node))
    return joined.select(*(_column_after(node, attribute, ordered) for attribute in distinct(node.output)))


def _column_after(node: Join, attribute: Attribute, ordered: bool) -> Expr:
    """A column of the join. `ordered`: whether anything below it sorts.

    DataFusion would keep what it knows of the values of a side where rows without a match have NULLs. It also takes the
    rows for sorted by the order of the one side, then by that of the other, even where rows of the one side are equal
    by its order.
    """
    sides = [] if node.kind in _ONE_SIDED else origins(node, attribute.id)
    for side in sides:
        is_outer = any(side is outer for outer in outer_sides(node))
        if is_outer or (ordered and may_be_sorted(below_sorts(side), attribute.id)):
            return untracked(column(attribute), attribute.type).alias(column_name(attribute.id))
    return column(attribute)


def _conditions(node: Join) -> list[Expr]:
    conditions = [
        lower_expression(left) == lower_expression(right)
        for left, right in zip(node.left_keys, node.right_keys, strict=True)
    ]
    if node.condition is not None:
        conditions.append(lower_expression(node.condition))
    return conditions or [_TRUE]


def _can_build_right(node: Join) -> bool:
    """Whether a semi or anti join can build its right side. Only DataFusion's SQL has that join, over columns only."""
    return node.build is BuildSide.RIGHT and node.condition is None and bool(node.left_keys)


def _join_building_right(
    node: Join,
    left: DataFrame,
    right: DataFrame,
    scope: Scope,
    left_keys: list[str],
    right_keys: list[str],
) -> DataFrame:
    conditions = " AND ".join(f"r.{b} = l.{a}" for a, b in zip(left_keys, right_keys, strict=True))
    word = "SEMI" if node.kind is JoinKind.SEMI else "ANTI"
    held, streamed = scope.view(right), scope.view(left)
    return scope.context.sql(f"SELECT l.* FROM {held} r RIGHT {word} JOIN {streamed} l ON {conditions}")


def _not_in(node: Join, left: DataFrame, right: DataFrame, scope: Scope) -> DataFrame:
    """NOT IN: a NULL on the right leaves no rows; a NULL on the left stays only if the right side is empty.

    DataFusion has such a join, but it would build the left side, the large one. So the right side is counted as well,
    unless it comes from a feed, which can be read only once. Where neither side can have a NULL, it is an anti join.
    """
    never_null = _is_never_null(left, node.left_keys) and _is_never_null(right, node.right_keys)
    left, (left_key,) = _with_key_columns(left, node.left.output, node.left_keys, "l")
    right, (right_key,) = _with_key_columns(right, (), node.right_keys, "r")
    if any(isinstance(part, FeedInput) for part in walk(node.right)):
        chosen = f"{left_key} NOT IN (SELECT {right_key} FROM {scope.view(right)})"
        return scope.context.sql(f"SELECT * FROM {scope.view(left)} WHERE {chosen}")
    if never_null:
        return _join_building_right(node, left, right, scope, [left_key], [right_key])
    counts = right.aggregate(None, [f.count(_ONE).alias("rows"), f.count(col(right_key)).alias("values")])
    unmatched = _join_building_right(node, left, right, scope, [left_key], [right_key])
    no_null = (col("rows") == col("values")) & col(left_key).is_not_null()
    return counts.join_on(unmatched, (col("rows") == _ZERO) | no_null)


def _is_never_null(frame: DataFrame, keys: tuple[Expression, ...]) -> bool:
    """Whether the keys are columns in which the files have no NULL."""
    columns = [column_name(key.id) for key in keys if isinstance(key, Attribute)]
    schema = frame.schema()
    return len(columns) == len(keys) and not any(schema.field(name).nullable for name in columns)


def _with_key_columns(
    frame: DataFrame, kept: tuple[Attribute, ...], keys: tuple[Expression, ...], side: str
) -> tuple[DataFrame, list[str]]:
    """The frame with its keys as extra columns."""
    names = [f"{side}key{number}" for number in range(len(keys))]
    computed = [lower_expression(key).alias(name) for key, name in zip(keys, names, strict=True)]
    return frame.select(*(column(attribute) for attribute in distinct(kept)), *computed), names


def _existence(node: Join, left: DataFrame, right: DataFrame) -> DataFrame:
    """Every left row, with a flag that says whether it has a match."""
    assert node.exists is not None
    flag = column_name(node.exists.id)
    kept = [column(attribute) for attribute in distinct(node.left.output)]
    if node.condition is None and node.left_keys:
        names = [f"rkey{number}" for number in range(len(node.right_keys))]
        keys = [lower_expression(key).alias(name) for key, name in zip(node.right_keys, names, strict=True)]
        matches = right.aggregate(keys, []).select(*(col(name) for name in names), _TRUE.alias("matched"))
        same = reduce(
            and_,
            (lower_expression(key) == col(name) for key, name in zip(node.left_keys, names, strict=True)),
        )
        joined = matches.join_on(left, same, how="right")
        matched = untracked(col("matched"), BOOLEAN)
        return joined.select(*kept, f.coalesce(matched, _FALSE).alias(flag))
    # With a condition there is no set of matching keys. Each side is read once, because a stream cannot be read again:
    # number the rows, join them to all their matches, and group by the number.
    number = f.row_number().alias("number")
    numbered = left.select(*kept, number)
    marked = right.with_column("matched", _TRUE)
    joined = marked.join_on(numbered, *_conditions(node), how="right")
    attributes = distinct(node.left.output)
    found = [f.first_value(column(attribute)).alias(f"v{n}") for n, attribute in enumerate(attributes)]
    whole = joined.aggregate([col("number")], [*found, f.bool_or(col("matched")).alias("matched")])
    named = [col(f"v{n}").alias(column_name(attribute.id)) for n, attribute in enumerate(attributes)]
    return whole.select(*named, f.coalesce(col("matched"), _FALSE).alias(flag))
