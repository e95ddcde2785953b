# SPDX-License-Identifier: Apache-2.0
"""Decodes as-of joins: each row of the left side meets the nearest row of the right side that it may match.

Spark sorts both sides by keys and time and scans. Native plans find the matches with windows over the rows of both
sides. For `l.t >= r.t`, the last row of the right side before a left row in the order of time is its match:

    side      place   match = max(place) so far   first(r.x) over (match)
    left      NULL    NULL                        NULL
    right     1       1                           x1
    left      NULL    1                           x1
    right     2       2                           x2

where `place` numbers the right rows in Spark's order. For `l.t <= r.t` it is the smallest place of those that follow.
If pairs of rows must meet another condition as well, the sides are joined, and the nearest match of each left row is
kept.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from volley.plan import synthetic_ids
from volley.plan.builders import both, compare, either, fail_if, is_not_null, is_null
from volley.plan.carried_order import is_stable
from volley.plan.decode_nodes import Operator, decodes
from volley.plan.expressions import (
    AggregateCall,
    AggregateMode,
    Alias,
    Attribute,
    Call,
    EvalMode,
    Expression,
    Frame,
    Literal,
    SortKey,
    WindowCall,
    attribute_of,
    canonicalize,
    conjuncts,
    references,
)
from volley.plan.nodes import Exchange, Filter, Join, JoinKind, Node, Project, Sort, Union, Unknown, Window
from volley.plan.order import order_of
from volley.plan.types import (
    DATE,
    DAY_TIME_INTERVALS,
    FRACTIONAL,
    INTEGER,
    INTEGRAL,
    LONG,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    YEAR_MONTH_INTERVALS,
    ArrayType,
    DataType,
    DecimalType,
    StructType,
    is_number,
)

_ids = itertools.count(synthetic_ids.AS_OF)

_BACKWARD = frozenset({"GreaterThanOrEqual", "GreaterThan"})
_FORWARD = frozenset({"LessThanOrEqual", "LessThan"})


class _Refused(Exception):
    """The join has no native form, for this reason."""


@dataclass(frozen=True)
class _AsOf:
    """What decides which rows match. Times are compared as lists; one that may not match if it is NULL is `alone`."""

    kind: JoinKind
    left_keys: tuple[Expression, ...]
    right_keys: tuple[Expression, ...]
    comparison: str
    left_times: tuple[Expression, ...]
    right_times: tuple[Expression, ...]
    alone: bool
    right_order: tuple[SortKey, ...]
    """By which Spark sorts the rows of the right side that have equal keys."""
    condition: Expression | None
    """For pairs of rows, besides the times."""

    @property
    def backward(self) -> bool:
        return self.comparison in _BACKWARD


@decodes("SortMergeAsOfJoinExec")
def _as_of_join(operator: Operator) -> Node:
    # The exchange and the sort are of Spark's algorithm. Rows with equal keys stay in their order without them.
    left, right = (_below_sorts(child) for child in operator.children)
    try:
        join = _read(operator, left, right)
        return _join_pairs(join, left, right) if join.condition else _find_nearest(join, left, right)
    except _Refused as refusal:
        return Unknown(operator.name, str(refusal), left.output + right.output, operator.children)


def _below_sorts(node: Node) -> Node:
    while isinstance(node, Sort | Exchange):
        node = node.child
    return node


# ---------------------------------------------------------------------------------------------------- reading


def _read(operator: Operator, left: Node, right: Node) -> _AsOf:
    first, *others = conjuncts(operator.one("asOfCondition"))
    if not isinstance(first, Call) or first.function not in _BACKWARD | _FORWARD:
        raise _Refused("the nearest row in either direction")
    earlier, later = first.arguments
    if not (_reads_only(earlier, left) and _reads_only(later, right)):
        raise _Refused("a condition that compares other than the left side with the right side")
    left_keys, right_keys = operator.all("leftKeys"), operator.all("rightKeys")
    if any(key.type in FRACTIONAL for key in (*left_keys, *right_keys)):
        # Spark sends 0.0 and -0.0 to different tasks.
        raise _Refused("keys that are floating-point numbers")
    alone = not isinstance(earlier.type, StructType)
    left_order, right_order = operator.all("leftSortExprs"), operator.all("rightSortExprs")
    if not _is_sorted_by(earlier, left_order) or not _is_sorted_by(later, right_order):
        raise _Refused("a comparison in another order than that of the sorted sides")
    residual = operator.one("condition")
    conditions = [*others, *(() if residual is None else (residual,))]
    join = _AsOf(
        JoinKind(operator.value("joinType")),
        left_keys,
        right_keys,
        first.function,
        tuple(_leaves(earlier)),
        tuple(_leaves(later)),
        alone,
        tuple(map(_ascending, right_order)),
        reduce(both, (first, *conditions)) if conditions else None,
    )
    _check_distance(join)
    return join


def _reads_only(expression: Expression, node: Node) -> bool:
    return references(expression) <= {attribute.id for attribute in node.output}


def _leaves(operand: Expression) -> Iterator[Expression]:
    """The values that a comparison compares, one after the other: Spark takes structs apart for it."""
    match operand:
        case Call("CreateNamedStruct", arguments, _, _, _):
            for value in arguments[1::2]:
                yield from _leaves(value)
        case _ if isinstance(operand.type, StructType):
            raise _Refused(f"times of type {operand.type}")
        case _:
            yield operand


def _is_sorted_by(operand: Expression, order: Sequence[Expression]) -> bool:
    """Whether rows in this order are in that of the operand, too."""
    leaves = list(_leaves(operand))
    if len(order) == 1 and isinstance(order[0].type, StructType):
        (whole,) = order
        found = list(_leaves(whole)) if isinstance(whole, Call) and _is_tuple(whole) else None
        if found is None:
            return all(canonicalize(_root(leaf)) == canonicalize(whole) for leaf in leaves)
        order = found
    return len(leaves) == len(order) and all(map(_grows_with, leaves, order))


def _is_tuple(call: Call) -> bool:
    return call.function == "CreateNamedStruct"


def _root(leaf: Expression) -> Expression:
    """The struct of which the value is a field, or a field of a field."""
    while isinstance(leaf, Call) and leaf.function == "GetStructField":
        (leaf,) = leaf.arguments
    return leaf


def _grows_with(value: Expression, sorted_by: Expression) -> bool:
    """Whether the value is the one that rows are sorted by, or a cast of it that keeps the order."""
    if canonicalize(value) == canonicalize(sorted_by):
        return True
    if not isinstance(value, Call) or value.function != "Cast":
        return False
    (source,) = value.arguments
    keeps = is_number(source.type) and is_number(value.type)
    is_midnight = source.type == DATE and value.type in (TIMESTAMP, TIMESTAMP_NTZ)
    is_interval = any(
        {source.type, value.type} <= kinds for kinds in (DAY_TIME_INTERVALS, YEAR_MONTH_INTERVALS)
    )
    return (keeps or is_midnight or is_interval) and _grows_with(source, sorted_by)


# --------------------------------------------------------------------------------------------------- distances

_LARGEST_PRECISION = 38
# Twice this distance is one that Spark can compute.
_FAR: dict[DataType, int] = {
    # Spark computes the microseconds between two dates.
    DATE: 2**62 // 86_400_000_000,
    TIMESTAMP: 2**62,
    TIMESTAMP_NTZ: 2**62,
    **dict.fromkeys(DAY_TIME_INTERVALS, 2**62),
    **dict.fromkeys(YEAR_MONTH_INTERVALS, 2**30),
}


def _check_distance(join: _AsOf) -> None:
    """Looking forward, Spark computes distances, and stops where they no longer shrink. They must grow from the first
    match on."""
    if join.backward:
        return
    if not join.alone:
        raise _Refused("the next row by several columns")
    kind = join.left_times[0].type
    is_wide = isinstance(kind, DecimalType) and kind.precision >= _LARGEST_PRECISION
    if is_wide or isinstance(kind, ArrayType):
        raise _Refused(f"the next row by a column of type {kind}")


def _has_distance(time: Expression, match: Expression) -> Expression | None:
    """A condition that is true; it fails where Spark's distance to the match would overflow, or be no number."""
    kind = time.type
    if kind in INTEGRAL:
        distance = Call("Subtract", (match, time), kind, EvalMode.ANSI)
        return either(is_null(match), compare("GreaterThanOrEqual", distance, Literal(0, kind)))
    if kind in FRACTIONAL:
        # The distance to -Infinity itself is NaN, the largest of all.
        far = compare("EqualTo", time, Literal(-math.inf, kind))
    elif kind in _FAR:
        far = either(
            compare("LessThan", time, Literal(-_FAR[kind], kind)),
            compare("GreaterThan", match, Literal(_FAR[kind], kind)),
        )
    else:
        return None
    return either(is_null(match), fail_if(far))


