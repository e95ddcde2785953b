# SPDX-License-Identifier: Apache-2.0
"""Checks of a call's argument types, options and constants, which rules combine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from volley.plan.expressions import Call, Expression, Literal, Scalar
from volley.plan.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    FRACTIONAL,
    INTEGRAL,
    NUMBERED,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
)
from volley.support.reasons import Reason, Unsupported

Check = Callable[[Call], Unsupported | None]
TypeTest = Callable[[DataType], bool]

ORDERED: frozenset[DataType] = frozenset(
    {BOOLEAN, DOUBLE, FLOAT, STRING, BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ, *INTEGRAL, *NUMBERED}
)


@dataclass(frozen=True)
class ExpressionRule:
    """One supported class: family and note for the documentation, a check for plans."""

    family: str
    note: str
    check: Check


def rules(family: str, rows: dict[str, tuple[Check, str]]) -> dict[str, ExpressionRule]:
    """The rules of a family, from the check and the note of each class."""
    return {name: ExpressionRule(family, note, check) for name, (check, note) in rows.items()}


def refuse(call: Call, detail: str, reason: Reason = Reason.ARGUMENT_TYPES) -> Unsupported:
    return Unsupported(reason, call.function, detail)


# ----------------------------------------------------------------------------------------------- types


def any_type(data_type: DataType) -> bool:
    return True


def decimal(data_type: DataType) -> bool:
    return isinstance(data_type, DecimalType)


def integral(data_type: DataType) -> bool:
    return data_type in INTEGRAL


def fractional(data_type: DataType) -> bool:
    return data_type in FRACTIONAL


def number(data_type: DataType) -> bool:
    return integral(data_type) or fractional(data_type) or decimal(data_type)


def ordered(data_type: DataType) -> bool:
    return data_type in ORDERED or decimal(data_type)


def array(data_type: DataType) -> bool:
    return isinstance(data_type, ArrayType)


def map_(data_type: DataType) -> bool:
    return isinstance(data_type, MapType)


def one_of(*types: DataType) -> TypeTest:
    return lambda data_type: data_type in types


# ---------------------------------------------------------------------------------------------- checks


def arguments(*tests: TypeTest) -> Check:
    """Exactly these argument types, in this order."""

    def check(call: Call) -> Unsupported | None:
        types = [argument.type for argument in call.arguments]
        if len(types) != len(tests) or not all(test(t) for test, t in zip(tests, types, strict=True)):
            return refuse(call, ", ".join(map(str, types)) or "no arguments")
        return None

    return check


def same(test: TypeTest, *, alike: bool = True) -> Check:
    """At least one argument, each passing the test; `alike`: all of the same type."""

    def check(call: Call) -> Unsupported | None:
        types = [argument.type for argument in call.arguments]
        if not types or not all(map(test, types)) or (alike and len(set(types)) != 1):
            return refuse(call, ", ".join(map(str, types)) or "no arguments")
        return None

    return check


def all_of(*checks: Check) -> Check:
    def check(call: Call) -> Unsupported | None:
        return next((refusal for one in checks if (refusal := one(call))), None)

    return check


def with_mode(check: Check) -> Check:
    """Refuse a call whose evaluation mode is unknown: its overflow behaviour would be a guess."""

    def with_known_mode(call: Call) -> Unsupported | None:
        if call.mode is None:
            return refuse(call, "unknown evaluation mode", Reason.CAPTURE)
        return check(call)

    return with_known_mode


def option_in(name: str, *values: Scalar) -> Check:
    def check(call: Call) -> Unsupported | None:
        if call.option(name) not in values:
            return refuse(call, f"{name}={call.option(name)!r}", Reason.CAPTURE)
        return None

    return check


def constant_text(position: int) -> Check:
    def check(call: Call) -> Unsupported | None:
        if not isinstance(literal_value(call.arguments[position]), str):
            return refuse(call, f"argument {position + 1} is not a constant", Reason.ARGUMENT_VALUE)
        return None

    return check


def literal_value(expression: Expression) -> Scalar:
    """The value of a literal; None for NULL and for anything else."""
    return expression.value if isinstance(expression, Literal) else None
