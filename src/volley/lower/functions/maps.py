# SPDX-License-Identifier: Apache-2.0
"""Maps: measured, taken apart and looked up in, through kernels over whole columns.

Arrow keeps a map as a list of entries in the order in which Spark has them, so all of these are views of its children.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr

from volley.lower.registry import translates
from volley.lower.semantics import Kernel, kernel
from volley.plan.expressions import Call, Literal
from volley.plan.types import to_arrow


def _kernel(call: Call, function: Kernel, argument: Expr, detail: object = "") -> Expr:
    """`function` over a map."""
    source, result = to_arrow(call.arguments[0].type), to_arrow(call.type)
    return kernel(f"{call.function}_{detail}_{result}_{source}", function, result, source)(argument)


@translates("MapKeys")
def map_keys(call: Call, arguments: list[Expr]) -> Expr:
    return _kernel(call, _keys(to_arrow(call.type)), arguments[0])


@translates("MapValues")
def map_values(call: Call, arguments: list[Expr]) -> Expr:
    return _kernel(call, _values(to_arrow(call.type)), arguments[0])


@translates("MapEntries")
def map_entries(call: Call, arguments: list[Expr]) -> Expr:
    return _kernel(call, _entries(to_arrow(call.type)), arguments[0])


@translates("GetMapValue")
def get_map_value(call: Call, arguments: list[Expr]) -> Expr:
    key = call.arguments[1]
    assert isinstance(key, Literal)
    wanted = to_arrow(key.type)
    return _kernel(call, _look_up(pa.scalar(key.value, wanted)), arguments[0], repr(key.value))


def keys_of(maps: pa.MapArray) -> pa.Array:
    """The keys of each map as a list."""
    return _list(pa.list_(maps.type.key_type), maps, maps.keys)


@cache
def _keys(wanted: pa.ListType) -> Kernel:
    def run(maps: pa.MapArray) -> pa.Array:
        return _list(wanted, maps, maps.keys)

    return run


@cache
def _values(wanted: pa.ListType) -> Kernel:
    def run(maps: pa.MapArray) -> pa.Array:
        return _list(wanted, maps, maps.items)

    return run


@cache
def _entries(wanted: pa.ListType) -> Kernel:
    def run(maps: pa.MapArray) -> pa.Array:
        entries = pa.StructArray.from_arrays([maps.keys, maps.items], fields=list(wanted.value_type))
        return _list(wanted, maps, entries)

    return run


@cache
def _look_up(key: pa.Scalar) -> Kernel:
    def run(maps: pa.MapArray) -> pa.Array:
        return pc.map_lookup(maps, key, "first")

    return run


def _list(wanted: pa.ListType, maps: pa.MapArray, values: pa.Array) -> pa.Array:
    """A list for each map, of children of all maps."""
    return pa.Array.from_buffers(wanted, len(maps), maps.buffers()[:2], -1, maps.offset, [values])
