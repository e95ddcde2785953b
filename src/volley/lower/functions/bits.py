# SPDX-License-Identifier: Apache-2.0
"""Bitwise operators and shifts, with Arrow kernels: DataFusion's Python expressions lack them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr

from volley.lower.registry import translates
from volley.lower.semantics import kernel
from volley.plan.expressions import Call
from volley.plan.types import to_arrow

_KERNELS = {
    "BitwiseAnd": pc.bit_wise_and,
    "BitwiseOr": pc.bit_wise_or,
    "BitwiseXor": pc.bit_wise_xor,
    "BitwiseNot": pc.bit_wise_not,
}


@translates("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")
def bitwise(call: Call, arguments: list[Expr]) -> Expr:
    arrow_type = to_arrow(call.type)
    types = [arrow_type] * len(arguments)
    return kernel(f"{call.function}_{arrow_type}", _KERNELS[call.function], arrow_type, *types)(*arguments)


@translates("ShiftLeft", "ShiftRight", "ShiftRightUnsigned")
def shift(call: Call, arguments: list[Expr]) -> Expr:
    arrow_type = to_arrow(call.type)
    name = f"{call.function}_{arrow_type}"
    return kernel(name, _SHIFTS[call.function], arrow_type, arrow_type, pa.int32())(*arguments)


def _distance(values: pa.Array, count: pa.Array) -> pa.Array:
    """Java takes the distance modulo the width."""
    mask = pa.scalar(values.type.bit_width - 1, pa.int32())
    return pc.cast(pc.bit_wise_and(count, mask), values.type)


def _unsigned(values: pa.Array) -> pa.Array:
    return values.view(pa.uint32() if values.type == pa.int32() else pa.uint64())


def _left(values: pa.Array, count: pa.Array) -> pa.Array:
    # Arrow does not shift a signed value if the distance reaches the sign bit.
    return pc.shift_left(_unsigned(values), _unsigned(_distance(values, count))).view(values.type)


def _right(values: pa.Array, count: pa.Array) -> pa.Array:
    # In two steps, for the same reason.
    distance = _distance(values, count)
    half = pc.shift_right(distance, pa.scalar(1, values.type))
    return pc.shift_right(pc.shift_right(values, half), pc.subtract(distance, half))


def _right_unsigned(values: pa.Array, count: pa.Array) -> pa.Array:
    return pc.shift_right(_unsigned(values), _unsigned(_distance(values, count))).view(values.type)


_SHIFTS = {"ShiftLeft": _left, "ShiftRight": _right, "ShiftRightUnsigned": _right_unsigned}
