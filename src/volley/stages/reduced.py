"""Rows that no join will want need not be exchanged.

When one side of a shuffle join has proved small and the other side has not begun, its stage can look for itself which
of its rows have a partner, before it groups, hashes, writes and sends them. The reader stays as it is.

    stage 2   Join                      stage 1   Aggregate Partial by k
                StageInput 0                        Semi join on k              put in below what groups by k
                Aggregate Final by k                  FileScan
                  StageInput 1                        StageInput 0              read whole by every task

That is right for a join that drops the rows of that side which have no partner, when the way from the join down to the
scan passes only operators that treat rows with different keys apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from volley.plan.expressions import Alias, Attribute, Expression, attribute_of, references, transform
from volley.plan.nodes import (
    Aggregate,
    BuildSide,
    FileScan,
    Filter,
    Join,
    JoinKind,
    Node,
    Project,
    Sort,
    StageInput,
    walk,
    with_children,
)
from volley.stages.graph import Stage
from volley.stages.repeatable import gives_same_rows
from volley.stages.scans import cost_bytes, scanned_bytes, scans_of
from volley.stages.shrinking import conditions, may_shrink
from volley.stages.subqueries import asked

# What every task may read whole to find out which of its rows have a partner, if it has to scan as much. Files are
# packed, and what was exchanged is not: its own rows are several times that.
REDUCING_BYTES = 64 * 2**20

_DROPS_LEFT = {JoinKind.INNER, JoinKind.RIGHT, JoinKind.SEMI}
_DROPS_RIGHT = {JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI, JoinKind.EXISTENCE}
# Without a row of that side, the join gives just the rows less that it was part of.
_KEEPS_LEFT_APART = {JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI, JoinKind.EXISTENCE}
_KEEPS_RIGHT_APART = {JoinKind.INNER, JoinKind.RIGHT}

# What the columns of an operator are in terms of those further down, as far as they can be said so.
_Columns = Mapping[int, Expression]


@dataclass(frozen=True)
class Partner:
    """Rows of an input are of use only if `keys`, of its columns, equal `partner_keys` of a row of `plan`."""

    keys: tuple[Expression, ...]
    plan: Node
    partner_keys: tuple[Expression, ...]

    @property
    def inputs(self) -> frozenset[int]:
        return frozenset(node.stage for node in walk(self.plan) if isinstance(node, StageInput))

    @property
    def asks(self) -> bool:
        """Whether it cannot be computed without the result of a subquery, which nobody may have yet."""
        return bool(asked(Project(self.partner_keys, self.plan)))


@dataclass(frozen=True)
class Finished:
    """What a stage gave. `shrank`: it may have far fewer rows than it read."""

    size_bytes: int
    shrank: bool


def partners(reader: Stage, number: int) -> list[Partner]:
    """What the rows of an input must find a partner in, to be of use to the reader."""
    # Read in two places, a row may be of use in either.
    places = sum(node.stage == number for node in reader.inputs)
    return [partner for partner, _ in _above(reader.plan, number)[1]] if places == 1 else []


def reduced(
    stage: Stage, reader: Stage, finished: Mapping[int, Finished]
) -> tuple[Stage, frozenset[int]] | None:
    """The stage without rows that `reader`, the only one to read it, has no use for, and the inputs that tell which.

    `finished` are inputs of the reader. None where they are of no help.
    """
    read = {node.stage for node in stage.inputs}
    limit_bytes = min(REDUCING_BYTES, scanned_bytes(stage.plan) // stage.tasks)
    useful = [
        partner
        for partner in partners(reader, stage.id)
        if partner.inputs <= finished.keys() and not partner.inputs & read and not partner.asks
        if _size_bytes(partner, finished) <= limit_bytes
        if may_shrink(partner.plan) or any(finished[number].shrank for number in partner.inputs)
    ]
    if not useful:
        return None
    # How many rows are left of it can only be guessed; every further condition may leave few.
    partner = min(useful, key=lambda partner: _size_bytes(partner, finished) / 4 ** conditions(partner.plan))
    keys = _said(partner.keys, dict(enumerate(stage.plan.output)))
    assert keys is not None, "every place of an input is a column of its stage"
    plan = _with_partner(stage.plan, keys, partner)
    return replace(stage, plan=plan, whole=stage.whole | partner.inputs), partner.inputs


def _size_bytes(partner: Partner, finished: Mapping[int, Finished]) -> int:
    scans = [node for node in walk(partner.plan) if isinstance(node, FileScan)]
    return sum(map(cost_bytes, scans)) + sum(finished[number].size_bytes for number in partner.inputs)


_Found = tuple[Partner, _Columns]
"""A partner, and the columns of an operator above in terms of the partner's."""


def _above(node: Node, number: int) -> tuple[_Columns, list[_Found]]:
    """The columns of `node` in terms of those of the input, known by their places, and the partners up to here."""
    if isinstance(node, StageInput):
        return (_places(node.output), []) if node.stage == number else ({}, [])
    below = [_above(child, number) for child in node.children]
    found = [item for _, items in below for item in items]
    if isinstance(node, Join):
        (left, on_left), (right, _) = below
        if left or on_left:
            drops = node.kind in _DROPS_LEFT
            side = _Side(node.left_keys, left, found, node.right, node.right_keys, drops)
            return side.above(node, node.kind in _KEEPS_LEFT_APART)
        drops = node.kind in _DROPS_RIGHT
        side = _Side(node.right_keys, right, found, node.left, node.left_keys, drops)
        return side.above(node, node.kind in _KEEPS_RIGHT_APART)
    if len(below) != 1:
        return {}, _forgotten(found)
    return _columns(node, below[0][0]), [(partner, _columns(node, seen)) for partner, seen in found]


