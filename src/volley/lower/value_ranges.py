# SPDX-License-Identifier: Apache-2.0
"""Finds arithmetic that cannot overflow, because the footers of files bound its operands.

Spark fails, or returns NULL, if a result has too many digits for its type: decimal(33,4) * decimal(16,2) may have 49.
Checking that takes a quarter of the time of TPC-H q01, and additions of longs call Arrow's checked kernels from Python.
The prices in the files have 8 digits. So calls that fit whatever the rows are get the option `fits`.

Bounds are followed from scans upwards through operators that pass values on unchanged. They are not followed through a
union, whose columns have the ids of those of its first input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial

from volley.formats.column_ranges import ValueRange, column_range
from volley.plan.expressions import Alias, Attribute, Call, EvalMode, Expression, Literal, transform
from volley.plan.nodes import (
    Aggregate,
    Exchange,
    FileScan,
    Filter,
    Join,
    Limit,
    Node,
    Project,
    Sort,
    map_expressions,
    with_children,
)
from volley.plan.types import BYTE, INTEGER, INTEGRAL, LONG, SHORT, DataType, DecimalType

FITS = "fits"
"""The option of a call of which no result overflows its type."""

_Ranges = Callable[[int], ValueRange | None]
"""The range of a column, by its id. Footers are read only if arithmetic asks."""

_BITS: dict[DataType, int] = {BYTE: 8, SHORT: 16, INTEGER: 32, LONG: 64}


def mark_fitting_arithmetic(node: Node) -> Node:
    """The plan, with the option `fits` at additions, subtractions and products that cannot overflow."""
    return _mark(node)[0]


def fits(call: Call) -> bool:
    return bool(call.option(FITS))


def _mark(node: Node) -> tuple[Node, _Ranges]:
    marked = [_mark(child) for child in node.children]
    node = with_children(node, tuple(child for child, _ in marked))
    match node:
        case FileScan():
            return node, cache(partial(_range_in_scan, node))
        case Project(expressions, _):
            ((_, below),) = marked
            return _mark_expressions(node, below), cache(partial(_range_of_named, expressions, below))
        case Filter():
            ((_, below),) = marked
            return _mark_expressions(node, below), below
        case Aggregate():
            ((_, below),) = marked
            return _mark_expressions(node, below), _unknown
        case Sort() | Limit() | Exchange():
            return node, marked[0][1]
        case Join():
            (_, left), (_, right) = marked
            return node, lambda id: left(id) or right(id)
        case _:
            return node, _unknown


def _unknown(id: int) -> None:
    return None


def _range_in_scan(scan: FileScan, id: int) -> ValueRange | None:
    column = next((column for column in scan.output if column.id == id), None)
    return column_range(scan, column) if column is not None else None


def _range_of_named(expressions: tuple[Expression, ...], below: _Ranges, id: int) -> ValueRange | None:
    for expression in expressions:
        match expression:
            case Alias(named, _, child) if named == id:
                return range_of(child, below)
            case Attribute(named) if named == id:
                return below(id)
    return None


def _mark_expressions(node: Node, below: _Ranges) -> Node:
    def mark(part: Expression) -> Expression:
        if not isinstance(part, Call) or not _is_checked(part) or range_of(part, below) is None:
            return part
        return replace(part, options=(*part.options, (FITS, True)))

    return map_expressions(node, lambda expression: transform(expression, mark))


_ARITHMETIC = frozenset({"Add", "Subtract", "Multiply"})
_MAX_DIGITS = 38


def _is_checked(call: Call) -> bool:
    """Whether it is computed with a check. Otherwise no footer need be read for it."""
    if call.function not in _ARITHMETIC:
        return False
    if isinstance(call.type, DecimalType):
        return call.type.precision == _MAX_DIGITS
    return call.type in INTEGRAL and call.mode is not EvalMode.LEGACY


def range_of(expression: Expression, columns: _Ranges) -> ValueRange | None:
    """The range of an exact number, without its point; None if it is not known or if it may not fit the type."""
    match expression:
        case Attribute(id):
            return columns(id)
        case Alias(_, _, child):
            return range_of(child, columns)
        case Literal(value, data_type) if value is not None and _is_exact(data_type):
            scaled = Fraction(value) * 10 ** _scale(data_type)  # type: ignore[arg-type]  # a number
            return (int(scaled), int(scaled)) if scaled.denominator == 1 else None
        case Call("Cast", (child, *_), data_type) if _is_exact(data_type) and _is_exact(child.type):
            return _fitting(_rescale(range_of(child, columns), child.type, data_type), data_type)
        case Call(function, (left, right), data_type) if function in _ARITHMETIC and _is_exact(data_type):
            return _fitting(_combine(function, left, right, data_type, columns), data_type)
        case _:
            return None


def _combine(
    function: str, left: Expression, right: Expression, result: DataType, columns: _Ranges
) -> ValueRange | None:
    if not _is_exact(left.type) or not _is_exact(right.type):
        return None
    first, second = range_of(left, columns), range_of(right, columns)
    if function == "Multiply":
        if first is None or second is None or _scale(left.type) + _scale(right.type) != _scale(result):
            return None
        products = [one * other for one in first for other in second]
        return min(products), max(products)
    first, second = _rescale(first, left.type, result), _rescale(second, right.type, result)
    if first is None or second is None:
        return None
    if function == "Add":
        return first[0] + second[0], first[1] + second[1]
    return first[0] - second[1], first[1] - second[0]


def _rescale(values: ValueRange | None, source: DataType, target: DataType) -> ValueRange | None:
    """None if digits would be lost."""
    more = _scale(target) - _scale(source)
    return None if values is None or more < 0 else (values[0] * 10**more, values[1] * 10**more)


def _fitting(values: ValueRange | None, data_type: DataType) -> ValueRange | None:
    if values is None:
        return None
    if isinstance(data_type, DecimalType):
        limit = 10**data_type.precision
        return values if -limit < values[0] and values[1] < limit else None
    limit = 2 ** (_BITS[data_type] - 1)
    return values if -limit <= values[0] and values[1] < limit else None


def _is_exact(data_type: DataType) -> bool:
    return data_type in INTEGRAL or isinstance(data_type, DecimalType)


def _scale(data_type: DataType) -> int:
    return data_type.scale if isinstance(data_type, DecimalType) else 0
