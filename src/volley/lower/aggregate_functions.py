# SPDX-License-Identifier: Apache-2.0
"""Spark's aggregate functions: which totals each needs, and how its state and value are computed from them.

`state` returns Spark's buffer columns in Spark's order, because plans bind them by position. An overflow is always an
error here, unless Spark keeps the low bits of a long: Spark then runs the query, and raises or returns NULL.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Protocol

import pyarrow as pa
from datafusion import Expr, literal
from datafusion import functions as f

from volley.lower.accumulators import Accumulator, FloatRank, Total
from volley.lower.functions import decimals
from volley.lower.semantics import narrow
from volley.plan.expressions import Attribute, Call, EvalMode, Expression, Literal
from volley.plan.types import BOOLEAN, DOUBLE, FRACTIONAL, LONG, DataType, DecimalType, to_arrow

# A sum of 10^10 values of 28 digits stays within the 38 digits (and 127 bits) of a decimal128.
_SAFE_DIGITS = 28
# States are merged once per task, so less headroom is enough.
_SAFE_STATE_DIGITS = 34
# Spark rounds a quotient to 39 digits, then to the scale; up to this precision a single rounding gives the same.
_SAFE_AVERAGE_DIGITS = 29


_NONE = literal(pa.scalar(0, pa.int64()))
_SMALLEST_LONG, _LARGEST_LONG = (
    literal(pa.scalar(Decimal(bound), pa.decimal128(38, 0))) for bound in (-(2**63), 2**63 - 1)
)


class AggregateFunction(Protocol):
    """One aggregate function. `totals` are the results of the accumulators that it requested, in order."""

    def rows(self, call: Call, where: Expression | None, distinct: bool) -> list[Accumulator]:
        """The totals over rows."""

    def merge(self, call: Call, state: tuple[Attribute, ...]) -> list[Accumulator]:
        """The same totals over states."""

    def state(self, call: Call, totals: list[Expr]) -> list[Expr]:
        """Spark's buffer columns."""

    def value(self, call: Call, totals: list[Expr]) -> Expr:
        """The result, in the type of the call."""


class Count:
    def rows(self, call: Call, where: Expression | None, distinct: bool) -> list[Accumulator]:
        return [Accumulator(Total.COUNT, call.arguments, where=where, distinct=distinct)]

    def merge(self, call: Call, state: tuple[Attribute, ...]) -> list[Accumulator]:
        return [Accumulator(Total.SUM, state)]

    def state(self, call: Call, totals: list[Expr]) -> list[Expr]:
        return [self.value(call, totals)]

    def value(self, call: Call, totals: list[Expr]) -> Expr:
        # Merging no states gives NULL; a count is never NULL.
        return f.coalesce(totals[0], literal(pa.scalar(0, pa.int64())))


class Sum:
    def rows(self, call: Call, where: Expression | None, distinct: bool) -> list[Accumulator]:
        wide = pa.int64() if _wraps(call) else _wide(call.arguments[0].type, _SAFE_DIGITS)
        return [Accumulator(Total.SUM, call.arguments, wide, where, distinct)]

    def merge(self, call: Call, state: tuple[Attribute, ...]) -> list[Accumulator]:
        wide = pa.int64() if _wraps(call) else _wide(state[0].type, _SAFE_STATE_DIGITS)
        total = Accumulator(Total.SUM, state[:1], wide)
        if not _is_try_of_integers(call):
            return [total]
        # A sum of NULL that is not empty has overflowed.
        overflowed = Call(
            "And", (Call("IsNull", state[:1], BOOLEAN), Call("Not", state[1:], BOOLEAN)), BOOLEAN
        )
        counted = Call("If", (overflowed, Literal(1, LONG), Literal(None, LONG)), LONG)
        return [total, Accumulator(Total.COUNT, (counted,))]

    def state(self, call: Call, totals: list[Expr]) -> list[Expr]:
        total = self.value(call, totals)
        if _is_try_of_integers(call):
            is_empty = totals[0].is_null()
            return [total, is_empty if len(totals) == 1 else is_empty & (totals[1] == _NONE)]
        return [total, total.is_null()] if state_width(call) == 2 else [total]

    def value(self, call: Call, totals: list[Expr]) -> Expr:
        if not _is_try_of_integers(call):
            return totals[0].cast(to_arrow(call.type))
        wide = totals[0].cast(pa.decimal128(38, 0))
        fits = (wide >= _SMALLEST_LONG) & (wide <= _LARGEST_LONG)
        if len(totals) > 1:
            fits = fits & (totals[1] == _NONE)
        return f.when(fits, wide).end().cast(pa.int64())