def _forgotten(found: list[_Found]) -> list[_Found]:
    """Partners of whose columns nothing is seen any more."""
    return [(partner, {}) for partner, _ in found]


@dataclass(frozen=True)
class _Side:
    """The side of a join that has the input, with `columns` and `found` of it, and what it is joined to."""

    keys: tuple[Expression, ...]
    columns: _Columns
    found: list[_Found]
    other: Node
    other_keys: tuple[Expression, ...]
    drops: bool

    def above(self, join: Join, keeps_apart: bool) -> tuple[_Columns, list[_Found]]:
        found = list(self.found)
        # Every task of the stage computes the partner anew: they must not come to different rows.
        can_be_partner = not scans_of(self.other) and gives_same_rows(self.other)
        if self.drops and join.left_keys and not join.null_aware and can_be_partner:
            found += self._new(join)
        return (self.columns, found) if keeps_apart else ({}, _forgotten(found))

    def _new(self, join: Join) -> list[_Found]:
        said = _said(self.keys, self.columns)
        if said is not None:
            shown = {attribute.id for attribute in join.output}
            return [
                (Partner(said, plan, keys), {a.id: a for a in plan.output if a.id in shown})
                for plan, keys in _supersets(self.other, self.other_keys)
            ]
        # Not its own columns decide, but those of a partner: of that one, too, only rows with a partner count.
        return [
            (replace(partner, plan=_semi(partner.plan, keys, self.other, self.other_keys)), seen)
            for partner, seen in self.found
            if (keys := _said(self.keys, seen)) is not None
        ]


def _supersets(node: Node, keys: tuple[Expression, ...]) -> Iterator[tuple[Node, tuple[Expression, ...]]]:
    """Plans with at least the keys that `node` has: itself, and sides of joins that only leave out some.

    They may be finished when the whole is not.
    """
    yield node, keys
    match node:
        case Project():
            below = _said(keys, _columns_of(node, 0))
            if below is not None:
                yield from _supersets(node.child, below)
        case Join():
            for side, kinds in ((node.left, _KEEPS_LEFT_APART), (node.right, _KEEPS_RIGHT_APART)):
                columns = {attribute.id: attribute for attribute in side.output}
                if node.kind in kinds and _said(keys, columns) is not None:
                    yield from _supersets(side, keys)


def _semi(
    node: Node, keys: tuple[Expression, ...], partner: Node, partner_keys: tuple[Expression, ...]
) -> Join:
    return Join(JoinKind.SEMI, keys, partner_keys, None, BuildSide.RIGHT, node, partner)


def _with_partner(node: Node, keys: tuple[Expression, ...], partner: Partner) -> Node:
    """The plan with a semi join as far down as it can be above the scan and what is done while reading it."""
    for place, child in enumerate(node.children):
        deeper = _said(keys, _columns_of(node, place))
        if deeper is not None and not _is_read_only(node):
            children = list(node.children)
            children[place] = _with_partner(child, deeper, partner)
            return with_children(node, tuple(children))
    return _semi(node, keys, partner.plan, partner.partner_keys)


def _is_read_only(node: Node) -> bool:
    """Whether it is a scan, or an input, with nothing over it but filters and projections."""
    while isinstance(node, Project | Filter):
        node = node.child
    return not node.children


def _columns_of(node: Node, place: int) -> _Columns:
    """The columns of `node` in terms of those of one of its children, if its rows can be left out there."""
    columns = {attribute.id: attribute for attribute in node.children[place].output}
    if not isinstance(node, Join):
        return _columns(node, columns) if len(node.children) == 1 else {}
    return columns if node.kind in (_KEEPS_RIGHT_APART if place else _KEEPS_LEFT_APART) else {}


def _columns(node: Node, columns: _Columns) -> _Columns:
    """The columns of an operator, from those of its only child. Empty where rows with different keys meet in it."""
    match node:
        case Filter():
            return columns
        case Sort() if not node.whole:
            return columns
        case Project():
            return _named(node.expressions, columns)
        case Aggregate():
            return _named(node.results, _named(node.grouping, columns))
        case _:
            return {}


def _named(expressions: Iterable[Expression], columns: _Columns) -> _Columns:
    found = {}
    for expression in expressions:
        value = expression.child if isinstance(expression, Alias) else expression
        said = _said((value,), columns)
        if said is not None:
            found[attribute_of(expression).id] = said[0]
    return found


def _said(expressions: Iterable[Expression], columns: _Columns) -> tuple[Expression, ...] | None:
    """The expressions in other terms; None if one reads a column that cannot be said in them."""

    def exchanged(part: Expression) -> Expression:
        return columns[part.id] if isinstance(part, Attribute) else part

    expressions = tuple(expressions)
    if not columns or any(not references(expression) <= columns.keys() for expression in expressions):
        return None
    return tuple(transform(expression, exchanged) for expression in expressions)


def _places(output: Iterable[Attribute]) -> _Columns:
    """A stage may call its columns otherwise than those who read it; only their places are the same."""
    return {attribute.id: replace(attribute, id=place) for place, attribute in enumerate(output)}
