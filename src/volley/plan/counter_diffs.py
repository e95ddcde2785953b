# SPDX-License-Identifier: Apache-2.0
"""`counter_diff` as a difference to the value before, which is a window function.

A counter that is NULL is skipped. One that has decreased, or whose start time has increased, was reset, and gives NULL.
Where Spark raises an error, for a negative counter or an earlier start time, the native run fails.
"""

from __future__ import annotations

from decimal import Decimal

from volley.plan.builders import both, compare, either, fail_if, is_null, null_where
from volley.plan.expressions import Call, EvalMode, Expression, Literal, WindowCall
from volley.plan.types import (
    FRACTIONAL,
    INTEGER,
    STRING,
    DataType,
    DecimalType,
    StructField,
    StructType,
)

COUNTER_DIFFS = frozenset({"CounterDiff", "CounterDiffWithStartTime"})


def expand_counter_diff(call: WindowCall) -> Expression:
    """The call; where it is a `counter_diff`, the expression that it stands for."""
    function = call.function
    if not isinstance(function, Call) or function.function not in COUNTER_DIFFS:
        return call
    counter, *times = function.arguments
    before = _last(call, counter)
    difference: Expression = Call("Subtract", (counter, before), counter.type, EvalMode.ANSI)
    reset = compare("LessThan", counter, before)
    wrong = compare("LessThan", counter, Literal(_zero(counter.type), counter.type))
    for time in times:
        # The start time of the row with that counter, even if it is NULL.
        kind = StructType((StructField("time", time.type, True),))
        held = Call("CreateNamedStruct", (Literal("time", STRING), time), kind)
        last = _last(call, null_where(is_null(counter), held))
        earlier = Call("GetStructField", (last,), time.type, options=(("ordinal", 0), ("name", "time")))
        wrong = either(
            wrong, both(compare("LessThan", time, earlier), Call("IsNotNull", (counter,), wrong.type))
        )
        reset = either(reset, compare("LessThan", earlier, time))
    # A condition that is NULL does not hold.
    value = null_where(either(is_null(counter), reset), difference)
    return Call("If", (fail_if(wrong), value, Literal(None, counter.type)), counter.type)


def _last(call: WindowCall, value: Expression) -> WindowCall:
    """The last value before the row that is not NULL."""
    arguments = (value, Literal(1, INTEGER), Literal(None, value.type))
    lag = Call("Lag", arguments, value.type, options=(("ignoreNulls", True),))
    return WindowCall(lag, call.partition_by, call.order_by, call.frame)


def _zero(kind: DataType) -> int | float | Decimal:
    if isinstance(kind, DecimalType):
        return Decimal(0).scaleb(-kind.scale)
    return 0.0 if kind in FRACTIONAL else 0
