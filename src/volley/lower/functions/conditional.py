# SPDX-License-Identifier: Apache-2.0
"""CASE and similar expressions, and wrappers that only matter to Spark's code generation."""

from __future__ import annotations

from datafusion import Expr
from datafusion import functions as f

from volley.lower.registry import may_fail, translates
from volley.lower.semantics import canonical_float, case, typed_null
from volley.plan.expressions import Call
from volley.plan.types import BOOLEAN, FRACTIONAL, to_arrow


def _lazy_boolean(call: Call) -> bool:
    return call.type == BOOLEAN and any(map(may_fail, call.arguments))


@translates("CaseWhen")
def case_when(call: Call, arguments: list[Expr]) -> Expr:
    pairs = list(zip(arguments[::2], arguments[1::2], strict=False))
    otherwise = arguments[-1] if len(arguments) % 2 else typed_null(to_arrow(call.type))
    return case(pairs, otherwise, lazy_boolean=_lazy_boolean(call))


@translates("If")
def if_(call: Call, arguments: list[Expr]) -> Expr:
    condition, then, otherwise = arguments
    return case([(condition, then)], otherwise, lazy_boolean=_lazy_boolean(call))


@translates("Coalesce")
def coalesce(call: Call, arguments: list[Expr]) -> Expr:
    if len(arguments) == 1:
        return arguments[0]
    if not _lazy_boolean(call):
        return f.coalesce(*arguments)
    *firsts, last = arguments
    return case([(value.is_not_null(), value) for value in firsts], last, lazy_boolean=True)


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
