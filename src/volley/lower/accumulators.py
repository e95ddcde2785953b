# SPDX-License-Identifier: Apache-2.0
"""The few totals that all aggregate functions are built from.

An aggregate function requests accumulators and computes its state or value from them. They are plain data, so two
functions that need the same total, such as sum(x) and avg(x), share one. They run grouped or in a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import reduce
from operator import and_

import pyarrow as pa
from datafusion import Expr, literal
from datafusion import functions as f
from datafusion.common import NullTreatment

from volley.lower.expressions import lower_expression
from volley.plan.expressions import Expression, Literal
from volley.plan.types import to_arrow
from volley.python_versions import StrEnum

# Typed scalars: for other values DataFusion tries imports, which take longer than the rest of an aggregate.
_ONE = literal(pa.scalar(1, pa.int64()))
_INFINITY = literal(pa.scalar(float("inf"), pa.float64()))
_MINUS_INFINITY = literal(pa.scalar(float("-inf"), pa.float64()))


class Total(StrEnum):
    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    # The kind of the extreme float: see `FloatRank`.
    MIN_RANK = "min rank"
    MAX_RANK = "max rank"
    FIRST = "first"
    LAST = "last"
    BIT_AND = "bit_and"
    BIT_OR = "bit_or"
    BIT_XOR = "bit_xor"
    STDDEV_SAMP = "stddev_samp"
    STDDEV_POP = "stddev_pop"
    VAR_SAMP = "var_samp"
    VAR_POP = "var_pop"
    # All values of a group, as a list: structs if there are several arguments.
    LIST = "list"


class FloatRank(IntEnum):
    """Kinds of floats in Spark's order, in which NaN is the largest.

    DataFusion's grouped min starts from the largest finite number and never returns infinity (its max never returns
    minus infinity), and it does not handle NaN. So these are excluded from the total and found by their rank.
    """

    LOWEST = 0
    NUMBER = 1
    HIGHEST = 2
    NAN = 3


@dataclass(frozen=True)
class Accumulator:
    """One total over the rows that satisfy `where` (None: all rows).

    `cast_to` is the type in which the argument is summed; a value that does not fit is an error, so that no sum
    overflows silently. `numbers_only` takes only floats of `FloatRank.NUMBER`.
    """

    total: Total
    arguments: tuple[Expression, ...]
    cast_to: pa.DataType | None = None
    where: Expression | None = None
    distinct: bool = False
    numbers_only: bool = False

    def operand(self) -> Expr:
        """The value to accumulate for each row, regardless of `where`."""
        if self.total is Total.COUNT:
            return self._count_operand()
        if self.total is Total.LIST:
            return self._list_operand()
        value = lower_expression(self.arguments[0])
        if self.total in (Total.MIN_RANK, Total.MAX_RANK):
            return _rank(value)
        if self.cast_to is not None:
            value = value.cast(self.cast_to)
        return f.when(_rank(value) == _int8(FloatRank.NUMBER), value).end() if self.numbers_only else value

    def _count_operand(self) -> Expr:
        """NULL for rows that do not count, because an argument is NULL."""
        nullable = [a for a in self.arguments if not (isinstance(a, Literal) and a.value is not None)]
        values = [lower_expression(argument) for argument in nullable]
        if len(values) <= 1:
            return values[0] if values else _ONE
        present = reduce(and_, (value.is_not_null() for value in values))
        # Rows are distinct if any of their values differ.
        row = f.named_struct([(f"v{position}", value) for position, value in enumerate(values)])
        return f.when(present, row if self.distinct else _ONE).end()

    def _list_operand(self) -> Expr:
        # In exactly Spark's types: texts may be views here, and kernels take arrays of one type.
        values = [lower_expression(argument).cast(to_arrow(argument.type)) for argument in self.arguments]
        if len(values) == 1:
            return values[0]
        return f.named_struct([(f"v{position}", value) for position, value in enumerate(values)])

    @property
    def list_type(self) -> pa.ListType:
        """The type of a list total."""
        types = [to_arrow(argument.type) for argument in self.arguments]
        if len(types) == 1:
            return pa.list_(pa.field("item", types[0]))
        return pa.list_(
            pa.field("item", pa.struct([(f"v{position}", kind) for position, kind in enumerate(types)]))
        )

    def lower_grouped(self) -> Expr:
        """The total as a DataFusion aggregate."""
        value = self.operand()
        where = None if self.where is None else lower_expression(self.where)
        match self.total:
            case Total.COUNT:
                return f.count(value, distinct=self.distinct, filter=where)
            case Total.SUM:
                return f.sum(value, distinct=self.distinct, filter=where)
            case Total.MIN | Total.MIN_RANK:
                return f.min(value, filter=where)
            case Total.MAX | Total.MAX_RANK:
                return f.max(value, filter=where)
            case Total.FIRST:
                return f.first_value(value, filter=where, null_treatment=NullTreatment.IGNORE_NULLS)
            case Total.LAST:
                return f.last_value(value, filter=where, null_treatment=NullTreatment.IGNORE_NULLS)
            case Total.BIT_AND:
                return f.bit_and(value, filter=where)
            case Total.BIT_OR:
                return f.bit_or(value, filter=where)
            case Total.BIT_XOR:
                return f.bit_xor(value, distinct=self.distinct, filter=where)
            case Total.STDDEV_SAMP:
                return f.stddev(value, filter=where)
            case Total.STDDEV_POP:
                return f.stddev_pop(value, filter=where)
            case Total.VAR_SAMP:
                return f.var_samp(value, filter=where)
            case Total.VAR_POP:
                return f.var_pop(value, filter=where)
            case Total.LIST:
                return f.array_agg(value, distinct=self.distinct, filter=where)

    @property
    def sql_function(self) -> str:
        """The name of the aggregate in a window."""
        names = {Total.MIN_RANK: "min", Total.MAX_RANK: "max", Total.STDDEV_SAMP: "stddev"}
        return names.get(self.total, str(self.total))


def _rank(value: Expr) -> Expr:
    return (
        f.when(value.isnan(), _int8(FloatRank.NAN))
        .when(value == _INFINITY, _int8(FloatRank.HIGHEST))
        .when(value == _MINUS_INFINITY, _int8(FloatRank.LOWEST))
        .when(value.is_not_null(), _int8(FloatRank.NUMBER))
        .end()
    )


def _int8(value: int) -> Expr:
    return literal(pa.scalar(int(value), pa.int8()))
