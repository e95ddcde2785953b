# SPDX-License-Identifier: Apache-2.0
"""Decodes pandas and Arrow aggregates in windows.

A function with a bounded frame reads two more columns: where the frame of each row begins and ends in its partition.
A frame of rows follows from the place of a row, which the worker knows. A frame of values (RANGE) is counted by a
native window below: it ends after the rows up to its upper bound, and begins before the rows from its lower bound on.
Rows with equal values have equal counts, so their order does not matter.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from volley.plan import synthetic_ids
from volley.plan.decode_nodes import Operator
from volley.plan.expressions import (
    AggregateCall,
    AggregateMode,
    Alias,
    Call,
    EvalMode,
    Expression,
    Frame,
    Literal,
    SortKey,
    WindowCall,
    attribute_of,
)
from volley.plan.nodes import Node, Window
from volley.plan.python_nodes import PythonCall, PythonWindow, RowFrame
from volley.plan.python_programs import (
    Functions,
    ProgramInputs,
    Refused,
    functions_of,
    read_call,
    read_program,
)
from volley.plan.types import INTEGER, LONG, StructField

_counts = itertools.count(synthetic_ids.FRAME_BOUND)


def decode_window(operator: Operator, functions: Functions) -> Node:
    columns: tuple[Alias, ...] = operator.all("windowExpression")
    windows = [_window_call(column) for column in columns]
    calls = tuple(_function(window) for window in windows)
    frames = [_read_frame(window.frame) for window in windows]
    row_frames = tuple(dict.fromkeys(frame for frame in frames if isinstance(frame, RowFrame)))
    value_frames = tuple(dict.fromkeys(frame for frame in frames if isinstance(frame, Frame)))
    bounded: list[RowFrame | Frame] = [*row_frames, *value_frames]
    bounds = tuple(StructField(f"bound{number}", INTEGER, True) for number in range(2 * len(bounded)))
    inputs = ProgramInputs()
    read = [read_call(call, functions, inputs) for call in calls]
    with_bounds = tuple(
        _add_bounds(call, len(bounds), None if frame is None else 2 * bounded.index(frame))
        for call, frame in zip(read, frames, strict=True)
    )
    used = list(functions_of(calls, functions))
    program = read_program(
        operator, operator.value("evalType"), with_bounds, (*bounds, *inputs.columns), used
    )
    kinds = ",".join("unbounded" if frame is None else "bounded" for frame in frames)
    partition: tuple[Expression, ...] = operator.all("partitionSpec")
    order: tuple[SortKey, ...] = operator.all("orderSpec")
    child, counted = _count(value_frames, partition, order, operator.children[0])
    return PythonWindow(
        replace(program, settings=(*program.settings, ("window_bound_types", kinds))),
        partition,
        order,
        row_frames,
        (*counted, *inputs.expressions),
        tuple(attribute_of(column) for column in columns),
        operator.children[0].output,
        child,
    )


def _window_call(column: Alias) -> WindowCall:
    if not isinstance(column, Alias) or not isinstance(column.child, WindowCall):
        raise Refused("a window expression could not be read")
    return column.child


def _function(window: WindowCall) -> Call:
    if not isinstance(window.function, AggregateCall):
        return window.function
    if window.function.distinct or window.function.filter is not None:
        raise Refused("DISTINCT or FILTER in a window")
    return window.function.function


def _read_frame(frame: Frame) -> RowFrame | Frame | None:
    """A frame of rows or of values; None: the whole partition."""
    if frame.lower is None and frame.upper is None:
        return None
    return RowFrame(_offset(frame.lower), _offset(frame.upper)) if frame.rows else frame


def _offset(bound: Expression | None) -> int | None:
    match bound:
        case None:
            return None
        case Literal(int(value), _) if bound.type == INTEGER:
            return value
        case Call("UnaryMinus", (Literal(int(value), _),), _, _, _) if bound.type == INTEGER:
            return -value
        case _:
            raise Refused("a frame of rows whose bounds are not constant")


def _add_bounds(call: PythonCall, bounds: int, place: int | None) -> PythonCall:
    """The call, whose arguments stand behind `bounds` columns; it reads the two at `place` first."""
    arguments = tuple((number + bounds, name) for number, name in call.arguments)
    if place is not None:
        arguments = ((place, None), (place + 1, None), *arguments)
    return replace(call, arguments=arguments)


def _count(
    frames: Sequence[Frame], partition: tuple[Expression, ...], order: tuple[SortKey, ...], child: Node
) -> tuple[Node, list[Expression]]:
    """The child with the counts that frames of values need, and where each frame begins and ends."""
    counts: list[Alias] = []

    def count(frame: Frame) -> Expression:
        number = next(_counts)
        ones = Call("Count", (Literal(1, INTEGER),), LONG)
        call = AggregateCall(
            ones, AggregateMode.COMPLETE, distinct=False, filter=None, result_id=next(_counts)
        )
        counts.append(Alias(number, "rows", WindowCall(call, partition, order, frame)))
        return attribute_of(counts[-1])

    bounds: list[Expression] = []
    for frame in frames:
        whole = count(replace(frame, lower=None, upper=None))
        begin: Expression = Literal(0, LONG)
        if frame.lower is not None:
            begin = Call("Subtract", (whole, count(replace(frame, upper=None))), LONG, EvalMode.LEGACY)
        end = whole if frame.upper is None else count(replace(frame, lower=None))
        bounds += [Call("Cast", (bound,), INTEGER, EvalMode.LEGACY) for bound in (begin, end)]
    return (Window(tuple(counts), child) if counts else child), bounds
