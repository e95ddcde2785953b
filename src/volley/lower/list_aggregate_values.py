# SPDX-License-Identifier: Apache-2.0
"""Values of a group that are picked or put together by order: max_by, first, collect_list, listagg."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from volley.lower.functions.constants import constant_value
from volley.lower.grouped_values import Finish, GroupedValues, drop_nulls, order_codes, sort_by, valid
from volley.lower.semantics import ExactnessError
from volley.plan.expressions import AggregateCall, Literal, SortKey
from volley.plan.types import to_arrow
from volley.support.aggregates import pivot_values


def extreme_by(call: AggregateCall, largest: bool) -> Finish:
    """The value of the row with the largest or smallest second argument.

    Spark takes the last of several such rows. If their values differ, the result depends on the order of rows.
    """

    def finish(grouped: GroupedValues) -> pa.Array:
        present = drop_nulls(grouped, [1])
        values, by = present.columns
        codes = order_codes(by, not largest)
        best = np.full(present.size, np.iinfo(np.int64).max)
        np.minimum.at(best, present.groups, codes)
        winners = np.flatnonzero(codes == best[present.groups])
        chosen = np.full(present.size, -1)
        chosen[present.groups[winners]] = winners
        same = _identities(values)
        if np.any(same[winners] != same[chosen[present.groups[winners]]]):
            raise ExactnessError("several rows with the extreme, whose values differ")
        return values.take(pa.array(np.maximum(chosen, 0), mask=chosen < 0))

    return finish


def extremes_by(call: AggregateCall) -> Finish:
    """The values of the rows with the largest or smallest second arguments, best first, as many as the third says.

    Among rows with the same second argument the order of rows decides, in which Spark keeps them.
    """
    count = constant_value(call.function.arguments[2])
    largest = call.function.option("reverse") is False
    wanted = to_arrow(call.type)

    def finish(grouped: GroupedValues) -> pa.Array:
        present = drop_nulls(grouped, [1])
        values, by = present.columns
        codes = order_codes(by, not largest)
        order = np.lexsort((codes, present.groups))
        kept = np.arange(len(order)) - present.starts[present.groups[order]] < count
        same = _identities(values)[order]
        tied = (np.diff(codes[order]) == 0) & (np.diff(present.groups[order]) == 0)
        # Of a rank that begins among the kept rows, Spark may keep any.
        begins = np.arange(len(order))
        begins[1:][tied] = 0
        competes = kept[np.maximum.accumulate(begins)]
        if np.any(tied & competes[1:] & (np.diff(same) != 0)):
            raise ExactnessError("several rows with the same rank, whose values differ")
        return present.take(order[kept]).lists(wanted, empty_is_null=True)

    return finish


def extreme_struct(call: AggregateCall, largest: bool) -> Finish:
    """The largest or smallest struct."""

    def finish(grouped: GroupedValues) -> pa.Array:
        present = drop_nulls(grouped)
        (values,) = present.columns
        order = np.lexsort((order_codes(values, not largest), present.groups))
        first = order[np.minimum(present.starts, max(len(order) - 1, 0))] if len(order) else present.starts
        return values.take(pa.array(first, mask=~present.present))

    return finish


def pivot(call: AggregateCall) -> Finish:
    """For each value of PIVOT, the second argument of the row that has it as its first: there is one at most."""
    function = call.function
    kind = function.arguments[0].type
    listed = pivot_values(function) or []
    distinct = list(dict.fromkeys(listed))
    constants = [pa.scalar(value, to_arrow(kind)) for value in distinct]
    # Values may be listed more than once.
    columns = [distinct.index(value) for value in listed]
    wanted = to_arrow(call.type)

    def finish(grouped: GroupedValues) -> pa.Array:
        by, values = grouped.columns
        places = np.full(len(by), -1)
        for place, constant in enumerate(constants):
            same = pc.equal(by, constant) if constant.is_valid else by.is_null()
            places[same.fill_null(False).to_numpy(zero_copy_only=False)] = place
        rows = np.flatnonzero((places >= 0) & valid(values))
        cells = grouped.groups[rows] * len(constants) + places[rows]
        if len(np.unique(cells)) < len(cells):
            raise ExactnessError("several rows for one cell of a PIVOT")
        found = np.full(grouped.size * len(constants), -1)
        found[cells] = rows
        found = found.reshape(grouped.size, len(constants))[:, columns].ravel()
        offsets = np.arange(0, len(found) + 1, len(columns), dtype=np.int32)
        taken = values.take(pa.array(np.maximum(found, 0), mask=found < 0))
        return pa.ListArray.from_arrays(pa.array(offsets), taken, type=wanted)

    return finish


def _identities(values: pa.Array) -> Any:
    """Equal numbers for values that are the same to the last bit."""
    if pa.types.is_struct(values.type):
        fields = [_identities(field) for field in values.flatten()]
        _, codes = np.unique(np.stack([valid(values), *fields], axis=1), axis=0, return_inverse=True)
        return codes.ravel()
    if pa.types.is_float32(values.type):
        values = values.view(pa.int32())
    elif pa.types.is_float64(values.type):
        values = values.view(pa.int64())
    return order_codes(values)


def first_or_last(call: AggregateCall, order: Sequence[SortKey]) -> Finish:
    ignores_nulls = call.function.option("ignoreNulls") is True
    is_first = call.function.function == "First"

    def finish(grouped: GroupedValues) -> pa.Array:
        ordered = sort_by(grouped, order)
        if ignores_nulls:
            ordered = drop_nulls(ordered, [0])
        places = ordered.starts if is_first else ordered.starts + ordered.counts - 1
        absent = ~ordered.present
        return ordered.columns[0].take(pa.array(np.where(absent, 0, places), mask=absent))

    return finish


def collect_list(call: AggregateCall, order: Sequence[SortKey]) -> Finish:
    wanted = to_arrow(call.type)
    keeps_nulls = call.function.option("ignoreNulls") is False

    def finish(grouped: GroupedValues) -> pa.Array:
        ordered = sort_by(grouped, order)
        return (ordered if keeps_nulls else drop_nulls(ordered, [0])).lists(wanted)

    return finish


def join_texts(call: AggregateCall, order: Sequence[SortKey]) -> Finish:
    """listagg: texts in order, with a delimiter between them; NULL for none."""
    delimiter = call.function.arguments[1]
    assert isinstance(delimiter, Literal)
    own = sum(isinstance(part, SortKey) for part in call.function.arguments)
    wanted = to_arrow(call.type)
    between = pa.scalar(delimiter.value or ("" if pa.types.is_string(wanted) else b""), wanted)

    def finish(grouped: GroupedValues) -> pa.Array:
        present = sort_by(drop_nulls(grouped, [0]), order)
        if len(order) == own:
            _refuse_ties(present)
        joined = pc.binary_join(present.lists(pa.list_(wanted)), between)
        return pc.if_else(pa.array(present.present), joined, pa.scalar(None, wanted))

    return finish


def _refuse_ties(ordered: GroupedValues) -> None:
    """Fail if values that are equal by the sort keys differ: they could be in any order."""
    value, *keys = (order_codes(column) for column in ordered.columns)
    equal = ordered.groups[1:] == ordered.groups[:-1]
    for key in keys:
        equal &= key[1:] == key[:-1]
    if np.any(equal & (value[1:] != value[:-1])):
        raise ExactnessError("values without an order")
