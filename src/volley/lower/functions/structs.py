# SPDX-License-Identifier: Apache-2.0
"""Struct creation and field access."""

from __future__ import annotations

from functools import cache

import pyarrow as pa
from datafusion import Expr
from datafusion import functions as f

from volley.lower.functions.constants import constant_value, is_constant
from volley.lower.registry import translates
from volley.lower.semantics import Kernel, constant, kernel, typed_null
from volley.plan.expressions import Call
from volley.plan.types import to_arrow


@translates("CreateNamedStruct")
def create_named_struct(call: Call, arguments: list[Expr]) -> Expr:
    if is_constant(call):
        return constant(constant_value(call), to_arrow(call.type))
    wanted = to_arrow(call.type)
    made = f.named_struct([(field.name, value) for field, value in zip(wanted, arguments[1::2], strict=True)])
    nullable = pa.struct([field.with_nullable(True) for field in wanted])
    if wanted == nullable:
        return made.cast(wanted)
    # All fields of DataFusion's structs are nullable, and it has no cast to fields that are not.
    return kernel(f"without_null_{wanted}", _retype(wanted), wanted, nullable)(made.cast(nullable))


@cache
def _retype(wanted: pa.StructType) -> Kernel:
    def run(values: pa.StructArray) -> pa.StructArray:
        return pa.StructArray.from_arrays(values.flatten(), fields=list(wanted), mask=values.is_null())

    return run


@translates("GetStructField")
def get_struct_field(call: Call, arguments: list[Expr]) -> Expr:
    ordinal = call.option("ordinal")
    assert isinstance(ordinal, int)
    # DataFusion returns the stored field value below a NULL struct.
    value = f.get_field(arguments[0], to_arrow(call.arguments[0].type).field(ordinal).name)
    return f.when(arguments[0].is_null(), typed_null(to_arrow(call.type))).otherwise(value)


@translates("GetArrayStructFields")
def get_array_struct_fields(call: Call, arguments: list[Expr]) -> Expr:
    """One field of every struct in an array, as an array."""
    source, wanted = to_arrow(call.arguments[0].type), to_arrow(call.type)
    ordinal = call.option("ordinal")
    assert isinstance(ordinal, int)
    return kernel(f"fields_{ordinal}_{source}", _fields(ordinal, wanted), wanted, source)(arguments[0])


@cache
def _fields(ordinal: int, wanted: pa.ListType) -> Kernel:
    def run(arrays: pa.ListArray) -> pa.ListArray:
        offsets = pa.array(arrays.offsets.to_numpy().copy(), pa.int32())
        # Flattened, a field is NULL below a NULL struct.
        values = arrays.values.flatten()[ordinal]
        mask = arrays.is_null() if arrays.null_count else None
        return pa.ListArray.from_arrays(offsets, values, type=wanted, mask=mask)

    return run
