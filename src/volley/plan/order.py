# SPDX-License-Identifier: Apache-2.0
"""Row order as a property of a plan: which operators depend on it, which keep it, and how it is made explicit.

Spark's sorts are stable and its exchanges read map outputs in order, and some of its plans rely on that. A correlated
`ORDER BY v LIMIT 1` becomes

    Window         row_number() over (partition by k)       no order: the first row that arrives
      Sort         k                                        stable
        Exchange   hash(k)                                  keeps the relative order of rows with the same k
          Project  id, k
            Sort   v                                        global

Native operators guarantee no order, so no operator may rely on one implicitly. `make_order_explicit` turns the input
order that an operator depends on into sort keys of that operator:

    Window         row_number() over (partition by k order by v)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from volley.plan.carried_order import Order, OrderCarrier
from volley.plan.expressions import (
    AggregateCall,
    Alias,
    Attribute,
    Call,
    Expression,
    Frame,
    Literal,
    WindowCall,
    canonicalize,
    children,
)
from volley.plan.expressions import transform as transform_expression
from volley.plan.nodes import (
    Aggregate,
    Exchange,
    FileScan,
    Filter,
    Generate,
    Limit,
    Node,
    PartitionedRows,
    Partitioning,
    Project,
    Sort,
    TopN,
    Union,
    Window,
    WriteFiles,
    transform,
    with_children,
)
from volley.plan.traits import (
    NUMBERING,
    ORDERED_AGGREGATES,
    depends_on_order,
    function_of,
    traits_of,
    window_calls,
)
from volley.plan.types import FRACTIONAL, ArrayType, SimpleType


def order_of(node: Node) -> Order:
    """The order in which Spark outputs the node's rows."""
    return OrderCarrier().carry(node)[1]


def is_ordered(node: Node) -> bool:
    """Whether a native plan outputs its rows in a requested order."""
    while traits_of(node).keeps_order:
        (node,) = node.children
    return isinstance(node, TopN) or (isinstance(node, Sort) and node.whole)


def needs_input_order(node: Node) -> bool:
    """Whether the node's rows, and not only their order, depend on the order of its input."""
    return traits_of(node).needs_order


def missing_order(node: Node) -> str:
    """Why the order that the node depends on cannot be made explicit; "" if it can, or if none was requested."""
    match node:
        case Window(calls, child) if needs_input_order(node):
            order = order_of(child)
            found = (_order_call(call, order)[1] for call in window_calls(calls))
            return next(filter(None, found), "") if order.requested else ""
        case Limit(_, _, _, child) if not is_ordered(child):
            # After a hash exchange the first rows are those of the first partition, which Spark leaves undefined.
            return order_of(child).lost
        case _:
            return ""


def make_order_explicit(plan: Node, carrier: OrderCarrier | None = None) -> Node:
    """Rewrite every order that a node depends on as sort keys of that node.

    The keys are those of an ORDER BY below, then the positions of rows in their files where `carrier` knows these.
    Nothing is guaranteed for a node for which `missing_order` gives a reason.
    """
    carrier = carrier or OrderCarrier()

    def change(node: Node) -> Node:
        match node:
            case Window() if needs_input_order(node):
                return _order_window(node, carrier)
            case Limit() if not is_ordered(node.child):
                return _order_limit(node, carrier)
            case TopN():
                return _order_top_n(node, carrier)
            case Sort() if node.whole:
                return _order_sort(node, carrier)
            case Generate() if is_ordered(node.child):
                return _order_generate(node, carrier)
            case Aggregate() if any(map(_depends_on_input_order, node.calls)):
                return _order_aggregate(node, carrier)
            case _:
                return node

    return transform(plan, change)


def order_result(plan: Node, carrier: OrderCarrier) -> Node:
    """Sort the rows that a query returns or writes where they show an order that its last operator does not make.

    Union         top and bottom                          one branch after the other, each in its order
      TopN        v
      TopN        v desc

    Rows that are returned also show the order of a few small files, which native plans read concurrently.
    """
    if isinstance(plan, WriteFiles):
        return replace(plan, child=_order_rows(plan.child, carrier))
    return _order_rows(plan, carrier, of_files=_reads_several(plan))


