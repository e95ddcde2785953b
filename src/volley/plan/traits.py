# SPDX-License-Identifier: Apache-2.0
"""What the passes need to know of an operator: one row per node class, in one table.

A pass asks `traits_of(node)` instead of listing operators, so that a new one is a node, a support row, a lowering and
a row here. The defaults of `Traits` are the safe answers; a class without a row gets them, with all the expressions it
holds. A test fails when a class has no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from volley.plan.expressions import (
    AggregateCall,
    AggregateMode,
    Alias,
    Attribute,
    Call,
    Expression,
    Literal,
    WindowCall,
    attribute_of,
    conjuncts,
    references,
    transform,
)
from volley.plan.expressions import walk as walk_expression
from volley.plan.nodes import (
    Aggregate,
    Exchange,
    Expand,
    FeedInput,
    FileScan,
    Filter,
    Join,
    JoinKind,
    Limit,
    LocalRows,
    MaterializedInput,
    Node,
    OneRow,
    Project,
    Range,
    Sort,
    SourceScan,
    StageInput,
    TopN,
    Union,
    Unknown,
    Window,
    WriteFiles,
    expressions,
)
from volley.plan.types import FRACTIONAL


class Reduction(StrEnum):
    """Whether an operator may give far fewer rows than it reads."""

    NONE = "none"
    GROUPS = "groups"
    """As few as there are groups, which nobody knows before it runs."""
    CONDITION = "condition"
    """Rows for which something does not hold are left out."""


@dataclass(frozen=True)
class Traits:
    """The answers for one node. What is not said is the safe answer."""

    evaluates: tuple[Expression, ...] = ()
    """The expressions that it computes. Filters of a scan are not among them: they only prune."""

    together: tuple[Expression, ...] | None = ()
    """Rows that agree on these must be in one task: all rows when there are none. None: each task may have any rows."""

    divisible: frozenset[int] = frozenset()
    """Children of which each task may have any share, if it sees the others whole: together the tasks give just its
    rows. Leaving out a row of such a child leaves out only what that row gave."""

    row_by_row: bool = False
    """Each row comes from one row of its only child, and depends on no other row."""

    repeatable: bool = False
    """Run again over the same rows, in whatever order they come, it gives the same rows."""

    needs_order: bool = True
    """Which rows it gives may depend on the order of its input."""

    keeps_order: bool = False
    """Its rows come in the order of its only child's."""

    sorts_input: bool = False
    """It brings its input into whatever order it needs: a local sort directly below it does nothing."""

    reduces: Reduction = Reduction.NONE

    is_work: bool = False
    """It does more than pass rows on: worth counting when native work is weighed against a hand-over."""

    carries: Callable[[], Mapping[int, Expression]] = dict
    """Its columns, by id, that are such expressions of its only child's columns by which rows are treated apart:
    leaving out the child's rows with some value leaves out just its own rows with that value. Computed when asked."""


def traits_of(node: Node) -> Traits:
    row = TRAITS.get(type(node))
    return row(node) if row is not None else unknown(node)


def unknown(node: Any) -> Traits:
    """An operator of which nothing is known: it needs all rows, in order, and may compute anything."""
    return Traits(evaluates=tuple(expressions(node)))


def below_row_by_row(node: Node) -> Node:
    """What stands below the filters and projections at the top of a plan."""
    while traits_of(node).row_by_row:
        (node,) = node.children
    return node


# ---------------------------------------------------------------------------------------------- the rows

_ANY = frozenset({0})


def _leaf(node: Node) -> Traits:
    return Traits(together=None, repeatable=True, needs_order=False)


def _project(node: Project) -> Traits:
    return Traits(
        evaluates=node.expressions,
        together=None,
        divisible=_ANY,
        row_by_row=True,
        repeatable=True,
        needs_order=False,
        keeps_order=True,
        carries=lambda: _named(node.expressions),
    )


def _filter(node: Filter) -> Traits:
    return Traits(
        evaluates=(node.condition,),
        together=None,
        divisible=_ANY,
        row_by_row=True,
        repeatable=True,
        needs_order=False,
        keeps_order=True,
        reduces=Reduction.NONE if _only_drops_nulls(node.condition) else Reduction.CONDITION,
        carries=lambda: _unchanged(node),
    )


def _aggregate(node: Aggregate) -> Traits:
    # Rows to state, which a later aggregate merges: each task may reduce what it has.
    is_partial = any(call.mode is AggregateMode.PARTIAL for call in node.calls)
    return Traits(
        evaluates=(*node.grouping, *node.calls, *node.results),
        together=None if is_partial else node.grouping,
        divisible=_ANY if is_partial else frozenset(),
        repeatable=not any(map(_order_shows, node.calls)),
        needs_order=any(call.function.function in _BY_POSITION for call in node.calls),
        sorts_input=True,
        reduces=Reduction.GROUPS,
        is_work=True,
        carries=lambda: _in_terms_of(_named(node.results), _named(node.grouping)) if node.grouping else {},
    )


def _sort(node: Sort) -> Traits:
    return Traits(
        evaluates=node.keys,
        together=() if node.whole else None,
        divisible=frozenset() if node.whole else _ANY,
        repeatable=True,
        needs_order=False,
        is_work=True,
        carries=lambda: _unchanged(node),
    )


def _limit(node: Limit) -> Traits:
    return Traits(
        together=() if node.whole else None,
        divisible=frozenset() if node.whole else _ANY,
        keeps_order=True,
        reduces=Reduction.CONDITION,
    )