# ------------------------------------------------------------------------------------------- without a condition


def _find_nearest(join: _AsOf, left: Node, right: Node) -> Node:
    """The rows of both sides in one order, in which each left row finds the right row next to it."""
    keys = tuple(_column("key", key.type) for key in join.left_keys)
    times = tuple(_column("time", time.type) for time in join.left_times)
    is_right, place = _column("right", INTEGER), _column("place", INTEGER)
    columns = tuple(_column(column.name, column.type) for column in (*left.output, *right.output))
    right_place, right = _number_right(join, right)
    output = (*keys, *times, is_right, place, *columns)
    right_output = right.output[:-1]
    left_values = (*join.left_keys, *join.left_times, *_nulls((is_right, place)), *left.output)
    right_values = (*join.right_keys, *join.right_times, Literal(1, INTEGER), right_place)
    sides = (
        _project(output, (*left_values, *_nulls(right_output)), left),
        _project(output, (*right_values, *_nulls(left.output), *right_output), right),
    )
    # Left rows come first where right rows of the same time do not match, or follow.
    left_first = join.comparison in ("GreaterThan", "LessThanOrEqual")
    order = (
        # No right row is before a time of NULL, or behind it.
        *(_ascending(time, nulls_first=join.backward or not join.alone) for time in times),
        _ascending(is_right, nulls_first=left_first),
    )
    current = Literal(0, INTEGER)
    frame = Frame(False, None, current) if join.backward else Frame(False, current, None)

    def farthest(function: str, value: Expression) -> Alias:
        return _alias(WindowCall(_total(function, value), keys, order, frame))

    calls = [farthest("Max" if join.backward else "Min", place)]
    chosen: Expression = is_null(is_right)
    if not join.backward:
        kind = times[0].type
        calls.append(farthest("Max", Call("If", (chosen, Literal(None, kind), times[0]), kind)))
        if guard := _has_distance(times[0], attribute_of(calls[1])):
            chosen = both(chosen, guard)
    match = attribute_of(calls[0])
    if join.kind is JoinKind.INNER:
        chosen = both(chosen, is_not_null(match))
    rows: Node = Window(tuple(calls), Union(output, sides))
    # The match itself is the first of the rows that have found it.
    itself = (SortKey(place, ascending=not join.backward, nulls_first=False),)
    nearest = tuple(
        _alias(WindowCall(_total("First", column), (*keys, match), itself, Frame(True, None, current)))
        for column in columns[len(left.output) :]
    )
    rows = Filter(chosen, Window(nearest, rows) if nearest else rows)
    values = (*columns[: len(left.output)], *map(attribute_of, nearest))
    return _project((*left.output, *right_output), values, rows)