def _order_rows(plan: Node, carrier: OrderCarrier, *, of_files: bool = False) -> Node:
    if is_ordered(plan):
        return plan
    child, order = carrier.carry(plan)
    keys, _ = order.keys_within(())
    shows_order = order.requested or (of_files and order.total)
    return Project(plan.output, Sort(keys, whole=True, child=child)) if keys and shows_order else plan


def sort_ranges(plan: Node) -> Node:
    """Sort the rows that `repartitionByRange` left in the order of their ranges, where this order can be seen.

    Spark returns one partition after the other, and a LIMIT takes the first rows of the first partition. A sort by the
    same keys has this order wherever the ranges end.
    """
    return _sort_ranges_below(transform(plan, _sort_ranges_below_limit))


def _sort_ranges_below_limit(node: Node) -> Node:
    return replace(node, child=_sort_ranges_below(node.child)) if isinstance(node, Limit) else node


def _sort_ranges_below(node: Node) -> Node:
    match node:
        case Exchange(partitioning=Partitioning.RANGE):
            return Sort(node.order, whole=True, child=node)
        case Sort(child=Exchange(partitioning=Partitioning.RANGE) as exchange) if not node.whole:
            # The rows of a partition are in the order of `sortWithinPartitions`.
            by_range = node.keys[: len(exchange.order)] == exchange.order
            return replace(node, whole=True) if by_range else node
        case _ if traits_of(node).keeps_order:
            return with_children(node, tuple(map(_sort_ranges_below, node.children)))
        case _:
            return node


def order_partitions(plan: Node) -> Node:
    """Have the rows of Spark's partitions come one partition after the other, where this order can be seen.

    Spark returns them so, and a LIMIT takes the first rows of the first partitions.
    """
    plan = transform(plan, _order_partitions_below_limit)
    return plan if isinstance(plan, WriteFiles) else _order_partitions_below(plan)


def _order_partitions_below_limit(node: Node) -> Node:
    return replace(node, child=_order_partitions_below(node.child)) if isinstance(node, Limit) else node


def _order_partitions_below(node: Node) -> Node:
    match node:
        case PartitionedRows():
            return replace(node, ordered=True)
        case Generate() | Limit():
            return replace(node, child=_order_partitions_below(node.child))
        case _ if traits_of(node).keeps_order:
            return with_children(node, tuple(map(_order_partitions_below, node.children)))
        case _:
            return node


# -------------------------------------------------------------------------------------------- consumers


def _order_window(node: Window, carrier: OrderCarrier) -> Node:
    child, order = carrier.carry(node.child)

    def extend(part: Expression) -> Expression:
        return _order_call(part, order)[0] if isinstance(part, WindowCall) else part

    calls = tuple(transform_expression(call, extend) for call in node.calls)
    if calls == node.calls:
        return node
    return Project(node.output, Window(tuple(_aliases(calls)), child))


def _aliases(calls: tuple[Expression, ...]) -> Iterator[Alias]:
    for call in calls:
        assert isinstance(call, Alias)
        yield call


def _order_call(call: WindowCall, order: Order) -> tuple[WindowCall, str]:
    """The call with the order of its input appended to its own, and why that is incomplete."""
    if not depends_on_order(call):
        return call, ""
    own = tuple(key.child for key in call.order_by)
    keys, missing = order.keys_within((*call.partition_by, *own))
    if not keys:
        return call, missing
    frame = _frame_over_rows(call)
    if frame is None and _is_last_peer(call):
        peers = (*call.partition_by, *own)
        return replace(
            call, partition_by=peers, order_by=keys, frame=Frame(rows=True, lower=None, upper=None)
        ), missing
    if frame is None:
        # More sort keys would make fewer rows equal, and so change a range frame.
        return call, missing or (f"{_name(call)} over a range" if order.requested else "")
    return replace(call, order_by=(*call.order_by, *keys), frame=frame), missing


def _frame_over_rows(call: WindowCall) -> Frame | None:
    """The equivalent frame over rows instead of values; None if there is none."""
    frame = call.frame
    if frame.rows or _name(call) in NUMBERING:
        return frame
    if frame.lower is None and frame.upper is None:
        return replace(frame, rows=True)
    # Every frame contains the partition's first row.
    return replace(frame, rows=True) if _name(call) == "First" and _ends_at_peers(call) else None


