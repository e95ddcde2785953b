# SPDX-License-Identifier: Apache-2.0
"""Which aggregate functions Spark's own code may compute from rows that the native engine has gathered.

Spark aggregates the rows of a partition in their order and merges the states of partitions. A program aggregates all
rows of a group in one state, so the function must be one of these:

- its result is the same for any order and division of the rows;
- it is so for some results, which can be recognized (`ORDER_FREE_RESULTS`); Spark runs the query for others;
- it is a user's, whose contract with Spark says so;
- Spark itself aggregates all rows of a group in one task, in a known order;
- the places of the rows in Spark's partitions are known (`plan.partition_aggregates`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volley.plan.expressions import (
    JVM_AGGREGATE,
    JVM_EXPRESSION,
    JVM_ORDERED_AGGREGATE,
    JVM_PLACED_AGGREGATE,
    AggregateCall,
    Attribute,
    Call,
    EvalMode,
    Expression,
    children,
    class_of,
)
from volley.plan.nodes import Aggregate
from volley.plan.types import is_exact

_ANY_ORDER = frozenset(
    {"BitmapConstructAgg", "BitmapOrAgg", "BitmapAndAgg", "BloomFilterAggregate", "CountMinSketchAgg"}
    # A theta sketch keeps the smallest hashes.
    | {"Sum", "Average", "HyperLogLogPlusPlus", "SchemaOfVariantAgg", "ThetaSketchAgg"}
    # As with sums, the order of floats changes the last bits.
    | {"Product", "StddevSamp", "StddevPop", "VarianceSamp", "VariancePop"}
)
# Equal floats, and equal texts of a collation, may have different bits, and any of them may be the result.
_ANY_ORDER_OF_EXACT_VALUES = frozenset({"Min", "Max", "Percentile", "PercentileDisc"})
USER_DEFINED = frozenset({"ScalaUDAF", "ScalaAggregator", "HiveUDAFFunction"})
"""The aggregate functions of users."""


NATIVE_BUT_FOR_PARTITIONS = frozenset({"Mode", "ApproximatePercentile"})
"""Functions whose native form fails where the result depends on Spark's partitions."""


def is_exact_in_jvm(call: AggregateCall) -> bool:
    """Whether a program knows the result of a function that also has a native form, for which it may not be known."""
    return is_placed(call) and call.function.function in NATIVE_BUT_FOR_PARTITIONS


def is_placed(call: AggregateCall) -> bool:
    """Whether Spark's order of the rows is part of the call."""
    return call.partitions is not None or bool(call.order_by)


def program_kind(call: AggregateCall) -> str | None:
    """As what a program may compute this call; None if it may not."""
    if call.partitions is not None:
        return JVM_PLACED_AGGREGATE
    if call.order_by:
        return JVM_ORDERED_AGGREGATE
    return kind_in_any_order(call.function)


def kind_in_any_order(call: Call) -> str | None:
    """The same for rows of which no order is known yet."""
    name = call.function
    if call.mode is EvalMode.TRY:
        # Whether a sum overflows on the way, and so is NULL, depends on the order.
        return None
    if name in _ANY_ORDER or name in ORDER_FREE_RESULTS:
        return JVM_AGGREGATE
    if name in _ANY_ORDER_OF_EXACT_VALUES:
        return JVM_AGGREGATE if all(is_exact(argument.type) for argument in call.arguments[:1]) else None
    return JVM_ORDERED_AGGREGATE


# ------------------------------------------------------------------------------------------------ sketches


def _is_sparse(sketch: bytes | None) -> bool:
    """Whether an HLL sketch is a list or set of hashes yet: their number is the estimate, whatever their order."""
    return sketch is None or sketch[_HLL_MODE_BYTE] & _HLL_MODE_MASK != _HLL_DENSE


_HLL_MODE_BYTE, _HLL_MODE_MASK, _HLL_DENSE = 7, 3, 2


def _keeps_all(sketch: bytes | None) -> bool:
    """Whether a theta sketch has all hashes, in their order: one that estimates has a threshold."""
    return sketch is None or sketch[0] & _THETA_PREAMBLE_MASK < _THETA_WITH_THRESHOLD


_THETA_PREAMBLE_MASK, _THETA_WITH_THRESHOLD = 0x3F, 3

ORDER_FREE_RESULTS: dict[str, Callable[[Any], bool]] = {
    "HllSketchAgg": _is_sparse,
    "HllUnionAgg": _is_sparse,
    "ThetaUnionAgg": _keeps_all,
    "ThetaIntersectionAgg": _keeps_all,
}
"""Functions that need this of their results. Most results over small inputs have it."""

# Sketches whose bytes depend on the order of rows, with the functions whose results do not.
_READERS = {"HllSketchAgg": "HllSketchEstimate", "HllUnionAgg": "HllSketchEstimate"}


def shows_order(node: Aggregate, position: int) -> bool:
    """Whether the results of an aggregate show a sketch that depends on the order of rows."""
    reader = _READERS.get(class_of(node.calls[position]))
    column = node.buffers[position].id
    return reader is not None and any(_shows(result, column, reader) for result in node.results)


def _shows(expression: Expression, column: int, reader: str) -> bool:
    match expression:
        case Attribute(id, _, _, _):
            return id == column
        case Call(function, (Attribute(),), _, _, _) if function == reader:
            return False
        case Call(function, _, _, _, _) if function == JVM_EXPRESSION and expression.option("name") == reader:
            # It may read a larger sketch that this one is merged into.
            return expression.option("inside") is not None
        case _:
            return any(_shows(part, column, reader) for part in children(expression))
