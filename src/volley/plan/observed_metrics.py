# SPDX-License-Identifier: Apache-2.0
"""Metrics that `df.observe` asks for: plans of their own, over the same rows as the query.

    Observe name     metrics: Aggregate sum(x)          ->  the query without Observe, and for each name
      rows                      rows                         Aggregate sum(x), count(*)
                                                               rows

Spark counts the rows that flow through an operator while the query runs. That is all of them, unless something above
stops early, reads them twice, or is removed by adaptive execution because a part of the query is empty. The first two
show in the plan: only Spark knows its metrics then. The last shows in the data: `ObservedMetrics` says what must not be
empty.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from volley.plan import synthetic_ids
from volley.plan.expressions import (
    AggregateCall,
    AggregateMode,
    Alias,
    Attribute,
    Call,
    Expression,
    Literal,
)
from volley.plan.expressions import transform as transform_expression
from volley.plan.nodes import (
    Aggregate,
    Exchange,
    Expand,
    FileScan,
    Filter,
    Generate,
    Join,
    JoinKind,
    Limit,
    LocalRows,
    Node,
    Observe,
    Partitioning,
    Project,
    Sort,
    TopN,
    Union,
    Unknown,
    Window,
    transform,
    walk,
)
from volley.plan.python_nodes import PythonEval
from volley.plan.subqueries import with_subqueries
from volley.plan.traits import traits_of
from volley.plan.types import INTEGER, LONG

OBSERVING = "CollectMetricsExec"

_ids = itertools.count(synthetic_ids.OBSERVED)

# Reads every row of its input once, wherever that is not said to depend on more.
_READS_ALL = (
    Project,
    Filter,
    Aggregate,
    Sort,
    Window,
    Exchange,
    Union,
    Expand,
    Generate,
    PythonEval,
    Join,
    Observe,
)
# Has rows if and only if its input has.
_KEEPS_SOME = (Project, Sort, Window, Exchange, Expand, PythonEval, Observe, Aggregate)
# Their rows are in no order of which Spark knows, if those of their inputs are not.
_UNSORTED = (
    Project,
    Filter,
    Generate,
    Expand,
    Union,
    Exchange,
    FileScan,
    LocalRows,
    Join,
    PythonEval,
    Observe,
)
# The child each row of which is in the result, however empty the other child is.
_KEPT_SIDES = {
    JoinKind.LEFT: (0,),
    JoinKind.ANTI: (0,),
    JoinKind.EXISTENCE: (0,),
    JoinKind.RIGHT: (1,),
    JoinKind.FULL: (0, 1),
}


@dataclass(frozen=True)
class ObservedMetrics:
    """`plan` gives one row: the metrics, then the number of observed rows.

    Where that number is 0 and `not_empty`, or where one of `not_empty_either` gives no row, Spark may have no metrics.
    """

    name: str
    plan: Node
    not_empty: bool
    not_empty_either: tuple[Node, ...]

    @property
    def plans(self) -> tuple[Node, ...]:
        return (self.plan, *self.not_empty_either)

    def change_plans(self, change: Callable[[Node], Node]) -> ObservedMetrics:
        return replace(
            self, plan=change(self.plan), not_empty_either=tuple(map(change, self.not_empty_either))
        )


class LeftToSpark(Exception):
    """Why only Spark can compute metrics."""


def compute_metrics(metrics: Sequence[Expression], rows: Node) -> Node:
    """The plan of one row with the metrics and the number of rows."""
    calls: dict[int, AggregateCall] = {}

    def read_result(part: Expression) -> Expression:
        if not isinstance(part, AggregateCall):
            return part
        calls[part.result_id] = part
        return Attribute(part.result_id, part.function.function, part.type)

    results = [transform_expression(metric, read_result) for metric in metrics]
    count = AggregateCall(
        Call("Count", (Literal(1, INTEGER),), LONG), AggregateMode.COMPLETE, False, None, next(_ids)
    )
    counted = Attribute(count.result_id, "rows", LONG, False)
    buffers = tuple(Attribute(id, call.function.function, call.type) for id, call in calls.items())
    return Aggregate((), (*calls.values(), count), (*buffers, counted), (*results, counted), _strip(rows))


def take_metrics(plan: Node, *, counts_once: bool) -> tuple[Node, tuple[ObservedMetrics, ...]]:
    """The plan without its observations, and what computes their metrics. Raises LeftToSpark.

    `counts_once`: Spark counts a row once that two jobs of one query compute, such as the sample of a sort.
    """
    found = tuple(_find(plan, (), counts_once))
    names = [metrics.name for metrics in found]
    if len(set(names)) < len(names):
        raise LeftToSpark("two parts of the query have metrics of the same name")
    return _strip(plan), found


def leave_metrics(plan: Node, replaced: Callable[[Node, Node], None], why: str = "") -> Node:
    """The plan with Spark's operators in the place of its observations. `replaced` is told of each."""

    def change(node: Node) -> Node:
        if not isinstance(node, Observe):
            return node
        left = Unknown(OBSERVING, why, node.output, (node.rows,))
        replaced(node, left)
        return left

    return with_subqueries(transform(plan, change), lambda inner: leave_metrics(inner, replaced, why))


