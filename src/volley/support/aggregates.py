# SPDX-License-Identifier: Apache-2.0
"""Which aggregate calls give Spark's result for any order and partitioning of the rows."""

from __future__ import annotations

from collections.abc import Iterator

from volley.plan.expressions import (
    AggregateCall,
    AggregateMode,
    Attribute,
    Call,
    Expression,
    Literal,
    attribute_of,
)
from volley.plan.nodes import Aggregate, Exchange, Expand, Node, walk
from volley.plan.types import INTEGRAL, NULL, DataType, DecimalType, SimpleType, is_number
from volley.support.operators import AGGREGATES, UNSPLITTABLE
from volley.support.reasons import Reason, Unsupported


def check_aggregate(node: Aggregate) -> Iterator[Unsupported]:
    for call in node.calls:
        yield from check_function(call.function, call.distinct)
        if call.function.function in UNSPLITTABLE and call.mode is AggregateMode.PARTIAL_MERGE:
            # Spark merges states in several steps here; ours aggregates rows in one step.
            yield Unsupported(Reason.AGGREGATE, call.function.function, "together with a distinct aggregate")
        if call.function.function in ("First", "Last") and not _is_deterministic(node, call):
            yield Unsupported(
                Reason.NONDETERMINISTIC,
                call.function.function,
                "which row comes first depends on Spark's partitions",
            )


def check_function(call: Call, distinct: bool = False) -> Iterator[Unsupported]:
    """Check the function and the types of its arguments, in a group or in a window."""
    rule = AGGREGATES.get(call.function)
    if rule is None or rule.reason is not None:
        reason = rule.reason if rule is not None and rule.reason is not None else Reason.AGGREGATE
        yield Unsupported(reason, call.function, rule.note if rule is not None else "")
        return
    match call.function:
        case "Sum" | "Average":
            allowed = is_number(call.arguments[0].type)
        case "BitAndAgg" | "BitOrAgg" | "BitXorAgg":
            allowed = call.arguments[0].type in INTEGRAL
        case "Min" | "Max":
            allowed = is_ordered(call.arguments[0].type)
        case _:
            allowed = True
    if not allowed:
        yield Unsupported(Reason.ARGUMENT_TYPES, call.function, str(call.arguments[0].type))
    if call.function in UNSPLITTABLE:
        if distinct:
            yield Unsupported(Reason.AGGREGATE, call.function, "distinct")
        if call.option("nullOnDivideByZero") is False:
            yield Unsupported(Reason.AGGREGATE, call.function, "spark.sql.legacy.statisticalAggregate")


def is_ordered(data_type: DataType) -> bool:
    return isinstance(data_type, DecimalType) or (isinstance(data_type, SimpleType) and data_type != NULL)


def _is_deterministic(node: Aggregate, call: AggregateCall) -> bool:
    """Whether the call sees one row only. Spark's rewrite of several distinct aggregates takes `first` of the
    single row of a branch of an Expand:

        Aggregate  first(x, ignoreNulls) FILTER (gid = 1), count(d) FILTER (gid = 2)
        Aggregate  by gid, d
        Expand     (gid 1, d NULL), (gid 2, d)

    A call that merges states is fine: it was checked where it read rows.
    """
    if not call.mode.reads_rows:
        return True
    branch = _branch(call.filter)
    if branch is None or call.function.function != "First" or not _ignores_nulls(call.function):
        return False
    child: Node = node.child
    while isinstance(child, Exchange):
        child = child.child
    if not isinstance(child, Aggregate) or branch not in {attribute_of(key).id for key in child.grouping}:
        return False
    return any(isinstance(below, Expand) and _numbers_branches(below, branch) for below in walk(child))


def _branch(condition: Expression | None) -> int | None:
    """The id of the column that a filter `column = constant` fixes."""
    match condition:
        case Call("EqualTo", (Attribute(id, _, _, _), Literal(_, _)), _, _, _):
            return id
        case _:
            return None


def _ignores_nulls(call: Call) -> bool:
    return call.option("ignoreNulls") is True


def _numbers_branches(node: Expand, column: int) -> bool:
    """Whether this Expand gives each of its projections a distinct number in that column."""
    for position, attribute in enumerate(node.output):
        if attribute.id == column:
            numbers = [projection[position] for projection in node.projections]
            return all(isinstance(number, Literal) for number in numbers) and len(set(numbers)) == len(
                numbers
            )
    return False
