# SPDX-License-Identifier: Apache-2.0
"""Arrays made of other values, and texts made of arrays."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr

from volley.lower.functions.arrays import concatenate
from volley.lower.functions.lists import (
    MOST_ELEMENTS,
    as_longs,
    find_runs,
    is_present,
    list_kernel,
    make_list,
    offsets_for,
    places_of,
)
from volley.lower.registry import always, translates
from volley.lower.semantics import ExactnessError, Kernel
from volley.plan.expressions import Call
from volley.plan.types import DATE, to_arrow
from volley.support.signatures import literal_value
from volley.times.units import MICROS_A_DAY


@translates("ArrayInsert")
def array_insert(call: Call, arguments: list[Expr]) -> Expr:
    """At one of the ends."""
    at_start = literal_value(call.arguments[1]) == 1
    return list_kernel(call, _insert(to_arrow(call.type), at_start), arguments, at_start)


@cache
def _insert(wanted: pa.ListType, at_start: bool) -> Kernel:
    join = concatenate(wanted)

    def run(arrays: pa.Array, position: pa.Array, items: pa.Array) -> pa.Array:
        singles = pa.ListArray.from_arrays(pa.array(np.arange(len(items) + 1, dtype=np.int32)), items)
        return join(singles, arrays) if at_start else join(arrays, singles)

    return run


@translates("ArrayRepeat")
def array_repeat(call: Call, arguments: list[Expr]) -> Expr:
    return list_kernel(call, _repeat(to_arrow(call.type)), arguments)


@cache
def _repeat(wanted: pa.ListType) -> Kernel:
    def run(values: pa.Array, times: pa.Array) -> pa.Array:
        counts = np.maximum(as_longs(times), 0)
        offsets = offsets_for(counts)
        picked = values.take(pa.array(np.repeat(np.arange(len(values)), counts)))
        return make_list(wanted, offsets, picked, is_present(times))

    return run


@translates("Sequence", fails=always)
def sequence(call: Call, arguments: list[Expr]) -> Expr:
    """By a constant step, or by 1 towards the end."""
    step = None
    if len(call.arguments) > 2:
        constant = literal_value(call.arguments[2])
        assert isinstance(constant, int)
        step = constant // MICROS_A_DAY if call.arguments[0].type == DATE else constant
    bounds = Call(call.function, call.arguments[:2], call.type)
    return list_kernel(bounds, _sequence(to_arrow(call.type), step), arguments[:2], step)


@cache
def _sequence(wanted: pa.ListType, step: int | None) -> Kernel:
    def run(first: pa.Array, last: pa.Array) -> pa.Array:
        present = is_present(first) & is_present(last)
        start, stop = (_as_numbers(column, present) for column in (first, last))
        if np.any((start > 2**62) | (start < -(2**62)) | (stop > 2**62) | (stop < -(2**62))):
            raise ExactnessError("a sequence at the end of the range of longs")
        steps = np.where(start <= stop, 1, -1) if step is None else np.full(len(start), step)
        if np.any(present & (start != stop) & ((stop > start) != (steps > 0))):
            raise ExactnessError("a sequence that does not reach its end")
        counts = np.where(present, (stop - start) // steps + 1, 0)
        if counts.sum(dtype=np.float64) > MOST_ELEMENTS:
            raise ExactnessError("more elements than one batch can hold")
        numbers = np.repeat(start, counts) + places_of(np.zeros_like(counts), counts) * np.repeat(
            steps, counts
        )
        value = wanted.value_type
        integers = pa.int32() if pa.types.is_date(value) else value
        return make_list(wanted, offsets_for(counts), pa.array(numbers).cast(integers).cast(value), present)

    return run


def _as_numbers(values: pa.Array, present: Any) -> Any:
    integers = values.cast(pa.int32()) if pa.types.is_date(values.type) else values
    return np.where(present, as_longs(integers), 0)


# ------------------------------------------------------------------------------------------------- texts


@translates("ArrayJoin")
def array_join(call: Call, arguments: list[Expr]) -> Expr:
    separator, *replacement = (str(literal_value(part)) for part in call.arguments[1:])
    whole = Call(call.function, call.arguments[:1], call.type)
    return list_kernel(whole, _join(separator, *replacement), arguments[:1], (separator, *replacement))


@cache
def _join(separator: str, replacement: str | None = None) -> Kernel:
    def run(arrays: pa.Array) -> pa.Array:
        starts, counts, present = find_runs(arrays)
        counts = np.where(present, counts, 0)
        texts = arrays.values.take(pa.array(places_of(starts, counts)))
        if replacement is not None:
            texts = texts.fill_null(replacement)
        return _joined(texts, np.repeat(np.arange(len(arrays)), counts), present, separator)

    return run


def concat_ws_of_arrays(call: Call, arguments: list[Expr]) -> Expr:
    """Texts and arrays of texts; NULLs are left out."""
    separator = str(literal_value(call.arguments[0]))
    parts = Call(call.function, call.arguments[1:], call.type)
    return list_kernel(parts, _concat_ws(separator), arguments[1:], separator)


@cache
def _concat_ws(separator: str) -> Kernel:
    def run(*columns: pa.Array) -> pa.Array:
        size = len(columns[0])
        texts, rows = [], []
        for column in columns:
            if not pa.types.is_list(column.type):
                texts.append(column)
                rows.append(np.arange(size))
                continue
            starts, counts, present = find_runs(column)
            counts = np.where(present, counts, 0)
            texts.append(column.values.take(pa.array(places_of(starts, counts))))
            rows.append(np.repeat(np.arange(size), counts))
        whole = np.concatenate(rows)
        # A stable sort by row of the parts in their order.
        order = np.argsort(whole, kind="stable")
        everything = pa.concat_arrays(texts).take(pa.array(order))
        return _joined(everything, whole[order], np.ones(size, np.bool_), separator)

    return run


def _joined(texts: pa.Array, rows: Any, present: Any, separator: str) -> pa.Array:
    """The texts of each row, but NULLs."""
    known = is_present(texts)
    counts = np.bincount(rows[known], minlength=len(present))
    lists = make_list(pa.list_(pa.string()), offsets_for(counts), texts.drop_null(), None)
    return pc.if_else(pa.array(present), pc.binary_join(lists, separator), pa.scalar(None, pa.string()))
