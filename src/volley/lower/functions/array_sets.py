# SPDX-License-Identifier: Apache-2.0
"""Arrays as sets and lists of values: without duplicates, united, intersected, in order, searched.

Equal elements get equal numbers, so that all of this is arithmetic over numbers, whatever the elements are.
"""

from __future__ import annotations

from functools import cache, cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr

from volley.lower.functions.lists import (
    as_longs,
    as_type,
    find_runs,
    is_present,
    list_kernel,
    make_list,
    offsets_for,
    places_of,
)
from volley.lower.registry import translates
from volley.lower.semantics import Kernel
from volley.plan.expressions import Call, Literal
from volley.plan.types import to_arrow


class _Elements:
    """The elements of several columns of arrays, of the rows in which none is NULL."""

    def __init__(self, *columns: pa.Array) -> None:
        found = [find_runs(column) for column in columns]
        self.present = np.logical_and.reduce([present for _, _, present in found])
        size = len(self.present)
        picked: list[pa.Array] = []
        self.rows: list[Any] = []
        for column, (starts, counts, _) in zip(columns, found, strict=True):
            kept = np.where(self.present, counts, 0)
            whole = column.flatten()
            picked.append(
                whole if len(whole) == kept.sum() else column.values.take(pa.array(places_of(starts, kept)))
            )
            self.rows.append(np.repeat(np.arange(size), kept))
        self.values = pa.concat_arrays([as_type(part, picked[0].type) for part in picked])
        self._ends = np.cumsum([len(part) for part in picked])[:-1]
        self.nulls = np.split(~is_present(self.values), self._ends)

    @cached_property
    def _codes(self) -> tuple[Any, int]:
        return _codes(self.values, len(self.present))

    @cached_property
    def keys(self) -> list[Any]:
        """For each column a number for each row and value."""
        codes, kinds = self._codes
        parts = np.split(codes, self._ends)
        return [rows * kinds + part for rows, part in zip(self.rows, parts, strict=True)]

    @property
    def size(self) -> int:
        """One more than the largest of the keys."""
        return len(self.present) * self._codes[1]

    def list(self, wanted: pa.ListType, places: Any) -> pa.Array:
        """The elements at these places in order, each in its row."""
        rows = np.concatenate(self.rows)[places]
        counts = np.bincount(rows, minlength=len(self.present))
        return make_list(wanted, offsets_for(counts), self.values.take(pa.array(places)), self.present)

    def by_row(self) -> Any:
        """The places of the elements of both columns, row by row, those of the first column before the others."""
        left, right = (np.bincount(rows, minlength=len(self.present)) for rows in self.rows)
        order = np.empty(len(self.values), np.int64)
        # Each element comes behind those of the other column in the rows before it, and on the right in its own.
        size = len(self.rows[0])
        order[np.arange(size) + (np.cumsum(right) - right)[self.rows[0]]] = np.arange(size)
        order[np.arange(len(self.rows[1])) + np.cumsum(left)[self.rows[1]]] = np.arange(size, len(order))
        return order

    def firsts(self, keys: Any) -> Any:
        """The places at which a key occurs first."""
        if self.size > _DENSE * (len(keys) + 1000):
            return np.sort(np.unique(keys, return_index=True)[1])
        places = np.arange(len(keys), dtype=np.int32)
        first = np.empty(self.size, np.int32)
        # Of several places the one that is written last remains.
        first[keys[::-1]] = places[::-1]
        return np.flatnonzero(first[keys] == places)

    def in_second(self, keys: Any) -> Any:
        """Whether the second column has the keys."""
        if self.size > _DENSE * (len(self.keys[1]) + 1000):
            return np.isin(keys, self.keys[1])
        found = np.zeros(self.size, np.bool_)
        found[self.keys[1]] = True
        return found[keys]


# A table of all keys is faster than sorting them, up to so many times their number.
_DENSE = 64


