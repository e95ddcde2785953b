# SPDX-License-Identifier: Apache-2.0
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

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from volley.plan.expressions import Attribute, Expression, references, transform
from volley.plan.nodes import (
    BuildSide,
    FileScan,
    Join,
    JoinKind,
    Node,
    Project,
    Sort,
    StageInput,
    walk,
    with_children,
)
from volley.plan.traits import below_row_by_row, traits_of
from volley.stages.graph import Stage
from volley.stages.limits import PlannerLimits, within
from volley.stages.repeatable import gives_same_rows
from volley.stages.scans import cost_bytes, scanned_bytes, scans_of
from volley.stages.selectivity import conditions, leaves_out
from volley.stages.subqueries import asked

_DROPS_LEFT = {JoinKind.INNER, JoinKind.RIGHT, JoinKind.SEMI}
_DROPS_RIGHT = {JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI, JoinKind.EXISTENCE}

# What the columns of an operator are in terms of those further down, as far as they can be said so.
_Columns = Mapping[int, Expression]


@dataclass(frozen=True)
class FilterSource:
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


PlanOf = Callable[[int], Node | None]
"""The work of a stage, to look into; None where its output is to be taken as it is."""


def filter_sources(reader: Stage, number: int, plan_of: PlanOf = lambda stage: None) -> list[FilterSource]:
    """What the rows of a stage must find a partner in, to be of use to `reader`, which need not read it itself."""
    search = _Search(number, plan_of)
    found = search.above(reader.plan)[1]
    # Read in two places, a row may be of use in either.
    return [partner for partner, _ in found] if search.places == 1 else []


def apply_runtime_filter(
    stage: Stage,
    reader: Stage,
    finished: Mapping[int, Finished],
    limits: PlannerLimits,
    plan_of: PlanOf = lambda stage: None,
) -> tuple[Stage, frozenset[int]] | None:
    """The stage without rows that `reader` has no use for, and the inputs that tell which.

    `reader` is the only one to read it, or to read what only its reader reads, and so on; then `plan_of` gives the work
    of these. None if no finished stage can filter it.
    """
    read = {node.stage for node in stage.inputs}
    limit, ids = limit_bytes(stage, limits), _ids(stage.plan)
    useful = [
        partner
        for partner in filter_sources(reader, stage.id, plan_of)
        if partner.inputs <= finished.keys() and not partner.inputs & read and not partner.asks
        if not ids & _ids(partner.plan)
        if within(_size_bytes(partner, finished, limits), limit)
        if leaves_out(partner.plan) or any(finished[number].shrank for number in partner.inputs)
    ]
    if not useful:
        return None
    # How many rows are left of it can only be guessed; every further condition may leave few.
    partner = min(
        useful, key=lambda partner: _size_bytes(partner, finished, limits) / 4 ** conditions(partner.plan)
    )
    keys = _substitute(partner.keys, dict(enumerate(stage.plan.output)))
    assert keys is not None, "every place of an input is a column of its stage"
    plan = _with_partner(stage.plan, keys, partner)
    return replace(stage, plan=plan, whole=stage.whole | partner.inputs), partner.inputs


