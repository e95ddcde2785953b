# SPDX-License-Identifier: Apache-2.0
"""What the passes need to know about an operator: one table, one row per node class.

A pass asks `traits_of(node)` instead of listing operators, so a new operator is a node, a support row, a lowering and
a row here. The defaults of `Traits` are the safe answers. A class without a row gets them, and evaluates all its
expressions. A test fails if a class has no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from volley.plan.expressions import (
    JVM_ORDERED_AGGREGATE,
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
    CachedRows,
    Exchange,
    Expand,
    FeedInput,
    FileScan,
    Filter,
    Generate,
    Join,
    JoinKind,
    Limit,
    LocalRows,
    MaterializedInput,
    Node,
    NumberedRows,
    Observe,
    OneRow,
    PartitionedRows,
    Project,
    Range,
    Recursion,
    RecursionInput,
    Sample,
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
from volley.plan.python_nodes import (
    PythonAggregate,
    PythonCoGroupMap,
    PythonEval,
    PythonGroupMap,
    PythonMap,
    PythonTable,
    PythonWindow,
)
from volley.plan.types import FRACTIONAL
from volley.python_versions import StrEnum


class Reduction(StrEnum):
    """Whether an operator may output far fewer rows than it reads."""

    NONE = "none"
    GROUPS = "groups"
    """One row per group; the number of groups is unknown before it runs."""
    CONDITION = "condition"
    """Drops rows by a condition or a limit."""


@dataclass(frozen=True)
class Traits:
    """The answers for one node. The defaults are safe for any operator."""

    evaluates: tuple[Expression, ...] = ()
    """The expressions that it computes. Filters of a scan are not included: they only prune."""

    together: tuple[Expression, ...] | None = ()
    """Rows with equal values of these must be in one task; empty: all rows. None: rows may be in any task."""

    divisible: frozenset[int] = frozenset()
    """Children whose rows may be divided over tasks in any way, if each task sees the other children whole. Removing
    a row of such a child removes only that row's results."""

    row_by_row: bool = False
    """Each output row comes from one row of its only child and depends on no other row."""

    repeatable: bool = False
    """Running it again over the same rows, in any order, gives the same rows."""

    needs_order: bool = True
    """The order of its input may change which rows it outputs."""

    keeps_order: bool = False
    """Its output is in the order of its only child."""

    sorts_input: bool = False
    """It sorts its input as it needs: a local sort directly below has no effect."""

    reduces: Reduction = Reduction.NONE

    is_work: bool = False
    """It does real work, which counts when native execution is weighed against a hand-over."""

    carries: Callable[[], Mapping[int, Expression]] = dict
    """Output columns, by id, that are expressions over its only child's columns and separate rows: removing the child's
    rows with some value removes exactly its own rows with that value. Computed on demand."""


def traits_of(node: Node) -> Traits:
    row = TRAITS.get(type(node))
    return row(node) if row is not None else unknown(node)


def unknown(node: Any) -> Traits:
    """The traits of an unknown operator: it needs all rows, in order, and may compute anything."""
    return Traits(evaluates=tuple(expressions(node)))


def below_row_by_row(node: Node) -> Node:
    """The first node below the filters and projections at the top of a plan."""
    while traits_of(node).row_by_row:
        (node,) = node.children
    return node


# ---------------------------------------------------------------------------------------------- the rows

_ANY = frozenset({0})


def _leaf(node: Node) -> Traits:
    return Traits(together=None, repeatable=True, needs_order=False)


def _partitioned_rows(node: PartitionedRows) -> Traits:
    return replace(_leaf(node), is_work=True)


def _project(node: Project) -> Traits:
    return Traits(
        evaluates=node.expressions,
        together=None,
        divisible=_ANY,
        row_by_row=True,
        repeatable=True,
        needs_order=False,
        keeps_order=True,
        carries=lambda: _values_by_id(node.expressions),
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
        carries=lambda: _own_columns(node),
    )