def _top_n(node: TopN) -> Traits:
    return Traits(
        evaluates=(*node.keys, *node.expressions),
        # In a stage of several tasks it takes the first of each share; another takes the first of those.
        divisible=_ANY,
        needs_order=False,
        reduces=Reduction.CONDITION,
        is_work=True,
    )


def _expand(node: Expand) -> Traits:
    return Traits(
        evaluates=tuple(expression for projection in node.projections for expression in projection),
        together=None,
        divisible=_ANY,
        repeatable=True,
        needs_order=False,
        is_work=True,
    )


def _window(node: Window) -> Traits:
    # The calls of a node have the partitions in common that Spark gave them; some divide these further. None may be
    # left: Spark replaces `count(NULL) OVER (...)` with a constant.
    calls = list(window_calls(node.calls))
    return Traits(
        evaluates=node.calls,
        together=min((call.partition_by for call in calls), key=len, default=()),
        needs_order=any(map(depends_on_order, calls)),
        sorts_input=True,
        is_work=True,
    )


def _exchange(node: Exchange) -> Traits:
    return Traits(
        evaluates=(*node.keys, *node.order),
        together=None,
        repeatable=True,
        needs_order=False,
        carries=lambda: _unchanged(node),
    )


def _write(node: WriteFiles) -> Traits:
    return Traits(together=() if node.single else None, repeatable=True)


def _join(node: Join) -> Traits:
    """A side that every task sees whole must not give rows of its own: each task would give them."""
    condition = () if node.condition is None else (node.condition,)
    left = node.kind not in (JoinKind.RIGHT, JoinKind.FULL)
    right = node.kind in (JoinKind.INNER, JoinKind.RIGHT)
    is_filter = node.kind in (JoinKind.SEMI, JoinKind.ANTI)
    return Traits(
        evaluates=(*node.left_keys, *node.right_keys, *condition),
        divisible=frozenset(place for place, may in enumerate((left, right)) if may),
        repeatable=True,
        needs_order=False,
        sorts_input=True,
        reduces=Reduction.CONDITION if is_filter else Reduction.NONE,
        is_work=True,
    )


def _union(node: Union) -> Traits:
    return Traits(together=None, repeatable=True, needs_order=False)


TRAITS: dict[type[Any], Callable[[Any], Traits]] = {
    FileScan: _leaf,
    SourceScan: _leaf,
    FeedInput: _leaf,
    LocalRows: _leaf,
    MaterializedInput: _leaf,
    Range: _leaf,
    OneRow: _leaf,
    StageInput: _leaf,
    Project: _project,
    Filter: _filter,
    Aggregate: _aggregate,
    Sort: _sort,
    Limit: _limit,
    TopN: _top_n,
    Expand: _expand,
    Window: _window,
    Exchange: _exchange,
    WriteFiles: _write,
    Join: _join,
    Union: _union,
    Unknown: unknown,
}


# ---------------------------------------------------------------------------------------------- helpers

# Their result is a row's place, or the value of a row at some place.
NUMBERING = frozenset({"RowNumber", "NTile", "Lag", "Lead"})
_BY_POSITION = frozenset({"First", "Last", "NthValue", "CollectList"})
_SUMMED = frozenset({"Sum", "Average", "StddevSamp", "StddevPop", "VarianceSamp", "VariancePop"})


def window_calls(calls: Iterable[Expression]) -> Iterator[WindowCall]:
    """The window calls in the columns of a Window."""
    for call in calls:
        for part in walk_expression(call):
            if isinstance(part, WindowCall):
                yield part


def depends_on_order(call: WindowCall) -> bool:
    """Whether it tells apart rows that its own ORDER BY leaves equal."""
    name = function_of(call).function
    if name in NUMBERING or name in _BY_POSITION:
        return True
    is_whole = call.frame.lower is None and call.frame.upper is None
    return isinstance(call.function, AggregateCall) and call.frame.rows and not is_whole


def function_of(call: WindowCall) -> Call:
    return call.function.function if isinstance(call.function, AggregateCall) else call.function


def _order_shows(call: AggregateCall) -> bool:
    if call.function.function in _BY_POSITION:
        return True
    # Adding doubles in another order changes their last bits.
    is_float = call.type in FRACTIONAL or any(part.type in FRACTIONAL for part in call.function.arguments)
    return call.function.function in _SUMMED and is_float


def _only_drops_nulls(condition: Expression) -> bool:
    """Whether a filter drops only the NULLs that a join drops anyway."""
    return all(
        isinstance(part, Literal) or (isinstance(part, Call) and part.function == "IsNotNull")
        for part in conjuncts(condition)
    )


def _unchanged(node: Node) -> dict[int, Expression]:
    return {attribute.id: attribute for attribute in node.output}


def _named(named: Iterable[Expression]) -> dict[int, Expression]:
    found: dict[int, Expression] = {}
    for expression in named:
        value = expression.child if isinstance(expression, Alias) else expression
        found[attribute_of(expression).id] = value
    return found


def _in_terms_of(columns: Mapping[int, Expression], below: Mapping[int, Expression]) -> dict[int, Expression]:
    """Columns that read only columns of `below`, in the terms of those."""

    def exchange(part: Expression) -> Expression:
        return below[part.id] if isinstance(part, Attribute) else part

    return {
        id: transform(expression, exchange)
        for id, expression in columns.items()
        if references(expression) <= below.keys()
    }
