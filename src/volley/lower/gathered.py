# SPDX-License-Identifier: Apache-2.0
"""Aggregate functions that need all values of a group at once: they are gathered as a list, and a kernel finishes.

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
from volley.lower.gathered_programs import run_aggregate
from volley.lower.gathered_sets import approximate_count, collect_set, mode
from volley.lower.gathered_statistics import MOMENTS, approximate_percentiles, moments, percentiles
from volley.lower.gathered_values import (
    collect_list,
    extreme_by,
    extreme_struct,
    extremes_by,
    first_or_last,
    join_texts,
    pivot,
)
from volley.lower.segments import Finish, segments_of
from volley.lower.semantics import Kernel, kernel
from volley.plan.expressions import COLLECT_ROWS, JVM_AGGREGATES, AggregateCall, Call, Expression, SortKey
from volley.plan.types import BOOLEAN, LONG, StructType, to_arrow

# The arguments that are gathered, if not all of them; the others are constants.
_WIDTHS = {"Percentile": 1, "PercentileDisc": 1, "ListAgg": 1, "ApproximatePercentile": 1, "MaxMinByK": 2}


def is_gathered(call: AggregateCall) -> bool:
    name = call.function.function
    if name in ("First", "Last"):
        return bool(call.order_by)
    if name in ("Min", "Max"):
        return isinstance(call.type, StructType)
    return name in _FINISHERS or name == "CollectSet" or name in JVM_AGGREGATES


def gather(call: AggregateCall, distinct: bool) -> Accumulator:
    if call.function.function == "HyperLogLogPlusPlus":
        (value,) = call.function.arguments
        hashed = Call("XxHash64", (value,), LONG, options=(("seed", 42),))
        present: Expression = Call("IsNotNull", (value,), BOOLEAN)
        where = present if call.filter is None else Call("And", (call.filter, present), BOOLEAN)
        return Accumulator(Total.LIST, (hashed,), where=where)
    return Accumulator(Total.LIST, _gathered(call), where=call.filter, distinct=distinct)


def value_of_list(call: AggregateCall, values: Expr, is_unordered: bool) -> Expr:
    """The result of the function from the list of `gather`. `is_unordered`: nothing shows the order of an array."""
    source = gather(call, False).list_type
    result = to_arrow(call.type)
    if call.function.function in JVM_AGGREGATES:
        return run_aggregate(call, _order(call), source)(values.cast(source))
    finish = _finish(replace(call, result_id=0), is_unordered, result)
    return kernel(f"{call.function.function}_{id(finish)}", finish, result, source)(values.cast(source))


def _gathered(call: AggregateCall) -> tuple[Expression, ...]:
    arguments = call.function.arguments
    kept = arguments[: _WIDTHS.get(call.function.function, len(arguments))]
    return (*kept, *(key.child for key in _order(call)))


def _order(call: AggregateCall) -> tuple[SortKey, ...]:
    """The sort keys of the function itself, then those of its input."""
    own = tuple(part for part in call.function.arguments if isinstance(part, SortKey))
    return (*own, *call.order_by)


# Kernels live as long as the process, and a name must not be that of another.
@cache
def _finish(call: AggregateCall, is_unordered: bool, result: pa.DataType) -> Kernel:
    name = call.function.function
    if name == "CollectSet":
        finish = collect_set(call, is_unordered)
    elif name in ("First", "Last"):
        finish = first_or_last(call, _order(call))
    else:
        finish = _FINISHERS[name](call)

    is_row = len(gather(call, False).arguments) > 1

    def run(lists: pa.Array) -> pa.Array:
        found = finish(segments_of(lists, is_row))
        return found if found.type == result else found.cast(result)

    return run


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