def _strip(plan: Node) -> Node:
    return transform(plan, lambda node: node.rows if isinstance(node, Observe) else node)


def _find(node: Node, above: tuple[tuple[Node, int], ...], counts_once: bool) -> Iterator[ObservedMetrics]:
    """The metrics in a plan below these operators, the nearest first, each with the place of the child below it."""
    if isinstance(node, Observe):
        yield _take(node, above, counts_once)
        yield from _find(node.rows, ((node, 1), *above), counts_once)
        return
    for place, child in enumerate(node.children):
        yield from _find(child, ((node, place), *above), counts_once)


def _take(node: Observe, above: tuple[tuple[Node, int], ...], counts_once: bool) -> ObservedMetrics:
    assert isinstance(node.metrics, Aggregate)
    if not all(traits_of(part).repeatable for part in walk(node.metrics.child)):
        raise LeftToSpark("the observed rows may differ when they are computed again")
    if traits_of(node.metrics).needs_order:
        raise LeftToSpark("a metric that depends on the order in which tasks of Spark end")
    if any(call.filter is not None or call.distinct for call in node.metrics.calls):
        raise LeftToSpark("a metric with FILTER or DISTINCT")
    empty: list[Node] = []
    exchanged = sorted_ = False
    for operator, place in above:
        _check_reads_all(operator, node, exchanged, sorted_)
        if isinstance(operator, Exchange):
            if operator.partitioning is Partitioning.RANGE and not exchanged and not counts_once:
                raise LeftToSpark("an ORDER BY above, for which Spark reads rows twice")
            exchanged = True
            empty.append(operator.child)
        sorted_ = sorted_ or isinstance(operator, Sort)
        if isinstance(operator, Join) and place not in _KEPT_SIDES.get(operator.kind, ()):
            empty.append(operator.children[1 - place])
    reduced = [_source_of_rows(part) for part in empty]
    others = [part for part in dict.fromkeys(reduced) if part is not None and part is not node]
    return ObservedMetrics(
        node.name, node.metrics, any(part is node for part in reduced), tuple(map(_any_row, others))
    )


def _check_reads_all(operator: Node, observed: Observe, exchanged: bool, is_sorted: bool) -> None:
    """Raise LeftToSpark unless the operator reads the observed rows once and to the end.

    `exchanged` and `is_sorted` say what is between them: an exchange is read and computed once, a sort reads all.
    """
    match operator:
        case Limit() if not exchanged:
            raise LeftToSpark("a LIMIT above, which stops when it has its rows")
        case Limit():
            return
        case TopN():
            if not exchanged and not is_sorted and _may_be_sorted(observed.rows):
                raise LeftToSpark("an ORDER BY with LIMIT above, which stops early over sorted rows")
        case Join() if operator.null_aware or not (operator.left_keys or operator.kind is JoinKind.INNER):
            raise LeftToSpark("a join above, which may not read all rows once")
        case Join() if not exchanged and not _is_broadcast(operator):
            # A task may skip the rows of one side where it has none of the other, or read them twice if they are many.
            raise LeftToSpark("a join above, which may not read all rows once")
        case _ if not isinstance(operator, _READS_ALL):
            raise LeftToSpark(f"{type(operator).__name__} above, which may not read all rows")


def _is_broadcast(join: Join) -> bool:
    return any(
        isinstance(child, Exchange) and child.partitioning is Partitioning.BROADCAST
        for child in join.children
    )


def _may_be_sorted(node: Node) -> bool:
    if isinstance(node, Exchange):
        return False
    if not isinstance(node, _UNSORTED) or (isinstance(node, Join) and node.build is None):
        return True
    return any(map(_may_be_sorted, node.children))


def _source_of_rows(node: Node) -> Node | None:
    """The node below that has rows if and only if this one has; None if it has some in any case."""
    while isinstance(node, _KEEPS_SOME):
        if isinstance(node, Aggregate) and not node.grouping:
            return None
        if isinstance(node, Observe):
            return node
        (node,) = node.children
    return node


def _any_row(node: Node) -> Node:
    one = Alias(next(_ids), "one", Literal(1, INTEGER))
    return Limit(1, 0, whole=True, child=Project((one,), _strip(node)))
