# SPDX-License-Identifier: Apache-2.0
"""Catalyst expressions as plain data.

Most of Catalyst's hundreds of classes differ only in what they compute, so they share one shape, `Call`,
named after the Catalyst class. The few that the rest of Volley must inspect have their own class.
Every expression has the type that Spark gave it; Volley never derives types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from volley.field_types import NOT_SENT
from volley.plan.types import BOOLEAN, INTEGER, DataType, StructField, StructType
from volley.python_versions import StrEnum

if TYPE_CHECKING:
    from volley.plan.nodes import Node

Scalar = None | bool | int | float | str | bytes | Decimal
Options = tuple[tuple[str, Scalar], ...]


class EvalMode(StrEnum):
    """What Spark does on overflow, division by zero and bad casts: raise, return Java's result, or return NULL."""

    ANSI = "ANSI"
    LEGACY = "LEGACY"
    TRY = "TRY"


@dataclass(frozen=True)
class Attribute:
    """A column, identified by Catalyst's expression id: names may repeat, ids do not."""

    id: int
    name: str
    type: DataType
    nullable: bool = True


@dataclass(frozen=True)
class Literal:
    """A constant. Dates are days and timestamps microseconds since the epoch, decimals carry their scale."""

    value: Scalar
    type: DataType

    def __eq__(self, other: object) -> bool:
        # As in Spark: what is computed once for equal expressions must not mix up 0.0 and -0.0.
        return isinstance(other, Literal) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[Scalar, DataType]:
        return repr(self.value) if isinstance(self.value, float) else self.value, self.type


@dataclass(frozen=True)
class Alias:
    id: int
    name: str
    child: Expression

    @property
    def type(self) -> DataType:
        return self.child.type


@dataclass(frozen=True)
class Call:
    """Any other expression: `function` is the Catalyst class (`Add`, `Substring`, ...), without its package.

    `mode` is set where Catalyst has one. `options` holds the remaining scalar fields of the class by their
    Catalyst names (`failOnError`, `timeZoneId`, `escapeChar`, ...).
    """

    function: str
    arguments: tuple[Expression, ...]
    type: DataType
    mode: EvalMode | None = None
    options: Options = ()

    def option(self, name: str) -> Scalar:
        return dict(self.options).get(name)


JVM_EXPRESSION = "JvmExpression"
"""The function of a `Call` that Spark's own code evaluates. Its option `program` is a number of `volley.jvm`, or the
program itself for workers in other processes. `name` is the Catalyst class at the top of what it stands for, or several
of them; `inside` are those below it, if any."""
JVM_FIELD = "JvmField"
"""One of several values that a `JvmExpression` computes together, by the option `ordinal`."""
JVM_AGGREGATE = "JvmAggregate"
"""The function of an `AggregateCall` that Spark's own code computes from the rows of a group, in any order. It has the
same options as a `JvmExpression`; its arguments are the columns that it reads."""
JVM_ORDERED_AGGREGATE = "JvmOrderedAggregate"
"""The same, if the result may depend on the order of the rows."""
JVM_PLACED_AGGREGATE = "JvmPlacedAggregate"
"""The same, from rows whose places in Spark's partitions are known."""
JVM_AGGREGATES = frozenset({JVM_AGGREGATE, JVM_ORDERED_AGGREGATE, JVM_PLACED_AGGREGATE})


COLLECT_ROWS = "CollectRows"
"""The function of an `AggregateCall` that lists all rows of a group, in any order."""


def struct_of(calls: Sequence[Call]) -> StructType:
    """The type of a `JvmExpression` that computes several calls together."""
    return StructType(tuple(StructField(f"f{place}", call.type, True) for place, call in enumerate(calls)))


class AggregateMode(StrEnum):
    """Which step of an aggregation a node does: rows to state, state to state, state to value, rows to value."""

    PARTIAL = "Partial"
    PARTIAL_MERGE = "PartialMerge"
    FINAL = "Final"
    COMPLETE = "Complete"

    @property
    def reads_rows(self) -> bool:
        return self in (AggregateMode.PARTIAL, AggregateMode.COMPLETE)

    @property
    def gives_values(self) -> bool:
        return self in (AggregateMode.FINAL, AggregateMode.COMPLETE)


@dataclass(frozen=True)
class AggregateCall:
    """One aggregate function in one mode. Result expressions refer to it by `result_id`.

    `order_by` is the order of the rows that a function depends on, where `plan.order` has made that explicit.

    `partitions` is not None if Spark merges a state for each of its partitions, in order, and that shows. Where the
    call reads rows, `order_by` is then their place in the partitions (`plan.partition_aggregates`). So many partitions
    have a state; 0: those with rows of the group.
    """

    function: Call
    mode: AggregateMode
    distinct: bool
    filter: Expression | None
    result_id: int
    order_by: tuple[SortKey, ...] = ()
    partitions: int | None = None

    @property
    def type(self) -> DataType:
        return self.function.type


@dataclass(frozen=True)
class SortKey:
    child: Expression
    ascending: bool
    nulls_first: bool

    @property
    def type(self) -> DataType:
        return self.child.type