def limit_bytes(stage: Stage, limits: PlannerLimits) -> int:
    """What a partner may have at most, to be of help to a stage."""
    return min(limits.runtime_filter_bytes, scanned_bytes(stage.plan) // stage.tasks)


def _ids(plan: Node) -> frozenset[int]:
    return frozenset(column.id for node in walk(plan) for column in node.output)


def _size_bytes(partner: FilterSource, finished: Mapping[int, Finished], limits: PlannerLimits) -> int:
    scans = [node for node in walk(partner.plan) if isinstance(node, FileScan)]
    scanned = sum(cost_bytes(scan, limits) for scan in scans)
    return scanned + sum(finished[number].size_bytes for number in partner.inputs)


_Found = tuple[FilterSource, _Columns]
"""A partner, and the columns of an operator above in terms of the partner's."""


class _Search:
    """For partners of the rows of one stage, in the plan of another over it."""

    def __init__(self, number: int, plan_of: PlanOf) -> None:
        self.places = 0
        self._number = number
        self._plan_of = plan_of
        # By stage: what is known above its work, and how often the rows are in it. Several may read one.
        self._known: dict[int, tuple[_Columns, list[_Found], int]] = {}

    def above(self, node: Node) -> tuple[_Columns, list[_Found]]:
        """The columns of `node` in terms of those of the stage, known by their places, and the partners up to here."""
        if isinstance(node, StageInput):
            return self._above_input(node)
        below = [self.above(child) for child in node.children]
        found = [item for _, items in below for item in items]
        if isinstance(node, Join):
            (left, on_left), (right, _) = below
            if left or on_left:
                drops, keeps_apart = node.kind in _DROPS_LEFT, 0 in traits_of(node).divisible
                side = _Side(node.left_keys, left, found, node.right, node.right_keys)
            else:
                drops, keeps_apart = node.kind in _DROPS_RIGHT, 1 in traits_of(node).divisible
                side = _Side(node.right_keys, right, found, node.left, node.left_keys)
            if drops and node.left_keys and not node.null_aware:
                found += self._new(node, side)
            return (side.columns, found) if keeps_apart else ({}, _forgotten(found))
        if len(below) != 1:
            return {}, _forgotten(found)
        return _columns(node, below[0][0]), [(partner, _columns(node, seen)) for partner, seen in found]

    def _above_input(self, node: StageInput) -> tuple[_Columns, list[_Found]]:
        if node.stage == self._number:
            self.places += 1
            return _places(node.output), []
        work = self._plan_of(node.stage)
        if work is None:
            return {}, []
        if node.stage in self._known:
            columns, found, places = self._known[node.stage]
            self.places += places
        else:
            before = self.places
            columns, found = self.above(work)
            self._known[node.stage] = columns, found, self.places - before
        if not columns and not found:
            return {}, []
        read = {column.id: read.id for read, column in zip(node.output, work.output, strict=True)}
        return _renamed(columns, read), [(partner, _renamed(seen, read)) for partner, seen in found]

    def _new(self, join: Join, side: _Side) -> list[_Found]:
        pairs = [
            (*said, other)
            for key, other in zip(side.keys, side.other_keys, strict=True)
            if (said := _substitute((key,), side.columns)) is not None
        ]
        if pairs:
            shown = {attribute.id for attribute in join.output}
            # Who has no partner by one of the keys has none by all of them.
            choices = [pairs, *([pair] for pair in pairs if len(pairs) > 1)]
            return [
                (FilterSource(said, plan, keys), {a.id: a for a in plan.output if is_here and a.id in shown})
                for said, other in (zip(*choice, strict=True) for choice in choices)
                for plan, keys, is_here in self._supersets(side.other, other)
                if _can_be_partner(plan)
            ]
        # Not its own columns decide, but those of a partner: of that one, too, only rows with a partner count.
        return [
            (replace(partner, plan=_semi(partner.plan, keys, side.other, side.other_keys)), seen)
            for partner, seen in side.found
            if (keys := _substitute(side.keys, seen)) is not None and _can_be_partner(side.other)
        ]

    def _supersets(
        self, node: Node, keys: tuple[Expression, ...], is_here: bool = True
    ) -> Iterator[tuple[Node, tuple[Expression, ...], bool]]:
        """Plans with at least the keys that `node` has: itself, and parts of it in which only more rows are left.

        They may be finished, or small, when the whole is not. Inside of another stage, where it `is_here` no more,
        columns may have the ids of others.
        """
        yield node, keys, is_here
        if isinstance(node, StageInput):
            work = None if node.stage == self._number else self._plan_of(node.stage)
            if work is not None:
                read = {read.id: column for read, column in zip(node.output, work.output, strict=True)}
                below = _substitute(keys, read)
                if below is not None:
                    yield from self._supersets(work, below, False)
            return
        for place, child in enumerate(node.children):
            below = _substitute(keys, _columns_of(node, place))
            if below is not None:
                yield from self._supersets(child, below, is_here)
        if isinstance(node, Join):
            for side, theirs, ours in _equal_keys(node):
                equal = {
                    key.id: our for key, our in zip(theirs, ours, strict=True) if isinstance(key, Attribute)
                }
                if all(isinstance(key, Attribute) and key.id in equal for key in keys):
                    said = _substitute(keys, equal)
                    assert said is not None
                    yield from self._supersets(side, said, is_here)


def _forgotten(found: list[_Found]) -> list[_Found]:
    """Partners of whose columns nothing is seen any more."""
    return [(partner, {}) for partner, _ in found]


def _renamed(columns: _Columns, read: Mapping[int, int]) -> _Columns:
    return {read[id]: value for id, value in columns.items() if id in read}


@dataclass(frozen=True)
class _Side:
    """The side of a join that has the stage's rows, with `columns` and `found` of it, and what it is joined to."""

    keys: tuple[Expression, ...]
    columns: _Columns
    found: list[_Found]
    other: Node
    other_keys: tuple[Expression, ...]


def _can_be_partner(plan: Node) -> bool:
    """Every task of the stage computes it anew: they must not come to different rows."""
    return not scans_of(plan) and gives_same_rows(plan)


def _equal_keys(join: Join) -> Iterator[tuple[Node, tuple[Expression, ...], tuple[Expression, ...]]]:
    """Sides of a join, and keys of the other side that equal keys of this one in all rows that are left."""
    if join.kind in (JoinKind.INNER, JoinKind.SEMI) and not join.null_aware:
        yield join.right, join.left_keys, join.right_keys
    if join.kind is JoinKind.INNER:
        yield join.left, join.right_keys, join.left_keys


def _semi(
    node: Node, keys: tuple[Expression, ...], partner: Node, partner_keys: tuple[Expression, ...]
) -> Join:
    return Join(JoinKind.SEMI, keys, partner_keys, None, BuildSide.RIGHT, node, partner)


def _with_partner(node: Node, keys: tuple[Expression, ...], partner: FilterSource) -> Node:
    """The plan with a semi join as far down as it can be above the scan and what is done while reading it."""
    for place, child in enumerate(node.children):
        deeper = _substitute(keys, _columns_of(node, place))
        if deeper is not None and not _is_read_only(node):
            children = list(node.children)
            children[place] = _with_partner(child, deeper, partner)
            return with_children(node, tuple(children))
    return _semi(node, keys, partner.plan, partner.partner_keys)


def _is_read_only(node: Node) -> bool:
    """Whether it is a scan, or an input, with nothing over it but filters and projections."""
    return not below_row_by_row(node).children


def _columns_of(node: Node, place: int) -> _Columns:
    """The columns of `node` in terms of those of one of its children, if its rows can be left out there."""
    columns = {attribute.id: attribute for attribute in node.children[place].output}
    if not isinstance(node, Join):
        return _columns(node, columns) if len(node.children) == 1 else {}
    return columns if place in traits_of(node).divisible else {}


def _columns(node: Node, columns: _Columns) -> _Columns:
    """The columns of an operator, from those of its only child. Empty where rows with different keys meet in it."""
    if isinstance(node, Sort) and node.whole:
        # Its reader merges what tasks sorted: leave it as it is.
        return {}
    carried = traits_of(node).carries()
    return {
        id: said[0] for id, value in carried.items() if (said := _substitute((value,), columns)) is not None
    }


def _substitute(expressions: Iterable[Expression], columns: _Columns) -> tuple[Expression, ...] | None:
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
