# SPDX-License-Identifier: Apache-2.0
"""Aggregates over the frames of a window, each computed from its own rows, as Spark does.

DataFusion subtracts what leaves a moving frame, which changes the sums of floats, and has no window function for most
aggregates. Here a kernel sees all rows in their order. Each row is a group, whose values are those of its frame:

    row      1    2    3         frame of two rows: 1 | 1 2 | 2 3
    values   x    y    z         groups:            x | x y | y z
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from datafusion import WindowUDF, udwf
from datafusion.user_defined import WindowEvaluator

from volley.lower.grouped_values import Finish, GroupedValues, drop_nulls, floats
from volley.lower.list_aggregates import collected_arguments, finish_groups
from volley.lower.semantics import ExactnessError
from volley.lower.sequential_moments import SEQUENTIAL, sequential_moments
from volley.plan.expressions import AggregateCall, Expression
from volley.plan.types import to_arrow

# How many values the groups of one call of a kernel have together, unless one group alone has more.
_VALUES_AT_ONCE = 2**20
# Frames of more values take minutes. Spark adds row by row to a frame that only grows.
_MOST_VALUES = 2**30


def frame_arguments(call: AggregateCall) -> tuple[Expression, ...]:
    """The columns that `slide` reads."""
    return collected_arguments(call)


@cache
def slide(call: AggregateCall) -> WindowUDF:
    """A window function of `frame_arguments`, the number of each row in its partition, and the numbers of rows in the
    partition before its frame and up to its end.

    It runs over all rows, partition after partition.
    """
    finish, result = _finish(call), to_arrow(call.type)
    types = [to_arrow(argument.type) for argument in frame_arguments(call)]
    name = f"volley_slide_{call.function.function}_{id(finish)}"
    return udwf(lambda: _Frames(finish, result), [*types, *[pa.int64()] * 3], result, "immutable", name)


class _Frames(WindowEvaluator):  # type: ignore[misc]  # the base class has no types
    def __init__(self, finish: Finish, result: pa.DataType) -> None:
        self._finish = finish
        self._result = result

    def evaluate_all(self, values: list[pa.Array], num_rows: int) -> pa.Array:
        *columns, number, before, until = values
        starts = np.arange(num_rows) - (_integers(number) - 1)
        first, last = starts + _integers(before), starts + _integers(until)
        if np.maximum(last - first, 0).sum() > _MOST_VALUES:
            raise ExactnessError("frames of too many rows")
        found = [self._evaluate(columns, first[rows], last[rows]) for rows in _portions(last - first)]
        return pa.concat_arrays(found) if found else pa.nulls(0, self._result)

    def _evaluate(self, columns: list[pa.Array], first: Any, last: Any) -> pa.Array:
        counts = np.maximum(last - first, 0)
        groups = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(len(groups)) - np.repeat(np.cumsum(counts) - counts - first, counts)
        taken = tuple(column.take(pa.array(places)) for column in columns)
        found = self._finish(GroupedValues(taken, groups, len(counts)))
        return found if found.type == self._result else found.cast(self._result)


def _portions(counts: Any) -> Iterator[slice]:
    """Rows whose frames have about as many values as are computed at once."""
    totals = np.cumsum(np.maximum(counts, 1))
    begin = 0
    while begin < len(counts):
        done = totals[begin - 1] if begin else 0
        end = max(int(np.searchsorted(totals, done + _VALUES_AT_ONCE, side="right")), begin + 1)
        yield slice(begin, end)
        begin = end


def _integers(values: pa.Array) -> Any:
    return values.to_numpy(zero_copy_only=False)


# ------------------------------------------------------------------------------------------------------ functions


def _finish(call: AggregateCall) -> Finish:
    special = _OF_FRAMES.get(call.function.function)
    return finish_groups(call) if special is None else special(call)


def _sum(call: AggregateCall) -> Finish:
    """The sum of floats, added one after the other."""

    def finish(grouped: GroupedValues) -> pa.Array:
        present = drop_nulls(grouped)
        return pa.array(present.sums(floats(present.columns[0])), mask=~present.present)

    return finish


def _average(call: AggregateCall) -> Finish:
    def finish(grouped: GroupedValues) -> pa.Array:
        present = drop_nulls(grouped)
        totals = present.sums(floats(present.columns[0]))
        return pa.array(totals / np.maximum(present.counts, 1), mask=~present.present)

    return finish


def _bits(combine: Any) -> Callable[[AggregateCall], Finish]:
    def of(call: AggregateCall) -> Finish:
        kind = to_arrow(call.type)

        def finish(grouped: GroupedValues) -> pa.Array:
            present = drop_nulls(grouped)
            found = np.zeros(present.size, kind.to_pandas_dtype())
            numbers = present.columns[0].to_numpy(zero_copy_only=False)
            if len(numbers):
                found[present.present] = combine.reduceat(numbers, present.starts[present.present])
            return pa.array(found, kind, mask=~present.present)

        return finish

    return of


_OF_FRAMES: dict[str, Callable[[AggregateCall], Finish]] = {
    "Sum": _sum,
    "Average": _average,
    **dict.fromkeys(SEQUENTIAL, sequential_moments),
    "BitAndAgg": _bits(np.bitwise_and),
    "BitOrAgg": _bits(np.bitwise_or),
    "BitXorAgg": _bits(np.bitwise_xor),
}
