# SPDX-License-Identifier: Apache-2.0
"""Runtime filters: rows that no join needs are dropped before the exchange.

If one side of a shuffle join has proved small and the other side has not started, the other side's stage can drop its
rows without a match before it groups, hashes, writes and sends them. The reader does not change.

    stage 2   Join                      stage 1   Aggregate Partial by k
                StageInput 0                        Semi join on k              inserted below the grouping by k
                Aggregate Final by k                  FileScan
                  StageInput 1                        StageInput 0              read whole by every task

This is correct for a join that drops that side's unmatched rows, if all operators between the join and the scan treat
rows with different keys separately.
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
from volley.stages.selectivity import count_conditions, drops_rows
from volley.stages.subqueries import subquery_stages

_DROPS_LEFT = {JoinKind.INNER, JoinKind.RIGHT, JoinKind.SEMI}
_DROPS_RIGHT = {JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI, JoinKind.EXISTENCE}

# The columns of an operator, by id, as expressions over columns further down; those without such a form are missing.
_Columns = Mapping[int, Expression]


@dataclass(frozen=True)
class FilterSource:
    """A filter on an input: it needs only rows whose `keys` equal `partner_keys` of some row of `plan`."""

    keys: tuple[Expression, ...]
    plan: Node
    partner_keys: tuple[Expression, ...]

    @property
    def inputs(self) -> frozenset[int]:
        return frozenset(node.stage for node in walk(self.plan) if isinstance(node, StageInput))

    @property
    def needs_subquery(self) -> bool:
        """Whether it needs the result of a subquery, which may not be available yet."""
        return bool(subquery_stages(Project(self.partner_keys, self.plan)))


@dataclass(frozen=True)
class Finished:
    """The output of a finished stage. `shrank`: it may have far fewer rows than the stage read."""

    size_bytes: int
    shrank: bool


PlanOf = Callable[[int], Node | None]
"""The plan of a stage, to search in; None if its output is to be used as it is."""


def filter_sources(reader: Stage, number: int, plan_of: PlanOf = lambda stage: None) -> list[FilterSource]:
    """The filters on the rows of a stage that `reader` allows, which may read it directly or through other stages."""
    search = _Search(number, plan_of)
    found = search.above(reader.plan)[1]
    # If a row is read in two places, either may need it.
    return [partner for partner, _ in found] if search.places == 1 else []


def apply_runtime_filter(
    stage: Stage,
    reader: Stage,
    finished: Mapping[int, Finished],
    limits: PlannerLimits,
    plan_of: PlanOf = lambda stage: None,
) -> tuple[Stage, frozenset[int]] | None:
    """The stage without rows that `reader` does not need, and the inputs that filter it. None if none can.

    `reader` is its only reader, or the end of a chain of only readers; then `plan_of` gives the plans in between.
    """
    read = {node.stage for node in stage.inputs}
    limit, ids = limit_bytes(stage, limits), _ids(stage.plan)
    useful = [
        partner
        for partner in filter_sources(reader, stage.id, plan_of)
        if partner.inputs <= finished.keys() and not partner.inputs & read and not partner.needs_subquery
        if not ids & _ids(partner.plan)
        if within(_size_bytes(partner, finished, limits), limit)
        if drops_rows(partner.plan) or any(finished[number].shrank for number in partner.inputs)
    ]
    if not useful:
        return None
    # The rows that remain can only be guessed: every further condition may leave few.
    partner = min(
        useful,
        key=lambda partner: _size_bytes(partner, finished, limits) / 4 ** count_conditions(partner.plan),
    )
    keys = _substitute(partner.keys, dict(enumerate(stage.plan.output)))
    assert keys is not None, "every position of an input is a column of its stage"
    plan = _insert_semi_join(stage.plan, keys, partner)
    return replace(stage, plan=plan, whole=stage.whole | partner.inputs), partner.inputs


def limit_bytes(stage: Stage, limits: PlannerLimits) -> int:
    """The largest filter source that is worth reading for a stage."""
    return min(limits.runtime_filter_bytes, scanned_bytes(stage.plan) // stage.tasks)


def _ids(plan: Node) -> frozenset[int]:
    return frozenset(column.id for node in walk(plan) for column in node.output)


def _size_bytes(partner: FilterSource, finished: Mapping[int, Finished], limits: PlannerLimits) -> int:
    scans = [node for node in walk(partner.plan) if isinstance(node, FileScan)]
    scanned = sum(cost_bytes(scan, limits) for scan in scans)
    return scanned + sum(finished[number].size_bytes for number in partner.inputs)


_Found = tuple[FilterSource, _Columns]
"""A filter source, and the columns of an operator above as expressions over the source's columns."""


