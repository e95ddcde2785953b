# SPDX-License-Identifier: Apache-2.0
"""Aggregate functions that need all values of a group at once: collected as a list, then reduced by a kernel.

    percentile(x, 0.5)          array_agg(x)                -> kernel
    max_by(x, y)                array_agg(struct(x, y))     -> kernel
    hll_sketch_agg(x)           array_agg(x)                -> a program of the JVM

Where the result would depend on the order of rows and nothing defines that order, the kernel fails, and Spark runs the
query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pyarrow as pa
from datafusion import Expr

from volley.lower.accumulators import Accumulator, Total
from volley.lower.grouped_values import Finish, group_values
from volley.lower.list_aggregate_programs import run_aggregate
from volley.lower.list_aggregate_sets import approximate_count, collect_set, mode
from volley.lower.list_aggregate_statistics import MOMENTS, approximate_percentiles, moments, percentiles
from volley.lower.list_aggregate_values import (
    collect_list,
    extreme_by,
    extreme_struct,
    extremes_by,
    first_or_last,
    join_texts,
    pivot,
)
from volley.lower.semantics import Kernel, kernel
from volley.plan.expressions import (
    COLLECT_ROWS,
    JVM_AGGREGATES,
    JVM_PLACED_AGGREGATE,
    AggregateCall,
    Attribute,
    Call,
    Expression,
    SortKey,
    transform,
)
from volley.plan.types import BOOLEAN, LONG, StructType, to_arrow

# The arguments that are collected, if not all of them; the others are constants.
_WIDTHS = {"Percentile": 1, "PercentileDisc": 1, "ListAgg": 1, "ApproximatePercentile": 1, "MaxMinByK": 2}


def is_list_aggregate(call: AggregateCall) -> bool:
    name = call.function.function
    if name in ("First", "Last"):
        return bool(call.order_by)
    if name in ("Min", "Max"):
        return isinstance(call.type, StructType)
    return name in _FINISHERS or name == "CollectSet" or name in JVM_AGGREGATES


def accumulate_list(call: AggregateCall, distinct: bool) -> Accumulator:
    if call.function.function == "HyperLogLogPlusPlus":
        (value,) = call.function.arguments
        hashed = Call("XxHash64", (value,), LONG, options=(("seed", 42),))
        present: Expression = Call("IsNotNull", (value,), BOOLEAN)
        counted = present if call.filter is None else Call("And", (call.filter, present), BOOLEAN)
        return Accumulator(Total.LIST, (hashed,), where=counted)
    # A row that is not counted shows where there is a state.
    where = None if call.function.function == JVM_PLACED_AGGREGATE else call.filter
    return Accumulator(Total.LIST, collected_arguments(call), where=where, distinct=distinct)


def reduce_list(call: AggregateCall, values: Expr, is_unordered: bool) -> Expr:
    """Compute the result from the list of `accumulate_list`. `is_unordered`: no result shows the order of the list."""
    source = accumulate_list(call, distinct=False).list_type
    result = to_arrow(call.type)
    if call.function.function in JVM_AGGREGATES:
        return run_aggregate(call, _order(call), source)(values.cast(source))
    finish = _finish(kernel_key(call), is_unordered, result)
    return kernel(f"{call.function.function}_{id(finish)}", finish, result, source)(values.cast(source))


def kernel_key(call: AggregateCall) -> AggregateCall:
    """The call with columns by number: calls of other queries that differ in nothing else share a kernel."""
    numbers: dict[int, int] = {}

    def change(part: Expression) -> Expression:
        if not isinstance(part, Attribute):
            return part
        return Attribute(numbers.setdefault(part.id, len(numbers)), "", part.type)

    numbered = transform(replace(call, filter=None, result_id=0), change)
    assert isinstance(numbered, AggregateCall)
    return numbered


def collected_arguments(call: AggregateCall) -> tuple[Expression, ...]:
    """The values that are collected for each row: the arguments that are no constants, and the sort keys.

    Between these is the filter of a call that shows which of Spark's partitions have rows.
    """
    arguments = call.function.arguments
    kept = arguments[: _WIDTHS.get(call.function.function, len(arguments))]
    order = tuple(key.child for key in _order(call))
    if call.filter is None or call.function.function != JVM_PLACED_AGGREGATE:
        return (*kept, *order)
    return (*kept, call.filter, *order)


def _order(call: AggregateCall) -> tuple[SortKey, ...]:
    """The sort keys of the function itself, then those of its input."""
    own = tuple(part for part in call.function.arguments if isinstance(part, SortKey))
    return (*own, *call.order_by)


# Kernels live as long as the process, and a name must not be that of another.
@cache
def _finish(call: AggregateCall, is_unordered: bool, result: pa.DataType) -> Kernel:
    finish = finish_groups(call, is_unordered)
    is_row = len(accumulate_list(call, distinct=False).arguments) > 1

    def run(lists: pa.Array) -> pa.Array:
        found = finish(group_values(lists, is_row))
        return found if found.type == result else found.cast(result)

    return run


def finish_groups(call: AggregateCall, is_unordered: bool = False) -> Finish:
    """From the `collected_arguments` of all groups to their results. `is_unordered` is as in `reduce_list`."""
    name = call.function.function
    if name == "CollectSet":
        return collect_set(call, is_unordered)
    if name in ("First", "Last"):
        return first_or_last(call, _order(call))
    return _FINISHERS[name](call)


_FINISHERS: dict[str, Callable[[AggregateCall], Finish]] = {
    "MinBy": lambda call: extreme_by(call, largest=False),
    "MaxBy": lambda call: extreme_by(call, largest=True),
    "MaxMinByK": extremes_by,
    "Min": lambda call: extreme_struct(call, largest=False),
    "Max": lambda call: extreme_struct(call, largest=True),
    "Percentile": percentiles,
    "PercentileDisc": percentiles,
    "ApproximatePercentile": approximate_percentiles,
    "Mode": mode,
    "CollectList": lambda call: collect_list(call, _order(call)),
    COLLECT_ROWS: lambda call: collect_list(call, ()),
    "PivotFirst": pivot,
    "ListAgg": lambda call: join_texts(call, _order(call)),
    "HyperLogLogPlusPlus": approximate_count,
    **dict.fromkeys(MOMENTS, moments),
}