def _codes(values: pa.Array, rows: int) -> tuple[Any, int]:
    """A number for each value, and a number that is larger than all of them."""
    if (numbers := _as_numbers(values)) is not None and len(numbers):
        lowest = int(numbers.min())
        kinds = int(numbers.max()) - lowest + 2
        if kinds * (rows + 1) < 2**62:
            return np.where(is_present(values), numbers - lowest + 1, 0), kinds
    codes = pc.dictionary_encode(values, null_encoding="encode").indices.to_numpy().astype(np.int64)
    return codes, int(codes.max()) + 1 if len(codes) else 1


def _as_numbers(values: pa.Array) -> Any | None:
    """The values as longs, if they are numbers in Arrow."""
    kind = values.type
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    elif pa.types.is_date32(kind):
        values = values.view(pa.int32())
    elif pa.types.is_timestamp(kind):
        values = values.view(pa.int64())
    elif not pa.types.is_integer(kind):
        return None
    return as_longs(values)


def _from_numbers(numbers: Any, missing: Any, kind: pa.DataType) -> pa.Array:
    mask = missing if missing.any() else None
    if pa.types.is_boolean(kind):
        return pa.array(numbers != 0, mask=mask)
    width = pa.int32() if pa.types.is_date32(kind) else pa.int64() if pa.types.is_timestamp(kind) else kind
    return pa.array(numbers.astype(width.to_pandas_dtype()), width, mask=mask).view(kind)


@translates("ArrayDistinct")
def array_distinct(call: Call, arguments: list[Expr]) -> Expr:
    return list_kernel(call, _distinct(to_arrow(call.type)), arguments)


@cache
def _distinct(wanted: pa.ListType) -> Kernel:
    def run(arrays: pa.Array) -> pa.Array:
        elements = _Elements(arrays)
        return elements.list(wanted, elements.firsts(elements.keys[0]))

    return run


@translates("ArrayUnion")
def array_union(call: Call, arguments: list[Expr]) -> Expr:
    return list_kernel(call, _union(to_arrow(call.type)), arguments)


@cache
def _union(wanted: pa.ListType) -> Kernel:
    def run(left: pa.Array, right: pa.Array) -> pa.Array:
        elements = _Elements(left, right)
        order = elements.by_row()
        places = elements.firsts(np.concatenate(elements.keys)[order])
        return elements.list(wanted, order[places])

    return run


@translates("ArrayIntersect", "ArrayExcept")
def array_intersect(call: Call, arguments: list[Expr]) -> Expr:
    run = _compared(to_arrow(call.type), call.function == "ArrayIntersect")
    return list_kernel(call, run, arguments)


@cache
def _compared(wanted: pa.ListType, kept: bool) -> Kernel:
    def run(left: pa.Array, right: pa.Array) -> pa.Array:
        elements = _Elements(left, right)
        places = elements.firsts(elements.keys[0])
        found = elements.in_second(elements.keys[0][places])
        return elements.list(wanted, places[found == kept])

    return run


@translates("ArraysOverlap")
def arrays_overlap(call: Call, arguments: list[Expr]) -> Expr:
    return list_kernel(call, _overlap, arguments)


def _overlap(left: pa.Array, right: pa.Array) -> pa.Array:
    """NULL where nothing is common, but an element is NULL and might be, unless an array is empty."""
    elements = _Elements(left, right)
    size = len(elements.present)
    common = ~elements.nulls[0] & elements.in_second(elements.keys[0])
    found = np.bincount(elements.rows[0][common], minlength=size) > 0
    filled = [np.bincount(rows, minlength=size) > 0 for rows in elements.rows]
    null = np.zeros(size, np.bool_)
    for rows, nulls in zip(elements.rows, elements.nulls, strict=True):
        null |= np.bincount(rows[nulls], minlength=size) > 0
    unknown = ~found & null & filled[0] & filled[1]
    return pa.array(found, mask=unknown | ~elements.present)


@translates("ArrayRemove")
def array_remove(call: Call, arguments: list[Expr]) -> Expr:
    return list_kernel(call, _remove(to_arrow(call.type)), arguments)


