# SPDX-License-Identifier: Apache-2.0
"""Translates Catalyst expressions to DataFusion expressions."""

from __future__ import annotations

from datafusion import Expr, col

from volley.lower.functions import (  # noqa: F401  (each registers its translations)
    arithmetic,
    array_sets,
    array_texts,
    arrays,
    bits,
    casts,
    comparison,
    conditional,
    dates,
    datetime_formats,
    decimals,
    digests,
    jvm,
    lambdas,
    maps,
    regexes,
    strings,
    structs,
)
from volley.lower.registry import TRANSLATIONS
from volley.lower.semantics import constant
from volley.plan.expressions import Alias, Attribute, Call, Expression, Literal, SortKey
from volley.plan.types import to_arrow


def column_name(attribute_id: int) -> str:
    """The name of a column inside the native engine. Unlike Spark's names, ids are unique."""
    return f"c{attribute_id}"


def lower_expression(expression: Expression) -> Expr:
    """The DataFusion expression, with exactly the Arrow type of `expression.type`.

    The support table must have accepted it. Evaluating it gives Spark's value or fails.
    """
    match expression:
        case Attribute(id, _, _, _):
            return col(column_name(id))
        case Literal(value, data_type):
            return constant(value, to_arrow(data_type))
        case Alias(id, _, child):
            return lower_expression(child).alias(column_name(id))
        case SortKey(child, _, _):
            return lower_expression(child)
        case Call(function, arguments, _, _, _):
            return TRANSLATIONS[function](expression, [lower_expression(a) for a in arguments])
        case _:
            raise TypeError(f"{type(expression).__name__} is lowered by its operator, not as an expression")
