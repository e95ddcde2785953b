# SPDX-License-Identifier: Apache-2.0
"""Reorders joins: those to small filtered tables run first, so that later joins see fewer rows.

Without column statistics Spark joins tables in the order of the query. A table that it broadcasts and that is filtered
may drop most rows. Such a join moves down to the input that has its keys, past joins and exchanges:

    Join nation, by supplier's key          Anti join
      Join supplier                           Semi join
        Anti join                               Exchange
          Semi join                  ->           Join
            Exchange                                lineitem
              lineitem                              Join nation
                                                      supplier

An inner join can move past a join that treats each row of that input separately: `Traits.divisible`. What it moves past
is evaluated for fewer rows, so that must not be able to fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from volley.plan.expressions import Alias, Attribute, Call, Expression, references
from volley.plan.expressions import walk as walk_expression
from volley.plan.nodes import (
    BuildSide,
    Exchange,
    Filter,
    Join,
    JoinKind,
    Node,
    Partitioning,
    Project,
    Sort,
    transform,
    walk,
    with_children,
)
from volley.plan.traits import traits_of
from volley.stages.selectivity import is_selective

_NEVER_FAIL = frozenset(
    {
        *("EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"),
        *("And", "Or", "Not", "IsNull", "IsNotNull"),
    }
)


def join_selective_tables_first(plan: Node) -> Node:
    """The plan with joins to filtered broadcast tables moved down as far as they gain."""
    return transform(plan, lambda node: _move_down(node) if isinstance(node, Join) else node)


@dataclass(frozen=True)
class _SelectiveJoin:
    """An inner join, by plain columns, to a filtered table that is sent to every task."""

    join: Join
    table_place: int

    @classmethod
    def of(cls, join: Join) -> _SelectiveJoin | None:
        if join.kind is not JoinKind.INNER or join.condition is not None or not join.left_keys:
            return None
        if not all(isinstance(key, Attribute) for key in (*join.left_keys, *join.right_keys)):
            return None
        place = _broadcast_place(join)
        if place is None or not any(map(is_selective, walk(join.children[place]))):
            return None
        return cls(join, place)

    @property
    def rows(self) -> Node:
        """The side that the table is joined to."""
        return self.join.children[1 - self.table_place]

    @property
    def table(self) -> Node:
        return self.join.children[self.table_place]

    @property
    def keys(self) -> frozenset[int]:
        """The columns of `rows` that it is joined by."""
        keys = self.join.right_keys if self.table_place == 0 else self.join.left_keys
        return frozenset(id for key in keys for id in references(key))

    def over(self, rows: Node) -> Node:
        sides = (self.table, rows) if self.table_place == 0 else (rows, self.table)
        return with_children(self.join, sides)


def _broadcast_place(join: Join) -> int | None:
    place = {BuildSide.LEFT: 0, BuildSide.RIGHT: 1, None: None}[join.build]
    if place is None:
        return None
    side = join.children[place]
    is_sent = isinstance(side, Exchange) and side.partitioning is Partitioning.BROADCAST
    return place if is_sent else None


def _move_down(join: Join) -> Node:
    selective = _SelectiveJoin.of(join)
    moved = _push(selective, selective.rows) if selective is not None else None
    return join if moved is None else Project(join.output, moved)


def _push(selective: _SelectiveJoin, node: Node) -> Node | None:
    """`node` with the table joined below at least one of its joins; None if there is no such place."""
    if not can_pass(node, selective.keys):
        return None
    match node:
        case Join():
            return _push_past(selective, node)
        case Project():
            deeper = _push(selective, node.child)
            kept = (*node.expressions, *selective.table.output)
            return replace(node, expressions=kept, child=deeper) if deeper is not None else None
        case Filter() | Exchange() | Sort():
            deeper = _push(selective, node.child)
            return with_children(node, (deeper,)) if deeper is not None else None
        case _:
            return None


def _push_past(selective: _SelectiveJoin, join: Join) -> Node | None:
    place = _place_of(selective.keys, join)
    if place is None:
        return None
    child = join.children[place]
    deeper = _push(selective, child) or _join_below_exchange(selective, child)
    # A table that is joined to a filtered one has become selective itself.
    return _move_down(replace(join, left=deeper) if place == 0 else replace(join, right=deeper))


def _place_of(keys: frozenset[int], join: Join) -> int | None:
    """The input of `join` that the table should be joined to instead of its output."""
    places = [
        place for place in traits_of(join).divisible if keys <= {a.id for a in join.children[place].output}
    ]
    if len(places) != 1:
        return None
    (place,) = places
    # A join to another small filtered table costs as little, and may drop more rows.
    other = join.children[1 - place]
    is_as_good = 1 - place == _broadcast_place(join) and any(map(is_selective, walk(other)))
    return None if is_as_good else place


def _join_below_exchange(selective: _SelectiveJoin, node: Node) -> Node:
    if isinstance(node, Exchange | Sort) and can_pass(node, selective.keys):
        return with_children(node, (_join_below_exchange(selective, *node.children),))
    return selective.over(node)


def can_pass(node: Node, keys: frozenset[int]) -> bool:
    """Whether a join by these columns could as well be below `node`."""
    match node:
        case Project():
            passed = {part.id for part in node.expressions if isinstance(part, Attribute)}
            renames = all(isinstance(_renamed(part), Attribute) for part in node.expressions)
            return renames and keys <= passed
        case Sort():
            return not node.whole and not _may_fail(traits_of(node).evaluates)
        case Join() | Filter() | Exchange():
            return not _may_fail(traits_of(node).evaluates)
        case _:
            return False


def _renamed(expression: Expression) -> Expression:
    return expression.child if isinstance(expression, Alias) else expression


def _may_fail(expressions: Iterable[Expression]) -> bool:
    calls = (part for expression in expressions for part in walk_expression(expression))
    return any(isinstance(part, Call) and part.function not in _NEVER_FAIL for part in calls)