class Average:
    def rows(self, call: Call, where: Expression | None, distinct: bool) -> list[Accumulator]:
        # Spark adds longs as doubles, and so may lose digits. The sum of smaller integers is exact either way, even in
        # a window's moving frame.
        source = call.arguments[0].type
        wide = pa.float64() if source == LONG else _wide(source, _SAFE_DIGITS)
        return [
            Accumulator(Total.SUM, call.arguments, wide, where, distinct),
            Accumulator(Total.COUNT, call.arguments, None, where, distinct),
        ]

    def merge(self, call: Call, state: tuple[Attribute, ...]) -> list[Accumulator]:
        total, count = state
        return [
            Accumulator(Total.SUM, (total,), _wide(total.type, _SAFE_STATE_DIGITS)),
            Accumulator(Total.SUM, (count,)),
        ]

    def state(self, call: Call, totals: list[Expr]) -> list[Expr]:
        return [
            totals[0].cast(to_arrow(_sum_type(call))),
            f.coalesce(totals[1], literal(pa.scalar(0, pa.int64()))),
        ]

    def value(self, call: Call, totals: list[Expr]) -> Expr:
        total, count = self.state(call, totals)
        if not isinstance(call.type, DecimalType):
            return total / count.cast(pa.float64())
        # The sum of no rows is NULL, so a zero count never divides.
        divisor = f.when(total.is_not_null(), count.cast(pa.decimal128(20, 0))).end()
        quotient = decimals.divide(_division(call), [total, divisor])
        if call.type.precision <= _SAFE_AVERAGE_DIGITS:
            return quotient
        safe = pa.decimal128(_SAFE_AVERAGE_DIGITS, call.type.scale)
        return narrow(quotient, safe).cast(to_arrow(call.type))


_RANKS = {Total.MIN: Total.MIN_RANK, Total.MAX: Total.MAX_RANK}


class Extreme:
    """Min and max. NaN is Spark's largest number."""

    def __init__(self, total: Total) -> None:
        self._total = total

    def rows(self, call: Call, where: Expression | None, distinct: bool) -> list[Accumulator]:
        return self._totals(call.arguments, where)

    def merge(self, call: Call, state: tuple[Attribute, ...]) -> list[Accumulator]:
        return self._totals(state, None)

    def state(self, call: Call, totals: list[Expr]) -> list[Expr]:
        return [self.value(call, totals)]

    def value(self, call: Call, totals: list[Expr]) -> Expr:
        if call.type not in FRACTIONAL:
            return totals[0]
        number, rank = totals
        special = {FloatRank.NAN: "nan", FloatRank.HIGHEST: "inf", FloatRank.LOWEST: "-inf"}
        choice = f.case(rank)
        for kind, text in special.items():
            constant = literal(pa.scalar(float(text), to_arrow(call.type)))
            choice = choice.when(literal(pa.scalar(int(kind), pa.int8())), constant)
        return choice.otherwise(number)

    def _totals(self, arguments: tuple[Expression, ...], where: Expression | None) -> list[Accumulator]:
        if arguments[0].type not in FRACTIONAL:
            return [Accumulator(self._total, arguments, where=where)]
        return [
            Accumulator(self._total, arguments, where=where, numbers_only=True),
            Accumulator(_RANKS[self._total], arguments, where=where),
        ]


class Bits:
    """AND, OR and XOR of all values: their order does not matter, and no value gives NULL."""

    def __init__(self, total: Total) -> None:
        self._total = total

    def rows(self, call: Call, where: Expression | None, distinct: bool) -> list[Accumulator]:
        return [Accumulator(self._total, call.arguments, where=where, distinct=distinct)]

    def merge(self, call: Call, state: tuple[Attribute, ...]) -> list[Accumulator]:
        return [Accumulator(self._total, state)]

    def state(self, call: Call, totals: list[Expr]) -> list[Expr]:
        return totals

    def value(self, call: Call, totals: list[Expr]) -> Expr:
        return totals[0]


