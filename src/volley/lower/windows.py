# SPDX-License-Identifier: Apache-2.0
"""Window functions.

DataFusion's Python API cannot express every frame (`3 PRECEDING AND 1 PRECEDING`), but its SQL can. So all arguments,
keys and orders first become columns, the windows are written as SQL over these columns, and a projection computes
Spark's values from the results.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import Decimal

import pyarrow as pa
from datafusion import DataFrame, Expr, col, literal
from datafusion import functions as f
from datafusion.expr import Window as WindowSpec

from volley.lower.accumulators import Accumulator
from volley.lower.aggregate_functions import AGGREGATES
from volley.lower.expressions import column_name, lower_expression
from volley.lower.list_aggregates import kernel_key
from volley.lower.order_keys import order_operand, split_nested
from volley.lower.scope import column, distinct
from volley.lower.semantics import sort_operand
from volley.lower.sliding_frames import frame_arguments, slide
from volley.plan import synthetic_ids
from volley.plan.expressions import (
    CURRENT_ROW,
    AggregateCall,
    Attribute,
    Call,
    Expression,
    Frame,
    Literal,
    SortKey,
    WindowCall,
    transform,
)
from volley.plan.nodes import Node, Window
from volley.plan.types import BINARY, DATE, LONG, TIMESTAMP, TIMESTAMP_NTZ, to_arrow
from volley.support.operators import constant_of
from volley.support.range_frames import Months, Offset, offset_of, offsets_of
from volley.support.windows import slides

_RANKING = {
    "RowNumber": "row_number",
    "Rank": "rank",
    "DenseRank": "dense_rank",
    "PercentRank": "percent_rank",
    "CumeDist": "cume_dist",
}
# Their sums stay below 2^53 in any usual frame.
_EXACT_IN_DOUBLES = pa.decimal128(14, 0)

_TIMESTAMPS = frozenset({TIMESTAMP, TIMESTAMP_NTZ})


def lower_window(node: Window, child: DataFrame) -> DataFrame:
    kept = [column(attribute) for attribute in distinct(node.child.output)]
    operands, windows, sliding = _Columns("operand"), _Columns("window"), _Columns("slide")
    results: dict[WindowCall, Attribute] = {}
    values: list[Expr] = []

    def as_column(part: Expression) -> Expression:
        if not isinstance(part, WindowCall):
            return part
        if part not in results:
            results[part] = Attribute(synthetic_ids.WINDOW_RESULT + len(results), "window", part.type)
            over = _Over(part, node.child, operands, windows, sliding)
            value = over.lower(part.function).cast(to_arrow(part.type))
            values.append(value.alias(column_name(results[part].id)))
        return results[part]

    calls = [transform(call, as_column) for call in node.calls]
    frame = child.select(*kept, *operands.select_from(child))
    frame = frame.select(*kept, *windows.select_from(frame))
    if sliding.items:
        frame = frame.select(*kept, *map(col, windows.items), *sliding.select_from(frame))
    frame = frame.select(*kept, *values)
    return frame.select(*kept, *(lower_expression(call) for call in calls))


@dataclass
class _Columns:
    """Intermediate columns, each with a new name: expressions, or windows as SQL."""

    prefix: str
    items: dict[str, Expr | str] = field(default_factory=dict)

    def add(self, item: Expr | str) -> str:
        name = f"{self.prefix}{len(self.items)}"
        self.items[name] = item
        return name

    def select_from(self, frame: DataFrame) -> list[Expr]:
        """All of them, as expressions to select from `frame`."""
        return [
            (frame.parse_sql_expr(item) if isinstance(item, str) else item).alias(name)
            for name, item in self.items.items()
        ]


class _Over:
    """Writes functions over one window specification."""

    def __init__(
        self, call: WindowCall, child: Node, operands: _Columns, windows: _Columns, sliding: _Columns
    ) -> None:
        self._operands = operands
        self._windows = windows
        self._sliding = sliding
        self._call = call
        self._keys = keys = [
            operands.add(sort_operand(lower_expression(key), key.type)) for key in call.partition_by
        ]
        self._partition = f"PARTITION BY {', '.join(keys)}" if keys else ""
        orders = [
            _order(key, operands.add(_order_operand(key, child, call.frame)))
            for key in split_nested(call.order_by)
        ]
        self._order = f"ORDER BY {', '.join(orders)}" if orders else ""
        self._frame = _frame(call.frame, call.order_by)
        self._moves = call.frame.lower is not None

    def lower(self, function: Call | AggregateCall) -> Expr:
        if not isinstance(function, AggregateCall):
            return self.function(function)
        return self._slide(function) if slides(self._call, function) else self.aggregate(function)

    def function(self, call: Call) -> Expr:
        match call.function:
            case "NTile":
                return self._without_frame(f"ntile({constant_of(call.arguments[0])})")
            case "Lag" | "Lead":
                return self._neighbour(call)
            case "NthValue":
                operand = self._operands.add(lower_expression(call.arguments[0]))
                return self._with_frame(f"nth_value({operand}, {constant_of(call.arguments[1])})", call)
            case name:
                return self._without_frame(f"{_RANKING[name]}()")

    def aggregate(self, call: AggregateCall) -> Expr:
        name = call.function.function
        if name in ("First", "Last"):
            operand = self._operands.add(lower_expression(call.function.arguments[0]))
            return self._with_frame(f"{name.lower()}_value({operand})", call.function)
        function = AGGREGATES[name]
        totals = []
        for accumulator in function.rows(call.function, call.filter, call.distinct):
            operand = self._operands.add(self._exact(accumulator, call.function).operand())
            totals.append(self._with_frame(f"{accumulator.sql_function}({operand})"))
        return function.value(call.function, totals)

    def _slide(self, call: AggregateCall) -> Expr:
        """Any aggregate, of the rows of each frame: their numbers are found by counting."""
        frame = self._call.frame
        number = self._without_frame("row_number()")
        size = self._window("count(1)", None, self._partition)
        before, until = literal(pa.scalar(0, pa.int64())), size
        if frame.lower is not None:
            following = _frame(replace(frame, upper=None), self._call.order_by)
            before = size - self._window("count(1)", None, f"{self._partition} {self._order} {following}")
        if frame.upper is not None:
            preceding = _frame(replace(frame, lower=None), self._call.order_by)
            until = self._window("count(1)", None, f"{self._partition} {self._order} {preceding}")
        values = [
            self._pass(lower_expression(part).cast(to_arrow(part.type))) for part in frame_arguments(call)
        ]
        numbers = [part.cast(pa.int64()) for part in (number, before, until)]
        order = [col(self._windows.add(col(key))).sort() for key in self._keys]
        over = WindowSpec(order_by=[*order, number.sort()])
        function = slide(kernel_key(call))
        return col(self._sliding.add(function(*values, *numbers).over(over)))

    def _pass(self, value: Expr) -> Expr:
        """A value of each row beside the windows."""
        return col(self._windows.add(col(self._operands.add(value))))

    def _exact(self, accumulator: Accumulator, call: Call) -> Accumulator:
        """The average of longs in a moving frame: DataFusion subtracts what leaves the frame, which doubles do not
        allow. Longs of so few digits have the same sum as the doubles that Spark adds; others fail."""
        moves = self._moves and call.function == "Average" and accumulator.cast_to == pa.float64()
        if moves and call.arguments[0].type == LONG:
            return replace(accumulator, cast_to=_EXACT_IN_DOUBLES)
        return accumulator

    def _neighbour(self, call: Call) -> Expr:
        """Lag and lead. The default is evaluated on the current row, and used only if there is no such row."""
        value, offset, default = call.arguments
        name, shift = call.function.lower(), constant_of(offset)
        operand = self._operands.add(lower_expression(value))
        found = self._without_frame(f"{name}({operand}, {shift})", call)
        if isinstance(default, Literal) and default.value is None:
            return found
        fallback = self._pass(lower_expression(default))
        if call.option("ignoreNulls"):
            return f.coalesce(found, fallback)
        present = self._operands.add(literal(pa.scalar(True, pa.bool_())))
        exists = self._without_frame(f"{name}({present}, {shift})")
        return f.when(exists.is_null(), fallback).otherwise(found)

    def _without_frame(self, function: str, call: Call | None = None) -> Expr:
        """A function without a frame."""
        return self._window(function, call, f"{self._partition} {self._order}")

    def _with_frame(self, function: str, call: Call | None = None) -> Expr:
        return self._window(function, call, f"{self._partition} {self._order} {self._frame}")

    def _window(self, function: str, call: Call | None, over: str) -> Expr:
        nulls = " IGNORE NULLS" if call is not None and call.option("ignoreNulls") else ""
        return col(self._windows.add(f"{function}{nulls} OVER ({over})"))


def _order(key: SortKey, name: str) -> str:
    return f"{name} {'ASC' if key.ascending else 'DESC'} NULLS {'FIRST' if key.nulls_first else 'LAST'}"


def _frame(frame: Frame, order_by: tuple[SortKey, ...]) -> str:
    def bound(expression: Expression | None, unbounded: str) -> str:
        if expression is None:
            return unbounded
        if frame.rows or expression == CURRENT_ROW:
            return _bound(constant_of(expression))
        return _bound(offset_of(expression, order_by[0].type))

    lower, upper = bound(frame.lower, "UNBOUNDED PRECEDING"), bound(frame.upper, "UNBOUNDED FOLLOWING")
    return f"{'ROWS' if frame.rows else 'RANGE'} BETWEEN {lower} AND {upper}"


def _bound(offset: Offset) -> str:
    number = offset.number if isinstance(offset, Months) else offset
    if number == 0:
        return "CURRENT ROW"
    # Without an exponent, which the parser of SQL does not read everywhere.
    distance = format(Decimal(number).copy_abs(), "f")
    if isinstance(offset, Months):
        distance = f"INTERVAL '{distance}' MONTH"
    return f"{distance} {'FOLLOWING' if number > 0 else 'PRECEDING'}"


def _order_operand(key: SortKey, child: Node, frame: Frame) -> Expr:
    """The order as a column. A range frame adds offsets to it, which must not overflow silently."""
    value = order_operand(key, child)
    if key.type == BINARY:
        # DataFusion has no range frames over binary, which ranks have, too. Digits of bytes are ordered like the bytes.
        return f.encode(value, "hex")
    offsets = [] if frame.rows else offsets_of(frame, key.type)
    if not offsets or not all(isinstance(offset, int) for offset in offsets):
        return value
    # A date is its number of days, a timestamp that of microseconds.
    arrow_type = (
        pa.int32() if key.type == DATE else pa.int64() if key.type in _TIMESTAMPS else to_arrow(key.type)
    )
    value = value.cast(arrow_type)
    for offset in offsets:
        if isinstance(offset, int):
            value = _check_reach(value, offset if key.ascending else -offset, arrow_type)
    return value.cast(pa.int64())


def _check_reach(value: Expr, offset: int, arrow_type: pa.DataType) -> Expr:
    """The value itself; fails if value + offset overflows the type in which Spark computes it."""
    wide = pa.decimal128(21, 0)
    step = literal(pa.scalar(offset, wide))
    return ((value.cast(wide) + step).cast(arrow_type).cast(wide) - step).cast(arrow_type)
