# SPDX-License-Identifier: Apache-2.0
"""Generators (explode, inline, stack, ...): list columns of equal length, unnested together.

    explode(a)        a
    posexplode(a)     [0, 1, ...], a
    inline(a)         a, whose structs are then taken apart
    stack(2, x, y)    [x, y]

DataFusion's unnest drops empty lists and, unless told to preserve them, NULL ones. For an outer generator empty lists
become NULL, and a preserved NULL list gives the one row of NULLs that Spark returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import DataFrame, Expr, col

from volley.lower.expressions import column_name, lower_expression
from volley.lower.registry import may_fail
from volley.lower.scope import column, distinct
from volley.lower.semantics import ExactnessError, Kernel, kernel
from volley.plan.builders import both
from volley.plan.expressions import Attribute, Call, Expression, Literal, canonicalize, conjuncts
from volley.plan.nodes import Filter, Generate
from volley.plan.types import (
    NULL,
    ArrayType,
    MapType,
    StructField,
    StructType,
    to_arrow,
)

_POSITIONS = pa.list_(pa.field("element", pa.int32()))
_LARGEST = 2**31 - 1


def lower_generate(node: Generate, child: DataFrame) -> DataFrame:
    kept = distinct(node.required)
    lists, columns = _GENERATORS[node.function](node)
    copied = _copied(node)
    if node.outer:
        lists = {name: _null_if_empty(value) for name, value in lists.items()}
    frame = child.select(
        *(column(attribute) for attribute in kept),
        *(value.alias(column_name(id)) for id, value in copied.items()),
        *(value.alias(name) for name, (value, _) in lists.items()),
    )
    frame = frame.unnest_columns(*lists, preserve_nulls=node.outer)
    return frame.select(
        *(column(attribute) for attribute in kept),
        *(col(column_name(id)) for id in copied),
        *(value.alias(column_name(id)) for id, value in columns.items()),
    )


def without_implied_checks(node: Generate) -> Generate:
    """Drop the checks that Spark puts below a generator: rows without elements generate nothing anyway.

    A check stays if the rest of the condition may fail: it could be there to guard that.
    """
    if node.outer or not isinstance(node.child, Filter):
        return node
    implied = {canonicalize(argument) for argument in node.arguments}
    parts = list(conjuncts(node.child.condition))
    kept = [part for part in parts if _checked(part) not in implied]
    if len(kept) == len(parts) or any(map(may_fail, kept)):
        return node
    below = node.child.child
    return replace(node, child=Filter(reduce(both, kept), below) if kept else below)


def _checked(condition: Expression) -> Expression | None:
    """The array that a condition requires to be present, or to have elements."""
    match condition:
        case Call("IsNotNull", (array,), _, _, _):
            return canonicalize(array)
        case Call("GreaterThan", (Call("Size", (array,), _, _, _), Literal(0, _)), _, _, _):
            return canonicalize(array)
        case _:
            return None


# --------------------------------------------------------------------------------------------- generators

_Lists = dict[str, tuple[Expr, pa.DataType]]
_Columns = dict[int, Expr]
_POSITION, _ELEMENT = "position", "element"


def _explode(node: Generate) -> tuple[_Lists, _Columns]:
    if isinstance(node.arguments[0].type, MapType):
        return _entries(node, node.generated)
    lists, columns = _elements(node)
    return lists, columns | {node.generated[0].id: col(_ELEMENT)}


def _pos_explode(node: Generate) -> tuple[_Lists, _Columns]:
    place, *made = node.generated
    node = replace(node, position=node.position or place)
    if isinstance(node.arguments[0].type, MapType):
        lists, columns = _entries(node, tuple(made))
        return lists, columns | {place.id: col(_POSITION)}
    (element,) = made
    lists, columns = _elements(node)
    return lists, columns | {place.id: col(_POSITION), element.id: col(_ELEMENT)}


def _entries(node: Generate, made: tuple[Attribute, ...]) -> tuple[_Lists, _Columns]:
    """The keys and the values of a map, as the fields of its entries."""
    (entries,) = node.arguments
    assert isinstance(entries.type, MapType)
    fields = (
        StructField("key", entries.type.key, False),
        StructField("value", entries.type.value, entries.type.value_contains_null),
    )
    kind = ArrayType(StructType(fields), False)
    listed = Call("MapEntries", (entries,), kind)
    return _inline(replace(node, arguments=(listed,), generated=made))


def _inline(node: Generate) -> tuple[_Lists, _Columns]:
    lists, columns = _elements(node)
    (array,) = node.arguments
    assert isinstance(array.type, ArrayType)
    struct = array.type.element
    assert isinstance(struct, StructType)
    element = Attribute(_STRUCT_ID, _ELEMENT, struct)
    named = {f"{column_name(_STRUCT_ID)}": lists.pop(_ELEMENT)}
    for ordinal, (field, attribute) in enumerate(zip(struct.fields, node.generated, strict=True)):
        access = Call("GetStructField", (element,), field.type, options=(("ordinal", ordinal),))
        columns[attribute.id] = lower_expression(access)
    return lists | named, columns


# Catalyst's ids are never negative.
_STRUCT_ID = -1


def _stack(node: Generate) -> tuple[_Lists, _Columns]:
    count, *values = node.arguments
    assert isinstance(count, Literal)
    assert isinstance(count.value, int)
    width = len(node.generated)
    lists: _Lists = {}
    columns: _Columns = {}
    for place, attribute in enumerate(node.generated):
        # The last row may be incomplete.
        cells = [values[at] if at < len(values) else None for at in range(place, count.value * width, width)]
        parts = tuple(_cell(cell, attribute) for cell in cells)
        array = Call("CreateArray", parts, ArrayType(attribute.type, True))
        name = f"{_ELEMENT}{place}"
        lists[name] = lower_expression(array), to_arrow(array.type)
        columns[attribute.id] = col(name)
    if node.position is not None:
        first = lists[f"{_ELEMENT}0"]
        lists[_POSITION] = _positions(*first), _POSITIONS
        columns[node.position.id] = col(_POSITION)
    return lists, columns


def _cell(value: Expression | None, attribute: Attribute) -> Expression:
    if value is None or value.type == NULL:
        return Literal(None, attribute.type)
    return value


def _replicate(node: Generate) -> tuple[_Lists, _Columns]:
    """The first argument says how often the others are repeated."""
    repeated = kernel("repeat", _repeat, _POSITIONS, pa.int64())(lower_expression(node.arguments[0]))
    columns = {} if node.position is None else {node.position.id: col(_POSITION)}
    return {_POSITION: (repeated, _POSITIONS)}, columns


def _copied(node: Generate) -> _Columns:
    """Generated columns that are the same in all rows made from one row."""
    if node.function != "ReplicateRows":
        return {}
    _, *values = node.arguments
    kept = {attribute.id for attribute in node.required}
    return {
        attribute.id: lower_expression(value)
        for attribute, value in zip(node.generated, values, strict=True)
        # Spark gives the copy of a column the id of that column.
        if attribute.id not in kept
    }


def _elements(node: Generate) -> tuple[_Lists, _Columns]:
    """The elements of the only argument, with their positions if these are needed."""
    (array,) = node.arguments
    elements = lower_expression(array), to_arrow(array.type)
    lists: _Lists = {_ELEMENT: elements}
    columns: _Columns = {}
    if node.position is not None:
        lists[_POSITION] = _positions(*elements), _POSITIONS
        columns[node.position.id] = col(_POSITION)
    return lists, columns


_GENERATORS: dict[str, Callable[[Generate], tuple[_Lists, _Columns]]] = {
    "Explode": _explode,
    "PosExplode": _pos_explode,
    "Inline": _inline,
    "Stack": _stack,
    "ReplicateRows": _replicate,
}


# ------------------------------------------------------------------------------------------------ kernels


def _null_if_empty(lists: tuple[Expr, pa.DataType]) -> tuple[Expr, pa.DataType]:
    value, kind = lists
    # The element of a row that generates nothing is NULL, even if those of the array never are.
    nullable = pa.list_(kind.value_field.with_nullable(True))
    run = kernel(f"null_if_empty_{kind}", _mask_empty(nullable), nullable, kind)
    return run(value), nullable


@cache
def _mask_empty(wanted: pa.ListType) -> Kernel:
    def run(arrays: pa.Array) -> pa.Array:
        empty = pc.equal(pc.list_value_length(arrays), 0).fill_null(True)
        offsets = pa.array(arrays.offsets.to_numpy().copy(), pa.int32())
        return pa.ListArray.from_arrays(offsets, arrays.values, type=wanted, mask=empty)

    return run


def _positions(arrays: Expr, kind: pa.DataType) -> Expr:
    return kernel(f"positions_{kind}", _number_elements, _POSITIONS, kind)(arrays)


def _number_elements(arrays: pa.Array) -> pa.Array:
    return _count_up(pc.list_value_length(arrays).fill_null(0), arrays.is_null())


def _repeat(counts: pa.Array) -> pa.Array:
    return _count_up(counts.fill_null(0), counts.is_null())


def _count_up(counts: pa.Array, null: pa.Array) -> pa.Array:
    """For each count, the list of the numbers below it."""
    sizes: Any = np.maximum(counts.to_numpy(zero_copy_only=False).astype(np.int64), 0)
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    if total > _LARGEST:
        raise ExactnessError("more rows than one batch can hold")
    numbers = np.arange(total, dtype=np.int64) - np.repeat(ends - sizes, sizes)
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    mask = null if null.true_count else None
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(numbers.astype(np.int32)), type=_POSITIONS, mask=mask
    )