def _number_right(join: _AsOf, right: Node) -> tuple[Attribute, Node]:
    """The right rows that may match, with a last column that numbers those with equal keys in Spark's order."""
    columns = right.output
    place, rows = _number(right, join.right_keys, join.right_order)
    if not join.right_keys and not is_stable(Sort(join.right_order, False, right), order_of(right)):
        # Where there are NULLs, Spark's sort changes the order of equal times.
        (time,) = join.right_times
        everything = Frame(rows=True, lower=None, upper=None)
        one = Literal(1, INTEGER)
        missing = Call("If", (is_null(time), one, Literal(None, INTEGER)), INTEGER)
        nulls = _alias(WindowCall(_count(missing), (), (), everything))
        peers = _alias(WindowCall(_count(one), (time,), (), everything))
        is_lost = both(
            compare("GreaterThan", attribute_of(nulls), Literal(0, LONG)),
            compare("GreaterThan", attribute_of(peers), Literal(1, LONG)),
        )
        known = either(is_null(time), fail_if(is_lost))
        rows = Project((*columns, place), Filter(known, Window((nulls, peers), rows)))
    needed = (*join.right_keys, *(join.right_times if join.alone else ()))
    return place, Filter(reduce(both, map(is_not_null, needed)), rows) if needed else rows


# ---------------------------------------------------------------------------------------------- with a condition


def _join_pairs(join: _AsOf, left: Node, right: Node) -> Node:
    """All pairs of rows that match, of which the nearest is kept for each left row."""
    row, left_rows = _number(left, join.left_keys, ())
    place, right_rows = _number_right(join, right)
    pairs: Node = Join(
        kind=join.kind,
        left_keys=join.left_keys,
        right_keys=join.right_keys,
        condition=join.condition,
        build=None,
        left=left_rows,
        right=right_rows,
    )
    if not join.backward and (guard := _has_distance(join.left_times[0], join.right_times[0])):
        pairs = Filter(guard, pairs)
    order = (SortKey(place, ascending=not join.backward, nulls_first=True),)
    rank, ranked = _number(pairs, (*join.left_keys, row), order)
    nearest = Filter(compare("EqualTo", rank, Literal(1, INTEGER)), ranked)
    return Project((*left.output, *right.output), nearest)


# ------------------------------------------------------------------------------------------------------ helpers


def _column(name: str, kind: DataType) -> Attribute:
    return Attribute(next(_ids), name, kind)


def _project(columns: Sequence[Attribute], values: Sequence[Expression], child: Node) -> Node:
    pairs = zip(columns, values, strict=True)
    return Project(tuple(Alias(column.id, column.name, value) for column, value in pairs), child)


def _nulls(columns: Sequence[Attribute]) -> list[Expression]:
    return [Literal(None, column.type) for column in columns]


def _number(rows: Node, keys: tuple[Expression, ...], order: tuple[SortKey, ...]) -> tuple[Attribute, Node]:
    """The rows with a last column that numbers those with equal keys."""
    frame = Frame(rows=True, lower=None, upper=Literal(0, INTEGER))
    alias = _alias(WindowCall(Call("RowNumber", (), INTEGER), keys, order, frame))
    return attribute_of(alias), Window((alias,), rows)


def _count(value: Expression) -> AggregateCall:
    return replace(_total("Count", value), function=Call("Count", (value,), LONG))


def _total(function: str, value: Expression) -> AggregateCall:
    call = Call(function, (value,), value.type)
    return AggregateCall(call, AggregateMode.COMPLETE, distinct=False, filter=None, result_id=next(_ids))


def _alias(call: WindowCall) -> Alias:
    return Alias(next(_ids), "nearest", call)


def _ascending(value: Expression, nulls_first: bool = True) -> SortKey:
    return SortKey(value, ascending=True, nulls_first=nulls_first)
