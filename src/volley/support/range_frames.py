# SPDX-License-Identifier: Apache-2.0
"""Range frames: how far their bounds are from the current row, in the terms of the key that orders the frame."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from volley.plan.expressions import CURRENT_ROW, Call, Expression, Frame, Literal, Scalar
from volley.plan.types import (
    DATE,
    DAY_TIME_INTERVALS,
    FRACTIONAL,
    INTEGRAL,
    NUMBERED,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    YEAR_MONTH_INTERVALS,
    DataType,
    DecimalType,
)

_DAY_MICROSECONDS = 24 * 60 * 60 * 1_000_000


@dataclass(frozen=True)
class Months:
    """Calendar months, which have no fixed length."""

    number: int


Offset = int | float | Decimal | Months
"""What is added to a key: integers to its number (of days, of microseconds), others to its value."""


def offsets_of(frame: Frame, key: DataType) -> list[Offset]:
    """The offsets of a range frame over a key. ValueError, which says why, if there is no exact one."""
    bounds = [bound for bound in (frame.lower, frame.upper) if bound is not None and bound != CURRENT_ROW]
    return [offset_of(bound, key) for bound in bounds]


def offset_of(bound: Expression, key: DataType) -> Offset:
    """The offset of one bound of a range frame, other than the current row."""
    value, kind = _constant(bound)
    if key == DATE:
        return _days(value, kind)
    if key in (TIMESTAMP, TIMESTAMP_NTZ):
        return _microseconds(value, kind)
    is_exact = (
        (key in INTEGRAL and isinstance(value, int) and kind in INTEGRAL)
        or (key in NUMBERED and isinstance(value, int) and kind == key)
        or (key in FRACTIONAL and isinstance(value, float) and kind in FRACTIONAL)
        # One digit is left for the sum.
        or (
            isinstance(key, DecimalType) and key.precision < 38 and isinstance(value, Decimal) and kind == key
        )
    )
    if not is_exact or not isinstance(value, int | float | Decimal):
        raise ValueError(f"offsets of type {kind} with ORDER BY on {key}")
    return value


def _constant(bound: Expression) -> tuple[Scalar, DataType]:
    match bound:
        case Literal(value, kind) if value is not None:
            return value, kind
        case Call("UnaryMinus", (Literal(value, kind),)) if isinstance(value, int | float | Decimal):
            return -value, kind
        case _:
            raise ValueError("bounds that are not constants")


def _days(value: Scalar, kind: DataType) -> Offset:
    if isinstance(value, int):
        if kind in INTEGRAL:
            return value
        if kind in YEAR_MONTH_INTERVALS:
            return Months(value)
        if kind in DAY_TIME_INTERVALS and value % _DAY_MICROSECONDS == 0:
            return value // _DAY_MICROSECONDS
    raise ValueError(f"offsets of type {kind} with ORDER BY on {DATE}")


def _microseconds(value: Scalar, kind: DataType) -> Offset:
    if isinstance(value, int):
        if kind in YEAR_MONTH_INTERVALS:
            return Months(value)
        if kind in DAY_TIME_INTERVALS:
            return value
    raise ValueError(f"offsets of type {kind} with ORDER BY on a timestamp")


def follows_clock(offset: Offset, key: DataType) -> bool:
    """Whether an offset is one of the clock of a time zone: days and months of a timestamp are."""
    return key == TIMESTAMP and not (isinstance(offset, int) and abs(offset) < _DAY_MICROSECONDS)
