# SPDX-License-Identifier: Apache-2.0
"""Structs: made, and taken apart."""

from __future__ import annotations

from functools import cache

import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr
from datafusion import functions as f

from volley.lower.registry import translates
from volley.lower.semantics import Kernel, kernel, typed_null
from volley.plan.expressions import Call, Literal
from volley.plan.types import StructType, to_arrow


@translates("CreateNamedStruct")
def create_named_struct(call: Call, arguments: list[Expr]) -> Expr:
    names = [str(name.value) for name in call.arguments[::2] if isinstance(name, Literal)]
    struct = to_arrow(call.type)
    if all(field.nullable for field in struct):
        return f.named_struct(list(zip(names, arguments[1::2], strict=True))).cast(struct)
    # DataFusion's own structs may have NULL in every field, and it has no cast to one that may not.
    types = [to_arrow(value.type) for value in call.arguments[1::2]]
    return kernel(f"struct_{struct}", _struct_of(struct), struct, *types)(*arguments[1::2])


@cache
def _struct_of(struct: pa.StructType) -> Kernel:
    def run(*values: pa.Array) -> pa.Array:
        return pc.make_struct(
            *values,
            field_names=[field.name for field in struct],
            field_nullability=[field.nullable for field in struct],
        )

    return run


@translates("GetStructField")
def get_struct_field(call: Call, arguments: list[Expr]) -> Expr:
    struct = call.arguments[0].type
    ordinal = call.option("ordinal")
    assert isinstance(struct, StructType)
    assert isinstance(ordinal, int)
    # DataFusion gives whatever lies below a NULL struct.
    value = f.get_field(arguments[0], struct.fields[ordinal].name)
    return f.when(arguments[0].is_null(), typed_null(to_arrow(call.type))).otherwise(value)
