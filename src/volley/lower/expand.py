# SPDX-License-Identifier: Apache-2.0
"""Expand: each row once per projection.

The child runs once. A cross join with the projection numbers repeats its batches without copying; a CASE on the
number then picks each column's expression.
"""

from __future__ import annotations

import pyarrow as pa
from datafusion import DataFrame, Expr, col, literal
from datafusion import functions as f

from volley.lower.expressions import column_name, lower_expression
from volley.lower.scope import Scope
from volley.plan.expressions import Expression
from volley.plan.nodes import Expand

_NUMBER = "projection"


def lower_expand(node: Expand, child: DataFrame, scope: Scope) -> DataFrame:
    numbers = scope.arrow(pa.table({_NUMBER: pa.array(range(len(node.projections)), pa.int32())}))
    repeated = numbers.join_on(child, literal(pa.scalar(True, pa.bool_())))
    columns = zip(*node.projections, strict=True)
    named = {
        attribute.id: _pick(column).alias(column_name(attribute.id))
        for attribute, column in zip(node.output, columns, strict=True)
    }
    return repeated.select(*named.values())


def _pick(alternatives: tuple[Expression, ...]) -> Expr:
    if len(set(alternatives)) == 1:
        return lower_expression(alternatives[0])
    choice = f.case(col(_NUMBER))
    for number, alternative in enumerate(alternatives[:-1]):
        choice = choice.when(literal(pa.scalar(number, pa.int32())), lower_expression(alternative))
    return choice.otherwise(lower_expression(alternatives[-1]))
