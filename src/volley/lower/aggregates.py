# SPDX-License-Identifier: Apache-2.0
"""Grouped aggregates: one DataFusion aggregate for the totals, then a projection for states or values.

results         Spark's projection on top
   |
finish          state columns or values, from totals
   |
aggregate       totals, each computed once
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from datafusion import DataFrame, Expr, col, literal
from datafusion import functions as f

from volley.lower.accumulators import Accumulator, Total
from volley.lower.aggregate_functions import AGGREGATES, state_width
from volley.lower.expressions import column_name, lower_expression
from volley.lower.list_aggregates import accumulate_list, is_list_aggregate, reduce_list
from volley.lower.ordered_sum import ordered_sum
from volley.plan.expressions import (
    AggregateCall,
    AggregateMode,
    Attribute,
    Expression,
    attribute_of,
    references,
)
from volley.plan.nodes import Aggregate
from volley.plan.order import hides_order
from volley.plan.types import DOUBLE, FLOAT


def lower_aggregate(node: Aggregate, child: DataFrame) -> DataFrame:
    keys = list({attribute_of(key).id: key for key in node.grouping}.values())
    never_null = {field.name for field in child.schema() if not field.nullable}
    requested = [
        [_simplify(accumulator, never_null) for accumulator in _accumulators(node, call, state)]
        for call, state in _with_state(node)
    ]
    # A total requested twice is computed once. Without keys there must be one, or no rows would give no row.
    totals = list(dict.fromkeys(accumulator for one in requested for accumulator in one))
    is_bare = not totals and not keys
    if is_bare:
        totals = [Accumulator(Total.COUNT, ())]
    frame = child.aggregate(
        [lower_expression(key) for key in keys],
        [_lower_total(total, keys).alias(_total_name(number)) for number, total in enumerate(totals)],
    )
    if is_bare:
        # It is always true. Without it DataFusion would not compute the rows below, which may fail.
        frame = frame.filter(col(_total_name(0)) >= literal(pa.scalar(0, pa.int64())))
    if not keys:
        # DataFusion moves a condition that reads no column of the aggregate below it, where it would not remove the row
        # of the totals. It moves none below a limit.
        frame = frame.limit(1)
    columns = {total: col(_total_name(number)) for number, total in enumerate(totals)}
    finished: list[Expr] = []
    for position, (call, accumulators) in enumerate(zip(node.calls, requested, strict=True)):
        found = [columns[accumulator] for accumulator in accumulators]
        if is_list_aggregate(call):
            finished.append(reduce_list(call, found[0], hides_order(node, position)))
        else:
            finished += _finish(call, found)
    named = [expr.alias(column_name(buffer.id)) for expr, buffer in zip(finished, node.buffers, strict=True)]
    frame = frame.select(*(col(column_name(attribute_of(key).id)) for key in keys), *named)
    results = {attribute_of(result).id: result for result in node.results}
    return frame.select(*(lower_expression(result) for result in results.values()))


def _lower_total(total: Accumulator, keys: Sequence[Expression]) -> Expr:
    """The total as a DataFusion aggregate, which adds the values of each group one by one if there are keys."""
    adds_floats = total.total is Total.SUM and total.arguments[0].type in (FLOAT, DOUBLE)
    if keys or not adds_floats or total.distinct:
        return total.lower_grouped()
    values = total.operand().cast(pa.float64())
    return ordered_sum(values if total.where is None else f.when(lower_expression(total.where), values).end())


def _with_state(node: Aggregate) -> Iterator[tuple[AggregateCall, tuple[Attribute, ...]]]:
    """Each call with the child's columns that hold its state. State columns come last, in call order."""
    widths = [0 if call.mode.reads_rows else state_width(call.function) for call in node.calls]
    states = node.child.output[len(node.child.output) - sum(widths) :]
    for call, width in zip(node.calls, widths, strict=True):
        yield call, states[:width]
        states = states[width:]


def _accumulators(node: Aggregate, call: AggregateCall, state: tuple[Attribute, ...]) -> list[Accumulator]:
    distinct = call.distinct and not _already_distinct(node, call)
    if is_list_aggregate(call):
        return [accumulate_list(call, distinct)]
    function = AGGREGATES[call.function.function]
    if call.mode.reads_rows:
        return function.rows(call.function, call.filter, distinct)
    return function.merge(call.function, state)


def _simplify(accumulator: Accumulator, never_null: set[str]) -> Accumulator:
    """Count rows instead of a column without NULLs, so that the averages of many columns share one count."""
    rows = accumulator.total is Total.COUNT and all(
        isinstance(argument, Attribute) and column_name(argument.id) in never_null
        for argument in accumulator.arguments
    )
    return replace(accumulator, arguments=()) if rows and not accumulator.distinct else accumulator


def _already_distinct(node: Aggregate, call: AggregateCall) -> bool:
    """Whether a distinct call sees each of its values once per group.

    Spark groups by the values first but keeps DISTINCT on the call. A partial state is only correct if it did.
    """
    if call.mode is AggregateMode.PARTIAL:
        return True
    if not isinstance(node.child, Aggregate):
        return False
    unique = {attribute_of(key).id for key in node.child.grouping}
    separated = {attribute_of(key).id for key in node.grouping} | references(call.function)
    return unique <= separated


def _finish(call: AggregateCall, totals: list[Expr]) -> list[Expr]:
    function = AGGREGATES[call.function.function]
    if call.mode.gives_values:
        return [function.value(call.function, totals)]
    return function.state(call.function, totals)


def _total_name(number: int) -> str:
    return f"total{number}"