class _Search:
    """Searches the plan of a downstream stage for filter sources for one stage."""

    def __init__(self, number: int, plan_of: PlanOf) -> None:
        self.places = 0
        self._number = number
        self._plan_of = plan_of
        # By stage: the result of `above` for its plan, and how often the rows occur in it. A stage may have several
        # readers.
        self._known: dict[int, tuple[_Columns, list[_Found], int]] = {}

    def above(self, node: Node) -> tuple[_Columns, list[_Found]]:
        """The columns of `node` over those of the stage, identified by position, and the sources found up to here."""
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
                found += self._new_sources(node, side)
            return (side.columns, found) if keeps_apart else ({}, _forget_columns(found))
        if len(below) != 1:
            return {}, _forget_columns(found)
        return _columns(node, below[0][0]), [(partner, _columns(node, seen)) for partner, seen in found]

    def _above_input(self, node: StageInput) -> tuple[_Columns, list[_Found]]:
        if node.stage == self._number:
            self.places += 1
            return _by_position(node.output), []
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
        return _rename(columns, read), [(partner, _rename(seen, read)) for partner, seen in found]

    def _new_sources(self, join: Join, side: _Side) -> list[_Found]:
        pairs = [
            (*substituted, other)
            for key, other in zip(side.keys, side.other_keys, strict=True)
            if (substituted := _substitute((key,), side.columns)) is not None
        ]
        if pairs:
            shown = {attribute.id for attribute in join.output}
            # A row without a match on one key has none on all of them.
            choices = [pairs, *([pair] for pair in pairs if len(pairs) > 1)]
            return [
                (
                    FilterSource(substituted, plan, keys),
                    {a.id: a for a in plan.output if is_here and a.id in shown},
                )
                for substituted, other in (zip(*choice, strict=True) for choice in choices)
                for plan, keys, is_here in self._supersets(side.other, other)
                if _can_be_partner(plan)
            ]
        # The join is on columns of a source found below: filter that source in turn.
        return [
            (replace(partner, plan=_semi_join(partner.plan, keys, side.other, side.other_keys)), seen)
            for partner, seen in side.found
            if (keys := _substitute(side.keys, seen)) is not None and _can_be_partner(side.other)
        ]

    def _supersets(
        self, node: Node, keys: tuple[Expression, ...], is_here: bool = True
    ) -> Iterator[tuple[Node, tuple[Expression, ...], bool]]:
        """Plans with at least the keys of `node`: itself, and parts of it that only have more rows.

        They may be finished, or small, when the whole is not. Inside another stage (`is_here` False), columns may have
        the ids of unrelated ones.
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
                    substituted = _substitute(keys, equal)
                    assert substituted is not None
                    yield from self._supersets(side, substituted, is_here)


def _forget_columns(found: list[_Found]) -> list[_Found]:
    """The sources, with none of their columns visible any more."""
    return [(partner, {}) for partner, _ in found]


def _rename(columns: _Columns, read: Mapping[int, int]) -> _Columns:
    return {read[id]: value for id, value in columns.items() if id in read}


@dataclass(frozen=True)
class _Side:
    """The side of a join that has the stage's rows, with its `columns` and `found`, and the side it is joined to."""

    keys: tuple[Expression, ...]
    columns: _Columns
    found: list[_Found]
    other: Node
    other_keys: tuple[Expression, ...]


def _can_be_partner(plan: Node) -> bool:
    """Whether every task of the stage can compute it and get the same rows."""
    return not scans_of(plan) and gives_same_rows(plan)


def _equal_keys(join: Join) -> Iterator[tuple[Node, tuple[Expression, ...], tuple[Expression, ...]]]:
    """Sides of a join, with the other side's keys that equal this side's keys in every output row."""
    if join.kind in (JoinKind.INNER, JoinKind.SEMI) and not join.null_aware:
        yield join.right, join.left_keys, join.right_keys
    if join.kind is JoinKind.INNER:
        yield join.left, join.right_keys, join.left_keys


def _semi_join(
    node: Node, keys: tuple[Expression, ...], partner: Node, partner_keys: tuple[Expression, ...]
) -> Join:
    return Join(JoinKind.SEMI, keys, partner_keys, None, BuildSide.RIGHT, node, partner)


def _insert_semi_join(node: Node, keys: tuple[Expression, ...], partner: FilterSource) -> Node:
    """Insert a semi join as far down as possible, above the scan with its filters and projections."""
    for place, child in enumerate(node.children):
        deeper = _substitute(keys, _columns_of(node, place))
        if deeper is not None and not _is_read_only(node):
            children = list(node.children)
            children[place] = _insert_semi_join(child, deeper, partner)
            return with_children(node, tuple(children))
    return _semi_join(node, keys, partner.plan, partner.partner_keys)


def _is_read_only(node: Node) -> bool:
    """Whether it is a scan or an input, below nothing but filters and projections."""
    return not below_row_by_row(node).children


def _columns_of(node: Node, place: int) -> _Columns:
    """The columns of `node` over those of one of its children, if its rows can be dropped there."""
    columns = {attribute.id: attribute for attribute in node.children[place].output}
    if not isinstance(node, Join):
        return _columns(node, columns) if len(node.children) == 1 else {}
    return columns if place in traits_of(node).divisible else {}


def _columns(node: Node, columns: _Columns) -> _Columns:
    """The columns of an operator, from those of its only child. Empty if it combines rows with different keys."""
    if isinstance(node, Sort) and node.whole:
        # Its reader merges sorted shares: do not change it.
        return {}
    carried = traits_of(node).carries()
    return {
        id: substituted[0]
        for id, value in carried.items()
        if (substituted := _substitute((value,), columns)) is not None
    }


def _substitute(expressions: Iterable[Expression], columns: _Columns) -> tuple[Expression, ...] | None:
    """Rewrite the expressions over other columns; None if one reads a column that is not in `columns`."""

    def replace_column(part: Expression) -> Expression:
        return columns[part.id] if isinstance(part, Attribute) else part

    expressions = tuple(expressions)
    if not columns or any(not references(expression) <= columns.keys() for expression in expressions):
        return None
    return tuple(transform(expression, replace_column) for expression in expressions)


def _by_position(output: Iterable[Attribute]) -> _Columns:
    """Identify columns by position: a stage and its readers may use different ids."""
    return {attribute.id: replace(attribute, id=place) for place, attribute in enumerate(output)}