@cache
def _remove(wanted: pa.ListType) -> Kernel:
    def run(arrays: pa.Array, unwanted: pa.Array) -> pa.Array:
        """NULL where the unwanted value is."""
        singles = pa.ListArray.from_arrays(
            pa.array(np.arange(len(unwanted) + 1, dtype=np.int32)), unwanted, mask=unwanted.is_null()
        )
        elements = _Elements(arrays, singles)
        kept = ~elements.in_second(elements.keys[0])
        return elements.list(wanted, np.flatnonzero(kept))

    return run


# ------------------------------------------------------------------------------------------------- order


@translates("SortArray")
def sort_array(call: Call, arguments: list[Expr]) -> Expr:
    ascending = call.arguments[1]
    assert isinstance(ascending, Literal)
    return _sort(call, arguments[0], ascending=bool(ascending.value), nulls_first=bool(ascending.value))


@translates("ArraySort")
def array_sort(call: Call, arguments: list[Expr]) -> Expr:
    # The rule admits no comparison but Spark's own.
    return _sort(call, arguments[0], ascending=True, nulls_first=False)


def _sort(call: Call, array: Expr, *, ascending: bool, nulls_first: bool) -> Expr:
    run = _sorted(to_arrow(call.type), ascending, nulls_first)
    whole = Call(call.function, call.arguments[:1], call.type)
    return list_kernel(whole, run, [array], f"{ascending}_{nulls_first}")


@cache
def _sorted(wanted: pa.ListType, ascending: bool, nulls_first: bool) -> Kernel:
    def run(arrays: pa.Array) -> pa.Array:
        elements = _Elements(arrays)
        rows = elements.rows[0]
        offsets = offsets_for(np.bincount(rows, minlength=len(arrays)))
        values = _sorted_numbers(elements, ascending, nulls_first)
        if values is None:
            order = _ranks(elements.values, ascending=ascending, nulls_first=nulls_first)
            # A stable sort by row of what is in order.
            places = order[np.argsort(rows[order], kind="stable")]
            values = elements.values.take(pa.array(places))
        return make_list(wanted, offsets, values, elements.present)

    return run


def _sorted_numbers(elements: _Elements, ascending: bool, nulls_first: bool) -> pa.Array | None:
    """All elements in the order of rows and values; None if they are no numbers, or too far apart."""
    numbers = _as_numbers(elements.values)
    if numbers is None or not len(numbers):
        return None
    lowest, highest = int(numbers.min()), int(numbers.max())
    kinds = highest - lowest + 3
    if kinds * (len(elements.present) + 1) >= 2**62:
        return None
    codes = numbers - lowest + 1 if ascending else highest - numbers + 1
    null = 0 if nulls_first else kinds - 1
    first = elements.rows[0] * kinds
    found = np.sort(first + np.where(elements.nulls[0], null, codes)) - first
    back = found - 1 + lowest if ascending else highest - found + 1
    return _from_numbers(back, found == null, elements.values.type)


def _ranks(values: pa.Array, *, ascending: bool, nulls_first: bool) -> Any:
    """The places of the values, in their order."""
    direction = "ascending" if ascending else "descending"
    placement = "at_start" if nulls_first else "at_end"
    return (
        pc.array_sort_indices(values, order=direction, null_placement=placement).to_numpy().astype(np.int64)
    )


@translates("ArrayMin", "ArrayMax")
def array_extreme(call: Call, arguments: list[Expr]) -> Expr:
    return list_kernel(call, _extreme(call.function == "ArrayMin"), arguments)


@cache
def _extreme(smallest: bool) -> Kernel:
    def run(arrays: pa.Array) -> pa.Array:
        """NULL where there is no element but NULL."""
        elements = _Elements(arrays)
        rows, known = elements.rows[0], ~elements.nulls[0]
        counts = np.bincount(rows[known], minlength=len(arrays))
        missing = counts == 0
        numbers = _as_numbers(elements.values)
        assert numbers is not None
        found = np.zeros(len(arrays), np.int64)
        starts = (np.cumsum(counts) - counts)[~missing]
        if len(starts):
            found[~missing] = (np.minimum if smallest else np.maximum).reduceat(numbers[known], starts)
        return _from_numbers(found, missing, elements.values.type)

    return run
