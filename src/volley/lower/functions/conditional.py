"""CASE and what reads like it, and the wrappers that only matter to Spark's own code generation."""

from __future__ import annotations

from datafusion import Expr
from datafusion import functions as f

from volley.lower.registry import translates
from volley.lower.semantics import canonical_float, typed_null
from volley.plan.expressions import Call
from volley.plan.types import FRACTIONAL, to_arrow


@translates("CaseWhen")
def case_when(call: Call, arguments: list[Expr]) -> Expr:
    pairs = len(arguments) // 2
    builder = f.when(arguments[0], arguments[1])
    for index in range(1, pairs):
        builder = builder.when(arguments[2 * index], arguments[2 * index + 1])
    has_else = len(arguments) % 2 == 1
    return builder.otherwise(arguments[-1] if has_else else typed_null(to_arrow(call.type)))


@translates("If")
def if_(call: Call, arguments: list[Expr]) -> Expr:
    condition, then, otherwise = arguments
    return f.when(condition, then).otherwise(otherwise)


@translates("Coalesce")
def coalesce(call: Call, arguments: list[Expr]) -> Expr:
    return f.coalesce(*arguments) if len(arguments) > 1 else arguments[0]


@translates("Greatest")
def greatest(call: Call, arguments: list[Expr]) -> Expr:
    return f.greatest(*arguments)


@translates("Least")
def least(call: Call, arguments: list[Expr]) -> Expr:
    return f.least(*arguments)


@translates("NaNvl")
def nanvl(call: Call, arguments: list[Expr]) -> Expr:
    value, replacement = arguments
    return f.when(f.isnan(value), replacement).otherwise(value)


@translates("NormalizeNaNAndZero")
def normalize(call: Call, arguments: list[Expr]) -> Expr:
    return canonical_float(arguments[0], call.type) if call.type in FRACTIONAL else arguments[0]


@translates(
    "KnownFloatingPointNormalized", "KnownNotNull", "KnownNullable", "PromotePrecision", "UnaryPositive"
)
def transparent(call: Call, arguments: list[Expr]) -> Expr:
    return arguments[0]
