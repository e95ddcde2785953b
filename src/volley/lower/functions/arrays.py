# SPDX-License-Identifier: Apache-2.0
"""Arrays: made, measured, searched and taken apart, through kernels over whole columns.

Most of them pick runs of elements: `_runs` builds a list from where each run starts and how long it is.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr

from volley.lower.functions.constants import constant_value, is_constant
from volley.lower.functions.maps import get_map_value, keys_of
from volley.lower.registry import always, translates
from volley.lower.semantics import ExactnessError, Kernel, constant, kernel
from volley.plan.expressions import Call
from volley.plan.types import MapType, to_arrow

_LARGEST = 2**31 - 1


def _kernel(call: Call, function: Kernel, arguments: list[Expr], detail: object = "") -> Expr:
    """`function` over the arguments, each in exactly the type that Spark gave it."""
    types = [to_arrow(argument.type) for argument in call.arguments]
    result = to_arrow(call.type)
    name = f"{call.function}_{detail}_{result}_{'_'.join(map(str, types))}"
    return kernel(name, function, result, *types)(*arguments)


@translates("CreateArray")
def create_array(call: Call, arguments: list[Expr]) -> Expr:
    wanted = to_arrow(call.type)
    if is_constant(call):
        return constant(constant_value(call), wanted)
    return _kernel(call, _create(wanted), arguments)


@cache
def _create(wanted: pa.ListType) -> Kernel:
    def run(*columns: pa.Array) -> pa.Array:
        rows, width = len(columns[0]), len(columns)
        if rows * width > _LARGEST:
            raise ExactnessError("more elements than one batch can hold")
        order = np.arange(rows * width).reshape(width, rows).T.ravel()
        values = pa.concat_arrays(list(columns)).take(pa.array(order))
        offsets = np.arange(0, rows * width + 1, width, dtype=np.int32)
        return _list(wanted, offsets, values, None)

    return run


@translates("Size")
def size(call: Call, arguments: list[Expr]) -> Expr:
    of_null = -1 if call.option("legacySizeOfNull") is True else None
    return _kernel(call, _size(of_null), arguments, of_null)


@cache
def _size(of_null: int | None) -> Kernel:
    def run(arrays: pa.Array) -> pa.Array:
        found = pc.list_value_length(keys_of(arrays) if pa.types.is_map(arrays.type) else arrays)
        return found if of_null is None else found.fill_null(of_null)

    return run


# ------------------------------------------------------------------------------------------------ access


def _fails_on_bad_index(call: Call) -> bool:
    return call.option("failOnError") is True


@translates("GetArrayItem", fails=_fails_on_bad_index)
def get_array_item(call: Call, arguments: list[Expr]) -> Expr:
    """Positions count from 0."""
    strict = _fails_on_bad_index(call)
    return _kernel(call, _get_strict if strict else _get, arguments, strict)


def _get(arrays: pa.Array, index: pa.Array) -> pa.Array:
    return _elements(arrays, index, strict=False)


def _get_strict(arrays: pa.Array, index: pa.Array) -> pa.Array:
    return _elements(arrays, index, strict=True)


def _elements(arrays: pa.Array, index: pa.Array, *, strict: bool) -> pa.Array:
    starts, counts, present = _bounds(arrays)
    present &= _valid(index)
    places = _numbers(index)
    inside = present & (places >= 0) & (places < counts)
    if strict and not np.array_equal(inside, present):
        raise ExactnessError("a position outside an array")
    return arrays.values.take(pa.array(np.where(inside, starts + places, 0), mask=~inside))


@translates("ElementAt", fails=always)
def element_at(call: Call, arguments: list[Expr]) -> Expr:
    """Positions count from 1, negative ones from the end."""
    if isinstance(call.arguments[0].type, MapType):
        return get_map_value(call, arguments)
    strict = _fails_on_bad_index(call)
    return _kernel(call, _at_strict if strict else _at, arguments, strict)


def _at(arrays: pa.Array, index: pa.Array) -> pa.Array:
    return _elements(arrays, _from_zero(arrays, index), strict=False)


def _at_strict(arrays: pa.Array, index: pa.Array) -> pa.Array:
    return _elements(arrays, _from_zero(arrays, index), strict=True)


def _from_zero(arrays: pa.Array, index: pa.Array) -> pa.Array:
    _, counts, present = _bounds(arrays)
    places, valid = _numbers(index), _valid(index)
    if np.any(present & valid & (places == 0)):
        raise ExactnessError("the position 0 in an array that counts from 1")
    return pa.array(np.where(places > 0, places - 1, places + counts), mask=~valid)


@translates("Slice", fails=always)
def slice_(call: Call, arguments: list[Expr]) -> Expr:
    return _kernel(call, _slice, arguments)


def _slice(arrays: pa.Array, start: pa.Array, length: pa.Array) -> pa.Array:
    starts, counts, present = _bounds(arrays)
    present &= _valid(start) & _valid(length)
    first, wanted = _numbers(start), _numbers(length)
    if np.any(present & ((first == 0) | (wanted < 0))):
        raise ExactnessError("a slice from the position 0 or of a negative length")
    first = np.where(first > 0, first - 1, first + counts)
    if np.any(present & (first + wanted > _LARGEST)):
        raise ExactnessError("a slice whose end is not an int")
    inside = present & (first >= 0) & (first < counts)
    sizes = np.where(inside, np.minimum(wanted, counts - first), 0)
    return _runs(arrays.type, arrays.values, np.where(inside, starts + first, 0), sizes, present)


@translates("ArrayContains")
def array_contains(call: Call, arguments: list[Expr]) -> Expr:
    return _kernel(call, _contains, arguments)


def _contains(arrays: pa.Array, wanted: pa.Array) -> pa.Array:
    """NULL where nothing is found and an element is NULL: it might have been the one."""
    parents, same, null = _matches(arrays, wanted)
    rows = len(arrays)
    found = np.bincount(parents[same], minlength=rows) > 0
    unknown = np.bincount(parents[null], minlength=rows) > 0
    known = _valid(arrays) & _valid(wanted) & (found | ~unknown)
    return pa.array(found, mask=~known)


@translates("ArrayPosition")
def array_position(call: Call, arguments: list[Expr]) -> Expr:
    return _kernel(call, _position, arguments)


def _position(arrays: pa.Array, wanted: pa.Array) -> pa.Array:
    """The first place that holds the value, from 1; 0 for none."""
    parents, same, _ = _matches(arrays, wanted)
    places = np.flatnonzero(same)
    rows, at = np.unique(parents[places], return_index=True)
    found = np.zeros(len(arrays), np.int64)
    # Places count through the flattened elements, in which NULL arrays have none.
    counts = np.bincount(parents, minlength=len(arrays))
    before = np.concatenate(([0], np.cumsum(counts)))[:-1]
    found[rows] = places[at] - before[rows] + 1
    return pa.array(found, mask=~(_valid(arrays) & _valid(wanted)))


def _matches(arrays: pa.Array, wanted: pa.Array) -> tuple[Any, Any, Any]:
    """Of each element: its row, whether it is the wanted value of that row, and whether it is NULL."""
    parents = pc.list_parent_indices(arrays).to_numpy()
    elements = arrays.flatten()
    sought = wanted.take(pa.array(parents))
    same = pc.equal(elements, sought)
    if pa.types.is_floating(elements.type):
        # Spark's NaN equals itself.
        same = pc.or_(same, pc.and_(pc.is_nan(elements), pc.is_nan(sought)))
    return parents, same.fill_null(False).to_numpy(zero_copy_only=False), ~_valid(elements)


# ------------------------------------------------------------------------------------------------- whole


def concat_arrays(call: Call, arguments: list[Expr]) -> Expr:
    return _kernel(call, _concat(to_arrow(call.type)), arguments)


@cache
def _concat(wanted: pa.ListType) -> Kernel:
    def run(*columns: pa.Array) -> pa.Array:
        bounds = [_bounds(column) for column in columns]
        present = np.logical_and.reduce([valid for _, _, valid in bounds])
        values = [_as(column.values, wanted.value_type) for column in columns]
        bases = np.concatenate(([0], np.cumsum([len(part) for part in values])))[:-1]
        starts = np.stack([first + base for (first, _, _), base in zip(bounds, bases, strict=True)], axis=1)
        counts = np.stack([np.where(present, count, 0) for _, count, _ in bounds], axis=1)
        picked = pa.concat_arrays(values).take(pa.array(_places(starts.ravel(), counts.ravel())))
        return _list(wanted, _offsets(counts.sum(axis=1)), picked, present)

    return run


def reverse_array(call: Call, arguments: list[Expr]) -> Expr:
    return _kernel(call, _reverse, arguments)


def _reverse(arrays: pa.Array) -> pa.Array:
    starts, counts, present = _bounds(arrays)
    counts = np.where(present, counts, 0)
    forward = _places(starts, counts)
    # The n-th place of a run and its last-but-n change places.
    backward = np.repeat(2 * starts + counts - 1, counts) - forward
    return _list(arrays.type, _offsets(counts), arrays.values.take(pa.array(backward)), present)


@translates("Flatten")
def flatten(call: Call, arguments: list[Expr]) -> Expr:
    return _kernel(call, _flatten(to_arrow(call.type)), arguments)


@cache
def _flatten(wanted: pa.ListType) -> Kernel:
    def run(arrays: pa.Array) -> pa.Array:
        """NULL where an array inside is."""
        starts, counts, present = _bounds(arrays)
        counts = np.where(present, counts, 0)
        inner = arrays.values.take(pa.array(_places(starts, counts)))
        inner_starts, inner_counts, inner_present = _bounds(inner)
        rows = np.repeat(np.arange(len(arrays)), counts)
        present = present & (np.bincount(rows[~inner_present], minlength=len(arrays)) == 0)
        inner_counts = np.where(present[rows], inner_counts, 0)
        sizes = np.bincount(rows, weights=inner_counts, minlength=len(arrays)).astype(np.int64)
        picked = inner.values.take(pa.array(_places(inner_starts, inner_counts)))
        return _list(wanted, _offsets(sizes), picked, present)

    return run


# ------------------------------------------------------------------------------------------------ helpers


def _bounds(arrays: pa.Array) -> tuple[Any, Any, Any]:
    """Where the elements of each array start in `arrays.values`, how many they are, and which arrays are not NULL."""
    offsets = arrays.offsets.to_numpy().astype(np.int64)
    return offsets[:-1], np.diff(offsets), _valid(arrays)


def _valid(values: pa.Array) -> Any:
    return pc.is_valid(values).to_numpy(zero_copy_only=False).copy()


def _numbers(values: pa.Array) -> Any:
    """As longs, 0 for NULL."""
    return values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def _places(starts: Any, counts: Any) -> Any:
    """All places of runs, one run after the other."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)


def _offsets(counts: Any) -> Any:
    offsets = np.concatenate(([0], np.cumsum(counts)))
    if offsets[-1] > _LARGEST:
        raise ExactnessError("more elements than one batch can hold")
    return offsets.astype(np.int32)


def _runs(wanted: pa.ListType, values: pa.Array, starts: Any, counts: Any, present: Any) -> pa.Array:
    counts = np.where(present, counts, 0)
    return _list(wanted, _offsets(counts), values.take(pa.array(_places(starts, counts))), present)


def _list(wanted: pa.ListType, offsets: Any, values: pa.Array, present: Any | None) -> pa.Array:
    mask = None if present is None or present.all() else pa.array(~present)
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), _as(values, wanted.value_type), type=wanted, mask=mask
    )


def _as(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    return values if values.type == wanted else values.cast(wanted)
