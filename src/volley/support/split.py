# SPDX-License-Identifier: Apache-2.0
"""Splits a plan that is only partly native between Spark and the native engine.

Either the top runs natively, over sub-trees that Spark runs:

Aggregate         native                 a sub-tree is cut off at the lowest node that Spark can run on
  Join            native                 its own: it corresponds to a single operator of the optimized
    FileScan      native                 query, and all its columns have supported types
    PythonUDF     Spark   <- hand-over
      FileScan    Spark

or, if Spark must run the top, the largest native sub-trees below it: the same picture upside down.
"""

from __future__ import annotations

from collections.abc import Callable

from volley.plan.expressions import AggregateCall
from volley.plan.nodes import (
    Aggregate,
    CachedRows,
    FileScan,
    Generate,
    Join,
    Node,
    Unknown,
    walk,
)
from volley.plan.order import order_of
from volley.plan.python_nodes import (
    PythonAggregate,
    PythonCoGroupMap,
    PythonGroupMap,
    PythonMap,
    PythonTable,
    PythonWindow,
)
from volley.plan.traits import Reduction, traits_of
from volley.support.check import reasons_of
from volley.support.reasons import Reason, Unsupported

# With fewer working operators a subplan saves less than its hand-over costs, unless it also reads files natively.
_ENOUGH_WORK = 3

# Spark may run these over rows that it did not partition itself, because they work row by row. The result of other
# operators, and of Spark's own aggregates, may depend on the partitioning or the order of the rows.
_ROW_BY_ROW = frozenset({"BatchEvalPythonExec", "ArrowEvalPythonExec"})
_SEE_THEIR_TASK = (
    PythonMap,
    PythonGroupMap,
    PythonCoGroupMap,
    PythonAggregate,
    PythonWindow,
    PythonTable,
)
_OF_EXPRESSIONS = frozenset(
    {
        Reason.EXPRESSION,
        Reason.ARGUMENT_TYPES,
        Reason.ARGUMENT_VALUE,
        Reason.DATA_TYPE,
        Reason.CAST,
        Reason.TIME_ZONE,
    }
)


def cut_off(plan: Node, can_cut: Callable[[Node], bool]) -> tuple[Node, ...] | Unsupported | None:
    """The sub-trees that Spark runs, by identity; a reason if too little is left above them, None if nothing is.

    `can_cut` says whether Spark can compute the rows of just this node.
    """
    cuts = _cuts(plan, can_cut)
    if cuts is None or any(cut is plan for cut in cuts):
        return None
    gone = {id(node) for cut in cuts for node in walk(cut)}
    if reason := _too_small([node for node in walk(plan) if id(node) not in gone]):
        return reason
    return tuple(cuts)


def subplans(plan: Node, can_stand: Callable[[Node], bool]) -> tuple[Node, ...] | Unsupported | None:
    """The largest native sub-trees below what Spark runs; a reason if all are too small, None if there are none.

    `can_stand` says whether Spark can take the rows of just this node as input.
    """
    native: set[int] = set()
    _mark_native(plan, native)
    found: list[Node] = []
    reason: Unsupported | None = None
    pending = [plan]
    while pending:
        node = pending.pop()
        if id(node) not in native or _gives_an_order(node) or not can_stand(node):
            pending.extend(reversed(node.children) if _takes_any_spread(node) else ())
        elif small := _too_small(list(walk(node))) or _crosses_whole(list(walk(node))):
            # What is below it is smaller still.
            reason = small
        else:
            found.append(node)
    return tuple(found) or reason


def _takes_any_spread(node: Node) -> bool:
    if isinstance(node, Unknown):
        return node.name in _ROW_BY_ROW
    if isinstance(node, _SEE_THEIR_TASK):
        return False
    if isinstance(node, Generate):
        return True
    return all(item.reason in _OF_EXPRESSIONS for item in reasons_of(node))


def _too_small(subplan: list[Node]) -> Unsupported | None:
    work = sum(traits_of(node).is_work for node in subplan)
    reads = any(isinstance(node, FileScan | CachedRows) for node in subplan)
    if work >= (1 if reads else _ENOUGH_WORK):
        return None
    return Unsupported(Reason.MIXED, "plan", "the native part is too small to pay for a hand-over")


def _crosses_whole(subplan: list[Node]) -> Unsupported | None:
    """Joins alone save less than it costs to hand over all of their rows: 0.6 to 0.9 of Spark's speed was measured."""
    work = [node for node in subplan if traits_of(node).is_work]
    reduces = any(traits_of(node).reduces is not Reduction.NONE for node in subplan)
    if reduces or not all(isinstance(node, Join) for node in work):
        return None
    return Unsupported(Reason.MIXED, "plan", "as many rows would cross as the native part reads")


def _mark_native(node: Node, native: set[int]) -> bool:
    below = [_mark_native(child, native) for child in node.children]
    if all(below) and not reasons_of(node):
        native.add(id(node))
        return True
    return False


def _cuts(node: Node, can_cut: Callable[[Node], bool]) -> list[Node] | None:
    """The cuts at or below `node`; None if only a node above it can be cut off."""
    if not reasons_of(node):
        below = [_cuts(child, can_cut) for child in node.children]
        found = [cut for cuts in below if cuts is not None for cut in cuts]
        if None not in below and not _parts_a_pair(node, found):
            return found
    return [node] if not _gives_an_order(node) and can_cut(node) else None


def _gives_an_order(node: Node) -> bool:
    """Whether an operator above may rely on the order of the rows, which a hand-over does not keep."""
    return order_of(node).requested


def _parts_a_pair(node: Node, cuts: list[Node]) -> bool:
    """Whether a cut separates a partial aggregate from its final one: the engines cannot read each other's state."""
    if not isinstance(node, Aggregate) or all(_reads_rows(call) for call in node.calls):
        return False
    half: Node = node.child
    while not isinstance(half, Aggregate):
        if any(half is cut for cut in cuts) or len(half.children) != 1:
            return True
        (half,) = half.children
    return any(half is cut for cut in cuts)


def _reads_rows(call: AggregateCall) -> bool:
    return call.mode.reads_rows
