# SPDX-License-Identifier: Apache-2.0
"""Which window calls give Spark's result."""

from __future__ import annotations

from collections.abc import Iterator

from volley.plan.expressions import AggregateCall, Call, WindowCall, walk
from volley.plan.nodes import Window
from volley.plan.order import order_of
from volley.plan.types import FRACTIONAL, ArrayType, DataType, StructType
from volley.plan.zones import UTC
from volley.support.aggregates import check_function
from volley.support.operators import UNSPLITTABLE, WINDOWS, constant_of, is_constant
from volley.support.range_frames import follows_clock, offsets_of
from volley.support.reasons import Reason, Unsupported
from volley.support.sort_keys import is_sorted_alike


def check_window(node: Window) -> Iterator[Unsupported]:
    for alias in node.calls:
        for part in walk(alias):
            if isinstance(part, WindowCall):
                yield from _check_call(part, node)


def _check_call(call: WindowCall, node: Window) -> Iterator[Unsupported]:
    function = call.function.function if isinstance(call.function, AggregateCall) else call.function
    rule = WINDOWS.get(function.function)
    if rule is None or rule.reason is not None:
        yield Unsupported(Reason.WINDOW, function.function)
        return
    for key in (*call.partition_by, *call.order_by):
        if not is_sorted_alike(key.type) or _holds_nested_elements(key.type):
            yield Unsupported(Reason.ARGUMENT_TYPES, "Window", f"key of type {key.type}")
    yield from _check_frame(call)
    if isinstance(call.function, AggregateCall):
        yield from _check_aggregate(call, call.function, node)
    else:
        yield from _check_constants(function)


def _holds_nested_elements(data_type: DataType) -> bool:
    """Whether an array in it has elements that DataFusion does not compare to find equal rows."""
    match data_type:
        case StructType(fields):
            return any(_holds_nested_elements(field.type) for field in fields)
        case ArrayType(element, _):
            return isinstance(element, StructType | ArrayType)
        case _:
            return False


def _check_frame(call: WindowCall) -> Iterator[Unsupported]:
    frame = call.frame
    bounds = [bound for bound in (frame.lower, frame.upper) if bound is not None]
    if frame.rows:
        if not all(map(is_constant, bounds)):
            yield Unsupported(Reason.WINDOW, "frame", "bounds that are not constant integers")
    elif call.order_by:
        key = call.order_by[0].type
        try:
            offsets = offsets_of(frame, key)
        except ValueError as why:
            yield Unsupported(Reason.WINDOW, "range frame", str(why))
            return
        if frame.time_zone not in UTC and any(follows_clock(offset, key) for offset in offsets):
            yield Unsupported(Reason.TIME_ZONE, "range frame", f"days or months, {frame.time_zone}")


def _check_aggregate(call: WindowCall, aggregate: AggregateCall, node: Window) -> Iterator[Unsupported]:
    function = aggregate.function
    name = function.function
    if aggregate.distinct or aggregate.filter is not None:
        yield Unsupported(Reason.WINDOW, name, "DISTINCT or FILTER in a window")
    if name in ("First", "Last", "CollectList"):
        if not call.order_by and not order_of(node.child).requested:
            yield Unsupported(Reason.NONDETERMINISTIC, name, "a window without ORDER BY")
        if name != "CollectList":
            return
    yield from check_function(function)
    if isinstance(function.type, StructType):
        yield Unsupported(Reason.WINDOW, name, str(function.type))
    if name == "Mode" and function.option("reverseOpt") is None:
        yield Unsupported(Reason.NONDETERMINISTIC, name, "among equally frequent values")


def slides(call: WindowCall, aggregate: AggregateCall) -> bool:
    """Whether each frame is aggregated for itself, instead of adding and subtracting the rows that enter and leave."""
    function = aggregate.function
    if function.function in ("Sum", "Average"):
        # Subtracting floats would differ from Spark's sum.
        return call.frame.lower is not None and function.arguments[0].type in FRACTIONAL
    if function.function in _GROWING:
        return call.frame.lower is not None
    return function.function in _SLIDING


# DataFusion's own accumulators compute them as Spark does while rows only enter the frame.
_GROWING = frozenset({"StddevSamp", "StddevPop", "VarianceSamp", "VariancePop"}) | {
    "BitAndAgg",
    "BitOrAgg",
    "BitXorAgg",
}
_SLIDING = frozenset(WINDOWS) & UNSPLITTABLE - _GROWING


def _check_constants(function: Call) -> Iterator[Unsupported]:
    position = {"NTile": 0, "Lag": 1, "Lead": 1, "NthValue": 1}.get(function.function)
    if position is None:
        return
    if not is_constant(function.arguments[position]):
        yield Unsupported(Reason.WINDOW, function.function, "an argument that is not a constant")
    elif _skips_nulls(function) and constant_of(function.arguments[position]) != 1:
        yield Unsupported(Reason.WINDOW, function.function, "IGNORE NULLS with an offset other than 1")


def _skips_nulls(function: Call) -> bool:
    """Whether it skips NULLs. DataFusion loses values if it then looks further than one step."""
    return function.function in ("Lag", "Lead") and function.option("ignoreNulls") is True
