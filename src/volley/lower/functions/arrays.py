# SPDX-License-Identifier: Apache-2.0
"""Arrays: made, measured, searched and taken apart, through kernels over whole columns.

Most of them pick runs of elements (`lists.py`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr
from datafusion import functions as f

from volley.lower.functions.constants import constant_value, is_constant
from volley.lower.functions.lists import (
    MOST_ELEMENTS,
    as_longs,
    as_type,
    find_runs,
    is_present,
    list_kernel,
    make_list,
    offsets_for,
    places_of,
    runs,
)
from volley.lower.functions.maps import get_map_value, keys_of
from volley.lower.registry import always, translates
from volley.lower.semantics import ExactnessError, Kernel, constant
from volley.plan.expressions import Call
from volley.plan.types import MapType, to_arrow
from volley.support.nested_rules import is_split_part


@translates("CreateArray")
def create_array(call: Call, arguments: list[Expr]) -> Expr:
    wanted = to_arrow(call.type)
    if is_constant(call):
        return constant(constant_value(call), wanted)
    return list_kernel(call, _create(wanted), arguments)


@cache
def _create(wanted: pa.ListType) -> Kernel:
    def run(*columns: pa.Array) -> pa.Array:
        rows, width = len(columns[0]), len(columns)
        if rows * width > MOST_ELEMENTS:
            raise ExactnessError("more elements than one batch can hold")
        order = np.arange(rows * width).reshape(width, rows).T.ravel()
        values = pa.concat_arrays(list(columns)).take(pa.array(order))
        offsets = np.arange(0, rows * width + 1, width, dtype=np.int32)
        return make_list(wanted, offsets, values, None)

    return run


@translates("Size")
def size(call: Call, arguments: list[Expr]) -> Expr:
    of_null = -1 if call.option("legacySizeOfNull") is True else None
    return list_kernel(call, _size(of_null), arguments, of_null)


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
    return list_kernel(call, _get_strict if strict else _get, arguments, strict)


def _get(arrays: pa.Array, index: pa.Array) -> pa.Array:
    return _elements(arrays, index, strict=False)


def _get_strict(arrays: pa.Array, index: pa.Array) -> pa.Array:
    return _elements(arrays, index, strict=True)


def _elements(arrays: pa.Array, index: pa.Array, *, strict: bool) -> pa.Array:
    starts, counts, present = find_runs(arrays)
    present &= is_present(index)
    places = as_longs(index)
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
    if not is_split_part(call):
        return list_kernel(call, _at_strict if strict else _at, arguments, strict)
    found = list_kernel(call, _part_at, arguments, "part")
    known = arguments[0].is_not_null() & arguments[1].is_not_null()
    return f.coalesce(found, f.when(known, constant("", pa.string())).end())


def _at(arrays: pa.Array, index: pa.Array) -> pa.Array:
    return _elements(arrays, _from_zero(arrays, index), strict=False)


def _at_strict(arrays: pa.Array, index: pa.Array) -> pa.Array:
    return _elements(arrays, _from_zero(arrays, index), strict=True)


def _part_at(arrays: pa.Array, index: pa.Array) -> pa.Array:
    # Spark before 4.3 fails for it, and a worker may not know the release.
    if np.any(is_present(index) & (as_longs(index) == -(2**31))):
        raise ExactnessError("the smallest integer as the number of a part")
    return _at(arrays, index)


def _from_zero(arrays: pa.Array, index: pa.Array) -> pa.Array:
    _, counts, present = find_runs(arrays)
    places, valid = as_longs(index), is_present(index)
    if np.any(present & valid & (places == 0)):
        raise ExactnessError("the position 0 in an array that counts from 1")
    return pa.array(np.where(places > 0, places - 1, places + counts), mask=~valid)


@translates("Slice", fails=always)
def slice_(call: Call, arguments: list[Expr]) -> Expr:
    return list_kernel(call, _slice, arguments)


def _slice(arrays: pa.Array, start: pa.Array, length: pa.Array) -> pa.Array:
    starts, counts, present = find_runs(arrays)
    present &= is_present(start) & is_present(length)
    first, wanted = as_longs(start), as_longs(length)
    if np.any(present & ((first == 0) | (wanted < 0))):
        raise ExactnessError("a slice from the position 0 or of a negative length")
    first = np.where(first > 0, first - 1, first + counts)
    if np.any(present & (first + wanted > MOST_ELEMENTS)):
        raise ExactnessError("a slice whose end is not an int")
    inside = present & (first >= 0) & (first < counts)
    sizes = np.where(inside, np.minimum(wanted, counts - first), 0)
    return runs(arrays.type, arrays.values, np.where(inside, starts + first, 0), sizes, present)


@translates("ArrayContains")
def array_contains(call: Call, arguments: list[Expr]) -> Expr:
    return list_kernel(call, _contains, arguments)


def _contains(arrays: pa.Array, wanted: pa.Array) -> pa.Array:
    """NULL where nothing is found and an element is NULL: it might have been the one."""
    parents, same, null = _matches(arrays, wanted)
    rows = len(arrays)
    found = np.bincount(parents[same], minlength=rows) > 0
    unknown = np.bincount(parents[null], minlength=rows) > 0
    known = is_present(arrays) & is_present(wanted) & (found | ~unknown)
    return pa.array(found, mask=~known)


@translates("ArrayPosition")
def array_position(call: Call, arguments: list[Expr]) -> Expr:
    return list_kernel(call, _position, arguments)


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
    return pa.array(found, mask=~(is_present(arrays) & is_present(wanted)))


def _matches(arrays: pa.Array, wanted: pa.Array) -> tuple[Any, Any, Any]:
    """Of each element: its row, whether it is the wanted value of that row, and whether it is NULL."""
    parents = pc.list_parent_indices(arrays).to_numpy()
    elements = arrays.flatten()
    sought = wanted.take(pa.array(parents))
    same = pc.equal(elements, sought)
    if pa.types.is_floating(elements.type):
        # Spark's NaN equals itself.
        same = pc.or_(same, pc.and_(pc.is_nan(elements), pc.is_nan(sought)))
    return parents, same.fill_null(False).to_numpy(zero_copy_only=False), ~is_present(elements)


# ------------------------------------------------------------------------------------------------- whole


def concat_arrays(call: Call, arguments: list[Expr]) -> Expr:
    return list_kernel(call, concatenate(to_arrow(call.type)), arguments)


@cache
def concatenate(wanted: pa.ListType) -> Kernel:
    """Joins arrays of several columns; NULL where one of them is."""

    def run(*columns: pa.Array) -> pa.Array:
        bounds = [find_runs(column) for column in columns]
        present = np.logical_and.reduce([valid for _, _, valid in bounds])
        values = [as_type(column.values, wanted.value_type) for column in columns]
        bases = np.concatenate(([0], np.cumsum([len(part) for part in values])))[:-1]
        starts = np.stack([first + base for (first, _, _), base in zip(bounds, bases, strict=True)], axis=1)
        counts = np.stack([np.where(present, count, 0) for _, count, _ in bounds], axis=1)
        picked = pa.concat_arrays(values).take(pa.array(places_of(starts.ravel(), counts.ravel())))
        return make_list(wanted, offsets_for(counts.sum(axis=1)), picked, present)

    return run


def reverse_array(call: Call, arguments: list[Expr]) -> Expr:
    return list_kernel(call, _reverse, arguments)


def _reverse(arrays: pa.Array) -> pa.Array:
    starts, counts, present = find_runs(arrays)
    counts = np.where(present, counts, 0)
    forward = places_of(starts, counts)
    # The n-th place of a run and its last-but-n change places.
    backward = np.repeat(2 * starts + counts - 1, counts) - forward
    return make_list(arrays.type, offsets_for(counts), arrays.values.take(pa.array(backward)), present)


@translates("Flatten")
def flatten(call: Call, arguments: list[Expr]) -> Expr:
    return list_kernel(call, _flatten(to_arrow(call.type)), arguments)


@cache
def _flatten(wanted: pa.ListType) -> Kernel:
    def run(arrays: pa.Array) -> pa.Array:
        """NULL where an array inside is."""
        starts, counts, present = find_runs(arrays)
        counts = np.where(present, counts, 0)
        inner = arrays.values.take(pa.array(places_of(starts, counts)))
        inner_starts, inner_counts, inner_present = find_runs(inner)
        rows = np.repeat(np.arange(len(arrays)), counts)
        present = present & (np.bincount(rows[~inner_present], minlength=len(arrays)) == 0)
        inner_counts = np.where(present[rows], inner_counts, 0)
        sizes = np.bincount(rows, weights=inner_counts, minlength=len(arrays)).astype(np.int64)
        picked = inner.values.take(pa.array(places_of(inner_starts, inner_counts)))
        return make_list(wanted, offsets_for(sizes), picked, present)

    return run