class FirstOrLast:
    """The first or last value that is not NULL. Only used where all values are the same."""

    def __init__(self, total: Total) -> None:
        self._total = total

    def rows(self, call: Call, where: Expression | None, distinct: bool) -> list[Accumulator]:
        return [Accumulator(self._total, call.arguments[:1], where=where)]

    def merge(self, call: Call, state: tuple[Attribute, ...]) -> list[Accumulator]:
        return [Accumulator(self._total, state[:1])]

    def state(self, call: Call, totals: list[Expr]) -> list[Expr]:
        return [totals[0], totals[0].is_not_null()]

    def value(self, call: Call, totals: list[Expr]) -> Expr:
        return totals[0]


class Moment:
    """Standard deviation and variance. They run over rows only; tasks never exchange their state."""

    def __init__(self, total: Total) -> None:
        self._total = total

    def rows(self, call: Call, where: Expression | None, distinct: bool) -> list[Accumulator]:
        (value,) = call.arguments[:1]
        # Zero, or NaN if a value is not finite: DataFusion takes the variance of a single one for zero.
        rest = Call("Multiply", (value, Literal(0.0, DOUBLE)), DOUBLE, EvalMode.LEGACY)
        return [
            Accumulator(self._total, (value,), pa.float64(), where),
            Accumulator(Total.SUM, (rest,), pa.float64(), where),
        ]

    def merge(self, call: Call, state: tuple[Attribute, ...]) -> list[Accumulator]:
        raise TypeError(f"{call.function} must run over rows, in one step")

    def state(self, call: Call, totals: list[Expr]) -> list[Expr]:
        raise TypeError(f"{call.function} must run over rows, in one step")

    def value(self, call: Call, totals: list[Expr]) -> Expr:
        moment, zero = totals
        return moment + zero


def state_width(call: Call) -> int:
    """How many buffer columns Spark gives this function."""
    match call.function:
        case "Average" | "First" | "Last":
            return 2
        case "Sum":
            # If Spark's sum can overflow to NULL, a flag distinguishes that from the sum of no rows.
            return 2 if isinstance(call.type, DecimalType) or _is_try_of_integers(call) else 1
        case "StddevSamp" | "StddevPop" | "VarianceSamp" | "VariancePop":
            return 3
        case _:
            return 1


def _wraps(call: Call) -> bool:
    """Whether a sum keeps its low bits where it overflows, as DataFusion's of longs does."""
    return call.mode is EvalMode.LEGACY and call.type == LONG


def _is_try_of_integers(call: Call) -> bool:
    return call.mode is EvalMode.TRY and call.type == LONG


AGGREGATES: dict[str, AggregateFunction] = {
    "Count": Count(),
    "Sum": Sum(),
    "Average": Average(),
    "Min": Extreme(Total.MIN),
    "Max": Extreme(Total.MAX),
    "First": FirstOrLast(Total.FIRST),
    "Last": FirstOrLast(Total.LAST),
    "BitAndAgg": Bits(Total.BIT_AND),
    "BitOrAgg": Bits(Total.BIT_OR),
    "BitXorAgg": Bits(Total.BIT_XOR),
    "StddevSamp": Moment(Total.STDDEV_SAMP),
    "StddevPop": Moment(Total.STDDEV_POP),
    "VarianceSamp": Moment(Total.VAR_SAMP),
    "VariancePop": Moment(Total.VAR_POP),
}


def _wide(data_type: DataType, digits: int) -> pa.DataType:
    """The type in which values of `data_type` are summed; casting to it rejects values that could overflow the sum."""
    match data_type:
        case DecimalType(precision, scale):
            return pa.decimal128(min(precision, max(digits, scale)), scale)
        case _ if data_type == LONG:
            return pa.decimal128(20, 0)
        case _ if data_type in FRACTIONAL:
            return pa.float64()
        case _:
            return pa.int64()


def _sum_type(call: Call) -> DataType:
    """The type of the sum inside an average."""
    match call.arguments[0].type:
        case DecimalType(precision, scale):
            return DecimalType(min(38, precision + 10), scale)
        case _:
            return DOUBLE


def _division(call: Call) -> Call:
    """The final division of a decimal average, with Spark's types."""
    types = (_sum_type(call), DecimalType(20, 0))
    return Call("Divide", tuple(Literal(None, part) for part in types), call.type, EvalMode.ANSI)