def _is_last_peer(call: WindowCall) -> bool:
    """Whether the value is that of the last row that is equal by the call's own ORDER BY."""
    return _name(call) == "Last" and _ends_at_peers(call)


def _ends_at_peers(call: WindowCall) -> bool:
    """Whether the frame is all rows up to the current row's last peer, without skipping NULLs."""
    frame = call.frame
    ends = isinstance(frame.upper, Literal) and frame.upper.value == 0
    return frame.lower is None and ends and not function_of(call).option("ignoreNulls")


def _order_limit(node: Limit, carrier: OrderCarrier) -> Node:
    child, order = carrier.carry(node.child)
    keys, _ = order.keys_within(())
    if not keys or not (order.requested or _reads_several(node.child)):
        return node
    return Project(node.output, replace(node, child=Sort(keys, whole=True, child=child)))


def _reads_several(node: Node) -> bool:
    """Whether the rows come from several files or branches, which native plans read concurrently."""
    while isinstance(node, Project | Filter | Limit | Exchange):
        node = node.child
    return isinstance(node, Union) or (isinstance(node, FileScan) and len(node.files) > 1)


def _order_top_n(node: TopN, carrier: OrderCarrier) -> Node:
    """Among equal rows, take those that arrive first. Spark guarantees none, but does this on small inputs."""
    child, order = carrier.carry(node.child)
    keys, _ = order.keys_within(key.child for key in node.keys)
    return replace(node, keys=(*node.keys, *keys), child=child) if keys else node


def _order_sort(node: Sort, carrier: OrderCarrier) -> Node:
    """Keep the order of equal rows."""
    child, order = carrier.carry(node.child)
    keys, _ = order.keys_within(key.child for key in node.keys)
    if not keys:
        return node
    return Project(node.output, Sort((*node.keys, *keys), whole=True, child=child))


def _depends_on_input_order(call: AggregateCall) -> bool:
    return call.function.function in ORDERED_AGGREGATES and not call.order_by


def _order_aggregate(node: Aggregate, carrier: OrderCarrier) -> Node:
    """Aggregate the rows of each group in their order."""
    if not all(call.mode.reads_rows for call in node.calls):
        # State is found by its position among the child's columns.
        return node
    child, order = carrier.carry(node.child)
    keys, _ = order.keys_within(node.grouping)
    if not keys:
        return node
    calls = tuple(
        replace(call, order_by=keys) if _depends_on_input_order(call) else call for call in node.calls
    )
    return replace(node, calls=calls, child=child)


def has_input_order(node: Aggregate) -> bool:
    """Whether the order of the rows of each group is known, among equal rows of an ORDER BY as far as Spark's is."""
    order = order_of(node.child)
    keys, missing = order.keys_within(node.grouping)
    shown = {canonicalize(key.child) for key in keys}
    is_requested = any(item.requested and canonicalize(item.key.child) in shown for item in order.keys)
    return not missing and (is_requested or order.is_total_within(node.grouping))


# Of arrays whose elements can be told apart by their order alone.
_HIDING_ORDER = frozenset({"SortArray", "Size", "ArrayContains", "ArrayMin", "ArrayMax"})


def hides_order(node: Aggregate, position: int) -> bool:
    """Whether the results show an array that a call collects only in ways that do not depend on its order."""
    call, buffer = node.calls[position], node.buffers[position]
    kind = call.type
    if not isinstance(kind, ArrayType) or not isinstance(kind.element, SimpleType):
        return False
    if kind.element in FRACTIONAL or not call.mode.gives_values:
        return False
    return not any(_shows(result, buffer.id) for result in node.results)


def _shows(expression: Expression, column: int) -> bool:
    match expression:
        case Attribute(id, _, _, _):
            return id == column
        case Call(function, (Attribute(id, _, _, _), *others), _, _, _) if function in _HIDING_ORDER:
            return any(_shows(other, column) for other in others)
        case _:
            return any(_shows(part, column) for part in children(expression))


def _order_generate(node: Generate, carrier: OrderCarrier) -> Node:
    """Sort after the generator instead of before it."""
    generated, order = carrier.carry(node)
    keys, _ = order.keys_within(())
    return Project(node.output, Sort(keys, whole=True, child=generated)) if keys else node


def _name(call: WindowCall) -> str:
    return function_of(call).function
