# SPDX-License-Identifier: Apache-2.0
"""Arrays and structs of nothing but constants: a folded literal is read as the call that makes it."""

from __future__ import annotations

from typing import Any

from volley.plan.expressions import Call, Expression, Literal
from volley.plan.types import to_arrow


def is_constant(expression: Expression) -> bool:
    match expression:
        case Literal():
            return True
        case Call("CreateArray" | "CreateNamedStruct", parts):
            return all(map(is_constant, parts))
        case _:
            return False


def constant_value(expression: Expression) -> Any:
    """The value of what `is_constant` holds of, as Arrow takes it: arrays are lists, structs are mappings."""
    match expression:
        case Literal(value, _):
            return value
        case Call("CreateArray", parts):
            return [constant_value(part) for part in parts]
        case Call("CreateNamedStruct", parts):
            names = [field.name for field in to_arrow(expression.type)]
            return dict(zip(names, map(constant_value, parts[1::2]), strict=True))
        case _:
            raise TypeError(f"{type(expression).__name__} is not a constant")