@dataclass(frozen=True)
class Frame:
    """A window frame. A bound is an offset (negative: preceding), CURRENT_ROW, or None for unbounded."""

    rows: bool
    lower: Expression | None
    upper: Expression | None
    time_zone: str = field(default="", compare=False, metadata={NOT_SENT: True})
    """Of the session, if that matters: days and months of a range frame over timestamps are those of its clock."""


CURRENT_ROW = Literal(0, INTEGER)


@dataclass(frozen=True)
class WindowCall:
    function: Call | AggregateCall
    partition_by: tuple[Expression, ...]
    order_by: tuple[SortKey, ...]
    frame: Frame

    @property
    def type(self) -> DataType:
        return self.function.type


@dataclass(frozen=True)
class ScalarSubquery:
    """The single value of another plan, which runs first. A literal then replaces the subquery."""

    id: int
    plan: Node
    type: DataType


@dataclass(frozen=True)
class InSubquery:
    """Whether a value is among the rows of another plan, which runs first, like that of `ScalarSubquery`."""

    id: int
    value: Expression
    plan: Node
    type: DataType = BOOLEAN


Expression = (
    Attribute | Literal | Alias | Call | AggregateCall | SortKey | WindowCall | ScalarSubquery | InSubquery
)


def class_of(call: AggregateCall) -> str:
    """The Catalyst class of the function, whoever computes it."""
    function = call.function
    return str(function.option("name")) if function.function in JVM_AGGREGATES else function.function


def children(expression: Expression) -> tuple[Expression, ...]:
    match expression:
        case Attribute() | Literal() | ScalarSubquery():
            return ()
        case Alias(_, _, child) | SortKey(child, _, _):
            return (child,)
        case Call(_, arguments, _, _, _):
            return arguments
        case AggregateCall(function, _, _, condition, _, order_by):
            return (function, *order_by) if condition is None else (function, *order_by, condition)
        case WindowCall(function, partition_by, order_by, frame):
            bounds = tuple(bound for bound in (frame.lower, frame.upper) if bound is not None)
            return (function, *partition_by, *order_by, *bounds)
        case InSubquery(_, value, _, _):
            return (value,)


def walk(expression: Expression) -> Iterator[Expression]:
    """The expression and everything below it, parents first."""
    yield expression
    for child in children(expression):
        yield from walk(child)


def transform(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """A copy with `change` applied to every part, children before their parents."""
    old = children(expression)
    new = []
    for child in old:  # not a comprehension, which would add a stack frame per level
        new.append(transform(child, change))
    if any(mine is not theirs for mine, theirs in zip(new, old, strict=True)):
        expression = with_children(expression, new)
    return change(expression)


def with_children(expression: Expression, parts: list[Any]) -> Expression:
    """The expression with new children, in the order of `children`."""
    match expression:
        case Attribute() | Literal() | ScalarSubquery():
            return expression
        case Alias(id, name, _):
            return Alias(id, name, parts[0])
        case SortKey():
            return replace(expression, child=parts[0])
        case Call(function, _, type_, mode, options):
            return Call(function, tuple(parts), type_, mode, options)
        case AggregateCall():
            function, *rest = parts
            order_by = tuple(rest[: len(expression.order_by)])
            condition = None if expression.filter is None else rest[-1]
            return replace(expression, function=function, order_by=order_by, filter=condition)
        case WindowCall(_, partition_by, order_by, frame):
            function, *rest = parts
            bounds = rest[len(partition_by) + len(order_by) :]
            return WindowCall(
                function,
                tuple(rest[: len(partition_by)]),
                tuple(rest[len(partition_by) : len(partition_by) + len(order_by)]),
                replace(
                    frame,
                    lower=None if frame.lower is None else bounds.pop(0),
                    upper=None if frame.upper is None else bounds.pop(0),
                ),
            )
        case InSubquery():
            return replace(expression, value=parts[0])


def conjuncts(condition: Expression) -> Iterator[Expression]:
    """The parts of a condition that must all hold."""
    if isinstance(condition, Call) and condition.function == "And":
        for part in condition.arguments:
            yield from conjuncts(part)
    else:
        yield condition


def references(expression: Expression) -> frozenset[int]:
    """The ids of the columns that the expression reads."""
    return frozenset(part.id for part in walk(expression) if isinstance(part, Attribute))


def attribute_of(named: Expression) -> Attribute:
    """The column that a projected expression produces."""
    match named:
        case Attribute():
            return named
        case Alias(id, name, child):
            return Attribute(id, name, child.type, getattr(child, "nullable", True))
        case _:
            raise TypeError(f"{type(named).__name__} is not a named expression")


def canonicalize(expression: Expression) -> Expression:
    """Strip what does not affect the value: names, nullability, and aliases at the top."""
    if isinstance(expression, Alias):
        return canonicalize(expression.child)
    return transform(expression, _canonicalize_attribute)


def _canonicalize_attribute(expression: Expression) -> Expression:
    if isinstance(expression, Attribute):
        return Attribute(expression.id, "", expression.type)
    return expression
