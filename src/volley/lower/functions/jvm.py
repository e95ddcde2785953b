# SPDX-License-Identifier: Apache-2.0
"""Expressions that Spark's own code evaluates: a function that sends its columns to the JVM."""

from __future__ import annotations

from functools import cache, lru_cache

import pyarrow as pa
from datafusion import Expr, ScalarUDF, udf
from datafusion import functions as f

from volley.jvm.calls import ProgramCall
from volley.jvm.connection import EvaluationError
from volley.lower.registry import always, translates
from volley.lower.semantics import TRUE, ExactnessError, Kernel, case, kernel
from volley.plan.expressions import JVM_EXPRESSION, JVM_FIELD, Call, Expression, Literal
from volley.plan.types import BOOLEAN, to_arrow


# Only Spark's code knows whether it may raise.
@translates(JVM_EXPRESSION, fails=always)
def jvm_expression(call: Call, arguments: list[Expr]) -> Expr:
    program = ProgramCall.of(call)
    assert program is not None
    return run_program(program, call, arguments)


@translates(JVM_FIELD)
def jvm_field(call: Call, arguments: list[Expr]) -> Expr:
    # Not DataFusion's get_field, which it moves next to the function that makes the struct: then that would run again
    # for each field.
    ordinal, struct = call.option("ordinal"), to_arrow(call.arguments[0].type)
    assert isinstance(ordinal, int)
    return kernel(f"jvm_field_{ordinal}_{struct}", _field(ordinal), to_arrow(call.type), struct)(arguments[0])


@cache
def _field(ordinal: int) -> Kernel:
    def run(structs: pa.StructArray) -> pa.Array:
        # The struct itself is never NULL.
        return structs.field(ordinal)

    return run


def run_program(program: ProgramCall, call: Call, arguments: list[Expr]) -> Expr:
    """The result of a program that computes `call` from its arguments."""
    types = tuple(to_arrow(argument.type) for argument in call.arguments)
    return _function(program, types)(*arguments)


def else_spark(call: Call, arguments: list[Expr], plain: Expr, native: Expr) -> Expr:
    """`native` where `plain` holds, or is NULL; elsewhere Spark's code computes the call, row by row.

    Without a program for it the query fails there, and Spark runs it.
    """
    read: list[tuple[Expression, Expr]] = [
        (part, value)
        for part, value in zip(call.arguments, arguments, strict=True)
        if not isinstance(part, Literal)
    ]
    # Even without arguments a function needs a column, for the number of rows.
    read = read or [(Literal(True, BOOLEAN), plain)]
    types = tuple(to_arrow(part.type) for part, _ in read)
    program = ProgramCall.of(call)
    function = _refusal(types, to_arrow(call.type)) if program is None else _function(program, types)
    otherwise = function(*(value for _, value in read))
    # A boolean CASE would evaluate `otherwise` for every row.
    return case([(f.coalesce(plain, TRUE), native)], otherwise, lazy_boolean=call.type == BOOLEAN)


@cache
def _refusal(arguments: tuple[pa.DataType, ...], result: pa.DataType) -> ScalarUDF:
    def run(*columns: pa.Array) -> pa.Array:
        if len(columns[0]):
            raise ExactnessError("a value that only Spark's own code can compute")
        return pa.nulls(0, result)

    return udf(run, list(arguments), result, "immutable", f"volley_refusal_{result}_{arguments}")


# One object per program, so that DataFusion recognizes equal calls.
@lru_cache(maxsize=1024)
def _function(program: ProgramCall, arguments: tuple[pa.DataType, ...]) -> ScalarUDF:
    evaluate = program.evaluator()

    def run(*columns: pa.Array) -> pa.Array:
        try:
            return evaluate(columns)
        except EvaluationError as error:
            raise ExactnessError(str(error)) from error

    return udf(run, list(arguments), to_arrow(program.result), "immutable", f"volley_jvm_{program.name}")
