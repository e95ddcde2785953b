# SPDX-License-Identifier: Apache-2.0
"""Arrays as sets and lists of values: without duplicates, united, intersected, in order, searched.

Equal elements get equal numbers, so that all of this is arithmetic over numbers, whatever the elements are.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr

from volley.lower.functions.lists import (
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
        self.rows = [
            np.repeat(np.arange(len(self.present)), np.where(self.present, counts, 0))
            for _, counts, _ in found
        ]
        picked = [
            column.values.take(pa.array(places_of(starts, np.where(self.present, counts, 0))))
            for column, (starts, counts, _) in zip(columns, found, strict=True)
        ]
        self.values = pa.concat_arrays([as_type(part, picked[0].type) for part in picked])
        encoded = (
            pc.dictionary_encode(self.values, null_encoding="encode").indices.to_numpy().astype(np.int64)
        )
        self._kinds = int(encoded.max()) + 1 if len(encoded) else 1
        ends = np.cumsum([len(part) for part in picked])[:-1]
        self.keys = [
            rows * self._kinds + part for rows, part in zip(self.rows, np.split(encoded, ends), strict=True)
        ]
        """A number for each row and value."""
        self.nulls = np.split(~is_present(self.values), ends)

    def list(self, wanted: pa.ListType, places: Any) -> pa.Array:
        """The elements at these places in order, each in its row."""
        rows = np.concatenate(self.rows)[places]
        counts = np.bincount(rows, minlength=len(self.present))
        return make_list(wanted, offsets_for(counts), self.values.take(pa.array(places)), self.present)


def _firsts(keys: Any) -> Any:
    """The places at which a number occurs first."""
    return np.sort(np.unique(keys, return_index=True)[1])


@translates("ArrayDistinct")
def array_distinct(call: Call, arguments: list[Expr]) -> Expr:
    return list_kernel(call, _distinct(to_arrow(call.type)), arguments)


@cache
def _distinct(wanted: pa.ListType) -> Kernel:
    def run(arrays: pa.Array) -> pa.Array:
        elements = _Elements(arrays)
        return elements.list(wanted, _firsts(elements.keys[0]))

    return run


@translates("ArrayUnion")
def array_union(call: Call, arguments: list[Expr]) -> Expr:
    return list_kernel(call, _union(to_arrow(call.type)), arguments)


@cache
def _union(wanted: pa.ListType) -> Kernel:
    def run(left: pa.Array, right: pa.Array) -> pa.Array:
        elements = _Elements(left, right)
        places = _firsts(np.concatenate(elements.keys))
        # All of a row together, those of the left array first.
        return elements.list(wanted, places[np.argsort(np.concatenate(elements.rows)[places], kind="stable")])

    return run


@translates("ArrayIntersect", "ArrayExcept")
def array_intersect(call: Call, arguments: list[Expr]) -> Expr:
    run = _compared(to_arrow(call.type), call.function == "ArrayIntersect")
    return list_kernel(call, run, arguments)


@cache
def _compared(wanted: pa.ListType, kept: bool) -> Kernel:
    def run(left: pa.Array, right: pa.Array) -> pa.Array:
        elements = _Elements(left, right)
        places = _firsts(elements.keys[0])
        found = np.isin(elements.keys[0][places], elements.keys[1])
        return elements.list(wanted, places[found == kept])

    return run


@translates("ArraysOverlap")
def arrays_overlap(call: Call, arguments: list[Expr]) -> Expr:
    return list_kernel(call, _overlap, arguments)


def _overlap(left: pa.Array, right: pa.Array) -> pa.Array:
    """NULL where nothing is common, but an element is NULL and might be, unless an array is empty."""
    elements = _Elements(left, right)
    size = len(elements.present)
    common = ~elements.nulls[0] & np.isin(elements.keys[0], elements.keys[1])
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
        kept = ~np.isin(elements.keys[0], elements.keys[1])
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
        starts, counts, present = find_runs(arrays)
        counts = np.where(present, counts, 0)
        values = arrays.values.take(pa.array(places_of(starts, counts)))
        order = _ranks(values, ascending=ascending, nulls_first=nulls_first)
        rows = np.repeat(np.arange(len(arrays)), counts)
        # A stable sort by row of what is in order.
        places = order[np.argsort(rows[order], kind="stable")]
        return make_list(wanted, offsets_for(counts), values.take(pa.array(places)), present)

    return run


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
        order = _ranks(elements.values, ascending=smallest, nulls_first=False)
        rows = elements.rows[0][order]
        known = ~elements.nulls[0][order]
        found, first = np.unique(rows[known], return_index=True)
        places = np.zeros(len(arrays), np.int64)
        places[found] = order[known][first]
        missing = np.ones(len(arrays), np.bool_)
        missing[found] = False
        return elements.values.take(pa.array(places, mask=missing))

    return run
