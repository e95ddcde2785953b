# SPDX-License-Identifier: Apache-2.0
"""Expressions that Spark's own code evaluates: a function that sends its columns to the JVM."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
from datafusion import Expr, ScalarUDF, udf

from volley.lower.registry import always, translates
from volley.lower.semantics import ExactnessError
from volley.plan.expressions import JVM_EXPRESSION, Call
from volley.plan.types import to_arrow


# Only Spark's code knows whether it may raise.
@translates(JVM_EXPRESSION, fails=always)
def jvm_expression(call: Call, arguments: list[Expr]) -> Expr:
    number = call.option("program")
    assert isinstance(number, int)
    return run_program(number, call, arguments)


def run_program(number: int, call: Call, arguments: list[Expr]) -> Expr:
    """The result of a program that computes `call` from its arguments."""
    types = tuple(to_arrow(argument.type) for argument in call.arguments)
    return _function(number, to_arrow(call.type), types)(*arguments)


# One object per program, so that DataFusion recognizes equal calls.
@lru_cache(maxsize=1024)
def _function(number: int, result: pa.DataType, arguments: tuple[pa.DataType, ...]) -> ScalarUDF:
    # Only a driver has a JVM. Workers may not even have PySpark.
    from volley.jvm.connections import EvaluationError
    from volley.jvm.programs import evaluate

    def run(*columns: pa.Array) -> pa.Array:
        try:
            return evaluate(number, columns)
        except EvaluationError as error:
            raise ExactnessError(str(error)) from error

    return udf(run, list(arguments), result, "immutable", f"volley_jvm_{number}")
