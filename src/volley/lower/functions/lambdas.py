# SPDX-License-Identifier: Apache-2.0
"""Functions that call a lambda for each element of an array. DataFusion evaluates it for all elements together."""

from __future__ import annotations

from functools import cache

import pyarrow as pa
from datafusion import Expr
from datafusion import functions as f

from volley.lower.functions.lists import list_kernel
from volley.lower.registry import translates
from volley.lower.semantics import Kernel
from volley.plan.expressions import Call
from volley.plan.types import to_arrow


@translates("NamedLambdaVariable")
def variable(call: Call, arguments: list[Expr]) -> Expr:
    return f.lambda_var(_name(call)).cast(to_arrow(call.type))


def _name(call: Call) -> str:
    return f"element_{call.option('exprId')!s}"


@translates("LambdaFunction")
def body(call: Call, arguments: list[Expr]) -> Expr:
    """What the lambda computes. The function that calls it makes it a lambda."""
    return arguments[0]


def _lambda(call: Call, body: Expr) -> Expr:
    made = call.arguments[1]
    assert isinstance(made, Call)
    variable = made.arguments[1]
    assert isinstance(variable, Call)
    return f.lambda_([_name(variable)], body)


@translates("ArrayTransform")
def transform(call: Call, arguments: list[Expr]) -> Expr:
    return f.array_transform(arguments[0], _lambda(call, arguments[1])).cast(to_arrow(call.type))


@translates("ArrayFilter")
def filter_(call: Call, arguments: list[Expr]) -> Expr:
    return f.array_filter(arguments[0], _lambda(call, arguments[1])).cast(to_arrow(call.type))


@translates("KnownNotContainsNull")
def without_nulls(call: Call, arguments: list[Expr]) -> Expr:
    # DataFusion has no cast between arrays of structs.
    return list_kernel(call, _without_nulls(to_arrow(call.type)), arguments)


@cache
def _without_nulls(wanted: pa.ListType) -> Kernel:
    def run(arrays: pa.ListArray) -> pa.ListArray:
        validity, offsets, *_ = arrays.buffers()
        return pa.Array.from_buffers(
            wanted, len(arrays), [validity, offsets], offset=arrays.offset, children=[arrays.values]
        )

    return run


@translates("ArrayExists")
def exists(call: Call, arguments: list[Expr]) -> Expr:
    return f.array_any_match(arguments[0], _lambda(call, arguments[1]))


@translates("ArrayForAll")
def for_all(call: Call, arguments: list[Expr]) -> Expr:
    return ~f.array_any_match(arguments[0], _lambda(call, ~arguments[1]))