def _aggregate(node: Aggregate) -> Traits:
    # Rows to state, which a later aggregate merges: each task may reduce its own rows.
    is_partial = any(call.mode is AggregateMode.PARTIAL for call in node.calls)
    return Traits(
        evaluates=(*node.grouping, *node.calls, *node.results),
        together=None if is_partial else node.grouping,
        divisible=_ANY if is_partial else frozenset(),
        repeatable=not any(map(_shows_order, node.calls)),
        needs_order=any(call.function.function in ORDERED_AGGREGATES for call in node.calls),
        sorts_input=True,
        reduces=Reduction.GROUPS,
        is_work=True,
        carries=lambda: (
            _express_over(_values_by_id(node.results), _values_by_id(node.grouping)) if node.grouping else {}
        ),
    )


def _sort(node: Sort) -> Traits:
    return Traits(
        evaluates=node.keys,
        together=() if node.whole else None,
        divisible=frozenset() if node.whole else _ANY,
        repeatable=True,
        needs_order=False,
        is_work=True,
        carries=lambda: _own_columns(node),
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
        # With several tasks each takes the first rows of its share, and a later TopN the first of those.
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


def _generate(node: Generate) -> Traits:
    # Not `keeps_order`: DataFusion drops a sort below an unnest.
    return Traits(
        evaluates=node.arguments,
        together=None,
        divisible=_ANY,
        repeatable=True,
        needs_order=False,
        carries=lambda: {attribute.id: attribute for attribute in node.required},
    )


def _window(node: Window) -> Traits:
    # All calls share Spark's partitioning; some divide it further. There may be no call at all: Spark replaces
    # `count(NULL) OVER (...)` with a constant.
    calls = list(window_calls(node.calls))
    return Traits(
        evaluates=node.calls,
        together=min((call.partition_by for call in calls), key=len, default=()),
        needs_order=any(map(depends_on_order, calls)),
        sorts_input=True,
        is_work=True,
    )


def _python_eval(node: PythonEval) -> Traits:
    return Traits(
        evaluates=node.arguments,
        together=None,
        divisible=_ANY,
        # Not row by row, and nothing is carried: a function sees the batches of its task, and would notice other rows.
        repeatable=True,
        needs_order=False,
        keeps_order=True,
        is_work=True,
    )


def _python_map(node: PythonMap) -> Traits:
    # The function may return anything for the rows of a stream, and does not see the same streams again.
    return Traits(evaluates=node.arguments, together=() if node.single else None, is_work=True)


def _python_groups(node: PythonGroupMap | PythonCoGroupMap | PythonAggregate) -> Traits:
    # What a function returns for a group may depend on the order of its rows.
    return Traits(
        evaluates=(*node.grouping, *node.arguments),
        together=node.grouping,
        sorts_input=True,
        reduces=Reduction.GROUPS,
        is_work=True,
    )


def _python_window(node: PythonWindow) -> Traits:
    return Traits(
        evaluates=(*node.grouping, *node.order, *node.arguments),
        together=node.grouping,
        sorts_input=True,
        is_work=True,
    )


def _python_table(node: PythonTable) -> Traits:
    # It may return anything, and is not deterministic unless it says so.
    return Traits(
        evaluates=(*node.grouping, *node.order, *node.arguments),
        together=node.grouping or (() if node.single else None),
        sorts_input=bool(node.grouping),
        is_work=True,
    )


def _exchange(node: Exchange) -> Traits:
    return Traits(
        evaluates=(*node.keys, *node.order),
        together=None,
        repeatable=True,
        needs_order=False,
        carries=lambda: _own_columns(node),
    )


def _write(node: WriteFiles) -> Traits:
    if node.files == 1:
        return Traits(together=(), repeatable=True)
    return Traits(
        evaluates=node.order, together=node.child.output[-1:] if node.numbered else None, repeatable=True
    )


def _join(node: Join) -> Traits:
    """A side that every task sees whole must not output unmatched rows: each task would output them."""
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


def _recursion(node: Recursion) -> Traits:
    # Its rows are in the plan before that runs.
    return Traits(together=None, repeatable=True, needs_order=False)


TRAITS: dict[type[Any], Callable[[Any], Traits]] = {
    FileScan: _leaf,
    SourceScan: _leaf,
    FeedInput: _leaf,
    LocalRows: _leaf,
    CachedRows: _leaf,
    MaterializedInput: _leaf,
    PartitionedRows: _partitioned_rows,
    Range: _leaf,
    OneRow: _leaf,
    StageInput: _leaf,
    RecursionInput: _leaf,
    Project: _project,
    Filter: _filter,
    Aggregate: _aggregate,
    Sort: _sort,
    Limit: _limit,
    TopN: _top_n,
    Expand: _expand,
    Generate: _generate,
    Sample: unknown,
    NumberedRows: unknown,
    Window: _window,
    PythonEval: _python_eval,
    PythonMap: _python_map,
    PythonGroupMap: _python_groups,
    PythonCoGroupMap: _python_groups,
    PythonAggregate: _python_groups,
    PythonWindow: _python_window,
    PythonTable: _python_table,
    Exchange: _exchange,
    WriteFiles: _write,
    Join: _join,
    Union: _union,
    Recursion: _recursion,
    Observe: unknown,
    Unknown: unknown,
}


# ---------------------------------------------------------------------------------------------- helpers

# Their result is a row's position, or the value at some position.
NUMBERING = frozenset({"RowNumber", "NTile", "Lag", "Lead"})
ORDERED_AGGREGATES = frozenset({"First", "Last", "CollectList", "ListAgg", JVM_ORDERED_AGGREGATE})
_BY_POSITION = frozenset({"First", "Last", "NthValue", "CollectList"})
_SUMMED = frozenset(
    {"Sum", "Average", "StddevSamp", "StddevPop", "VarianceSamp", "VariancePop", "Skewness", "Kurtosis"}
    | {"Corr", "CovPopulation", "CovSample"}
    | {"RegrSlope", "RegrIntercept", "RegrR2", "RegrSXY", "RegrReplacement"}
)


def window_calls(calls: Iterable[Expression]) -> Iterator[WindowCall]:
    """The window calls in the columns of a Window."""
    for call in calls:
        for part in walk_expression(call):
            if isinstance(part, WindowCall):
                yield part


def depends_on_order(call: WindowCall) -> bool:
    """Whether it distinguishes rows that are equal by its own ORDER BY."""
    name = function_of(call).function
    if name in NUMBERING or name in _BY_POSITION:
        return True
    is_whole = call.frame.lower is None and call.frame.upper is None
    return isinstance(call.function, AggregateCall) and call.frame.rows and not is_whole


def function_of(call: WindowCall) -> Call:
    return call.function.function if isinstance(call.function, AggregateCall) else call.function


def _shows_order(call: AggregateCall) -> bool:
    """Whether the result depends on the order of the input."""
    if call.partitions is not None:
        return False
    if call.function.function in _BY_POSITION or call.function.function == JVM_ORDERED_AGGREGATE:
        return True
    # Adding doubles in another order changes their last bits.
    is_float = call.type in FRACTIONAL or any(part.type in FRACTIONAL for part in call.function.arguments)
    return call.function.function in _SUMMED and is_float


def _only_drops_nulls(condition: Expression) -> bool:
    """Whether a filter drops only NULLs, which a join drops anyway."""
    return all(
        isinstance(part, Literal) or (isinstance(part, Call) and part.function == "IsNotNull")
        for part in conjuncts(condition)
    )


def _own_columns(node: Node) -> dict[int, Expression]:
    return {attribute.id: attribute for attribute in node.output}


def _values_by_id(named: Iterable[Expression]) -> dict[int, Expression]:
    found: dict[int, Expression] = {}
    for expression in named:
        value = expression.child if isinstance(expression, Alias) else expression
        found[attribute_of(expression).id] = value
    return found


def _group_columns(node: Aggregate) -> dict[int, Expression]:
    if not node.grouping:
        return {}
    return _express_over(_values_by_id(node.results), _values_by_id(node.grouping))


def _express_over(
    columns: Mapping[int, Expression], below: Mapping[int, Expression]
) -> dict[int, Expression]:
    """The columns that read only columns of `below`, rewritten over the expressions of those."""

    def substitute(part: Expression) -> Expression:
        return below[part.id] if isinstance(part, Attribute) else part

    return {
        id: transform(expression, substitute)
        for id, expression in columns.items()
        if references(expression) <= below.keys()
    }
